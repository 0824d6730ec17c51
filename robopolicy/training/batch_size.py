"""Choose how many windows a batch of imitation has, and say before a long training how long it will take."""

from __future__ import annotations

import copy
import logging
import time

import psutil
import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError
from robopolicy.core.types import RENDERED
from robopolicy.datasets.batches import Batches
from robopolicy.datasets.episodes import Episodes, take
from robopolicy.policies.base import Policy
from robopolicy.utils import ranks

USUAL, ON_CPU, LEAST = 256, 64, 8  # windows: of numbers, of pictures on a CPU, and at least
LONG_S = 1_800.0  # a training beyond it is warned about
_TIMED = 5  # updates that the estimate is of, behind the first one
_MEASURED = 2  # windows that memory is measured on
_GIB = 2.0**30

_log = logging.getLogger(__name__)


def chosen_batch_size(wanted: int | None, policy: Policy, episodes: Episodes, device: torch.device) -> int:
    """Return the number of windows in a batch that fits into memory.

    Numbers alone: 256. Pictures or point clouds: 256 on a GPU and 64 on a CPU, halved until a batch takes half of the
    free memory at most. What a window takes is measured: the tensors that a loss keeps for its gradient, and as much
    again while that is computed. Of several ranks each learns a part, and all take the smallest number.

    Args:
        wanted: the user's number; None: by this rule.
        policy: whose loss is minimised; it stays as it is. episodes: that it learns from.

    Raises:
        ConfigError: `wanted`, or else 8 windows, take more than the free memory.
    """
    if not any(key.startswith(RENDERED) for key in policy.spec.observation):
        return wanted or USUAL
    window, free = 2 * _kept_bytes(policy, _sample(policy, episodes, device)) / _MEASURED, _free_bytes(device)
    fitting = min(ranks.gather(_fitting(window / ranks.count(), free, most=USUAL if device.type == "cuda" else ON_CPU)))
    if wanted is None:
        wanted = max(LEAST, fitting)
        print(f"loop.batch_size: {wanted} windows of {window / 2**20:.1f} MiB, {free / _GIB:.1f} GiB are free")
    if wanted * window / ranks.count() > free:
        mend = f"Give loop.batch_size={fitting}, or" if fitting >= LEAST else "Give"
        raise ConfigError(
            f"loop.batch_size: expected a batch that fits into {free / _GIB:.1f} GiB of free memory, found {wanted} "
            f"windows of {window / 2**20:.0f} MiB. {mend} smaller pictures or fewer cameras."
        )
    return wanted


def _sample(policy: Policy, episodes: Episodes, device: torch.device) -> dict[str, Tensor]:
    """Return a batch of the first frames; of one episode, as preparing all of them can take long."""
    first = take(episodes, torch.arange(episodes.num_episodes) == 0)
    batches = Batches(
        first, policy.spec, batch_size=_MEASURED, seed=0, device=device, precompute_features=policy.precompute_features
    )
    return batches[0]


def _fitting(window: float, free: float, *, most: int) -> int:
    """Return the largest power of two of windows that takes half of the free memory, at most `most`; 0: none."""
    size = most
    while size and size * window > free / 2:
        size //= 2
    return size


def _kept_bytes(policy: Policy, batch: dict[str, Tensor]) -> int:
    """Return the bytes that a policy's loss keeps for its gradient, each tensor's memory once, without parameters."""
    model = copy.deepcopy(policy)  # running statistics of a layer must not see this batch
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (memory := tensor.untyped_storage()).data_ptr() not in own:
            kept[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss, _ = model.loss(batch)
    del loss
    return sum(kept.values())


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


class Estimate:
    """Warns once, a few updates after the start, where a training will take longer than half an hour.

    Args:
        updates: that are left. advice: what makes it shorter.
    """

    def __init__(self, updates: int, advice: str) -> None:
        self.left, self.advice, self.seen, self.began = updates, advice, 0, 0.0

    def update(self) -> None:
        """Count one update; the first one, which prepares much, is not timed."""
        self.seen += 1
        if self.seen == 1:
            self.began = time.perf_counter()
        elif self.seen == 1 + _TIMED:
            each = (time.perf_counter() - self.began) / _TIMED
            if (seconds := each * (self.left - self.seen)) > LONG_S:
                _log.warning(
                    "This training will take about %.1f hours: %d updates of %.1f s. %s",
                    seconds / 3600, self.left, each, self.advice,
                )  # fmt: skip
