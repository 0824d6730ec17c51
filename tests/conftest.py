from __future__ import annotations

import torch

# Small tensors: threads cost more than they bring, and tests may run side by side.
torch.set_num_threads(1)
