"""GiB that each route needs over the VLAs of LeRobot, computed from models of real size that hold no numbers.

    python scripts/vla_memory.py [--batch 16 --chunks 256 --cameras 2]

Models are built on torch's meta device from LeRobot's own code, so parameters are counted, not looked up, and what
autograd keeps for a gradient is counted by running the action expert there. The terms, in bytes:

  weights       4 a number, or 2 in bfloat16 but for what LeRobot keeps in float32. DPPO: the frozen policy and a copy
                of the expert, in float32 where all of it learns; LoRA: the copy as the original, and its factors.
  gradients     4 a number that learns.   optimiser: 8, AdamW's two moments.
  kept          DPPO: encoded observations of a rollout, 4·C bytes for each of --chunks (policies/lerobot/layout.py).
  activations   inference and residual: of the language model's widest moment, --batch observations of P tokens:
                batch·(3·P·m + 2·h·P²) numbers, m of the feed-forward layer, h heads. DPPO: what autograd keeps of
                --batch samples (algo.microbatch is that batch), of which bfloat16 halves each number, and checkpointing
                leaves what lies between layers and one layer's; what learns in float32 has a copy in bfloat16. BC: what
                is kept of the whole model in float32; SmolVLA's vision tower, which does not run on meta, as
                layers·T·(10·w + 2·m) numbers of T patches.

Not in it: what the allocator wastes, the CUDA context (about 0.5 GiB), the critic, the env. With a GPU the DPPO rows
are run too, on random weights, and the peak of allocated memory is printed beside; without one nothing is measured.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from lerobot.policies.pi0 import modeling_pi0
from lerobot.policies.pi05 import modeling_pi05
from lerobot.policies.smolvla import modeling_smolvla, smolvlm_with_expert
from torch import Tensor, nn
from transformers import SmolVLMConfig

from robopolicy.networks.lora import adapt
from robopolicy.policies.lerobot.flow_network import FlowExpert, FlowPrefix, split_network
from robopolicy.policies.lerobot.layout import NetworkLayout, Sizes

GIB = 2**30
RANK, ACTIONS = 16, 7
MODELS = {"SmolVLA 450M": "smolvla", "π0 3.3B": "pi0", "π0.5": "pi05"}
SMOLVLM2_500M = {  # SmolVLM2-500M-Video-Instruct's config.json, SmolVLA's language model; nothing is downloaded
    "image_token_id": 49190,
    "scale_factor": 4,
    "text_config": {
        "model_type": "llama", "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 64, "vocab_size": 49280, "pad_token_id": 2,
    },
    "vision_config": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 512, "patch_size": 16,
    },
}  # fmt: skip


class WholeNetwork(nn.Module):
    """A model of LeRobot's as `split_network` takes it."""

    def __init__(self, kind: str, config: Any, model: nn.Module) -> None:
        super().__init__()
        self.name, self.config, self.model = kind, config, model


class Row(NamedTuple):
    """Of a route, in bytes; `run`: the peak on a GPU."""

    weights: float
    learned: float = 0.0  # numbers
    kept: float = 0.0
    activations: float = 0.0
    run: float | None = None

    @property
    def total(self) -> float:
        return self.weights + 12.0 * self.learned + self.kept + self.activations


def build(kind: str, device: str) -> WholeNetwork:
    """A model of real size on `device`; on "meta" it holds no numbers."""
    with torch.device(device):
        if kind != "smolvla":
            module = {"pi0": modeling_pi0, "pi05": modeling_pi05}[kind]
            name = {"pi0": "PI0", "pi05": "PI05"}[kind]
            config = getattr(module, f"{name}Config")(device="cpu")
            return WholeNetwork(kind, config, getattr(module, f"{name}Pytorch")(config))
        config = modeling_smolvla.SmolVLAConfig(device="cpu", load_vlm_weights=False)
        tokens = SimpleNamespace(fake_image_token_id=0, global_image_token_id=1)
        blank = SimpleNamespace(from_pretrained=lambda _: SimpleNamespace(tokenizer=tokens))
        vlm = SimpleNamespace(from_pretrained=lambda _: SmolVLMConfig(**copy.deepcopy(SMOLVLM2_500M)))
        with patch.multiple(smolvlm_with_expert, AutoConfig=vlm, AutoProcessor=blank):
            return WholeNetwork(kind, config, modeling_smolvla.VLAFlowMatching(config))


def held(*modules: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for m in modules for p in m.parameters())


def prefix_length(whole: WholeNetwork, cameras: int) -> int:
    """P: patches of every camera, words, and SmolVLA's state."""
    config = whole.config
    if whole.name == "smolvla":
        return cameras * 64 + config.tokenizer_max_length + 1
    return cameras * 256 + config.tokenizer_max_length


def kept_for_gradient(module: nn.Module, run: Callable[[int], Tensor], batch: int) -> float:
    """Bytes that autograd keeps of `run(batch)` beside parameters, from a batch of 1 and of 2: a low-rank change's
    weights are there once however large the batch."""
    own = {p.untyped_storage()._cdata for p in module.parameters()}
    counts = []
    for size in (1, 2):
        found: dict[int, int] = {}

        def pack(x: Tensor, found: dict[int, int] = found) -> Tensor:
            storage = x.untyped_storage()
            if storage._cdata not in own:
                found[storage._cdata] = storage.nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            result = run(size)
        counts.append(sum(found.values()))
        del result
    return counts[0] + (batch - 1.0) * (counts[1] - counts[0])


def numbers_kept(sizes: Sizes, tokens: int, *, compact: bool) -> int:
    """C of a prefix of `tokens`."""
    each = sizes.layers * 2 * sizes.heads * sizes.head_dim
    return sizes.features + tokens * (1 + each // (2 if compact else 1))


def dppo(kind: str, args: argparse.Namespace, *, rank: int, compact: bool, device: str = "meta") -> Row:
    """DPPO of the expert's last steps, in full or by changes of a rank."""
    whole = build(kind, device)
    prefix, expert = parts(whole, compact)
    with torch.device(device):
        finetuned = adapt(copy.deepcopy(expert), rank)
    learned = [p for p in finetuned.parameters() if p.requires_grad]
    for weight in learned:
        weight.data = weight.data.float()
    count, tokens = sum(p.numel() for p in learned), prefix_length(whole, args.cameras)
    kept = 4 * args.chunks * numbers_kept(prefix.sizes, tokens, compact=compact)
    if device != "meta":
        peak = run(finetuned, learned, prefix.sizes, tokens, args, compact)
        return Row(held(prefix, expert, finetuned), count, kept, run=peak + kept)
    finetuned.compact = False  # meta tensors know no autocast
    step = partial(one_step, finetuned, prefix.sizes, tokens, device)
    found = kept_for_gradient(finetuned, step, args.batch)
    if compact:
        layer = found / prefix.sizes.layers
        finetuned.checkpointed()
        found = 0.5 * (kept_for_gradient(finetuned, step, args.batch) + layer) + (0 if rank else 2 * count)
    return Row(held(prefix, expert, finetuned), count, kept, found)


def parts(whole: WholeNetwork, compact: bool) -> tuple[FlowPrefix, FlowExpert]:
    whole.requires_grad_(False)
    steps = getattr(whole.config, "num_steps", None) or whole.config.num_inference_steps
    layout = NetworkLayout(whole.config.chunk_size, ACTIONS, whole.config.max_action_dim)
    return split_network(whole, layout, steps=steps, compact=compact)


def one_step(expert: FlowExpert, sizes: Sizes, tokens: int, device: str, batch: int) -> Tensor:
    """A denoising step of `batch` samples from a prefix of zeros."""
    with torch.device(device):
        cond = torch.zeros(batch, numbers_kept(sizes, tokens, compact=expert.compact))
        x = torch.zeros(batch, expert.layout.rows, expert.layout.action_dim)
        return expert.denoise(x, expert.embed_cond(cond) + expert.embed_time(torch.zeros(batch)))


def run(
    expert: FlowExpert, learned: list[nn.Parameter], sizes: Sizes, tokens: int, args: argparse.Namespace, compact: bool
) -> float:
    """Bytes allocated at the peak of two gradient steps on a GPU, the frozen policy beside."""
    if compact:
        expert.checkpointed()
    optimizer = torch.optim.AdamW(learned, lr=1e-5, fused=True)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        one_step(expert, sizes, tokens, "cuda", args.batch).square().mean().backward()
        optimizer.step()
    return float(torch.cuda.max_memory_allocated())


def inference(kind: str, args: argparse.Namespace, *, compact: bool) -> Row:
    whole = build(kind, "meta")
    prefix, expert = parts(whole, compact)
    tokens = prefix_length(whole, args.cameras)
    text = _text(prefix)
    wide = 3 * tokens * text.intermediate_size + 2 * text.num_attention_heads * tokens**2
    each = wide * (2 if compact else 4) + 4 * numbers_kept(prefix.sizes, tokens, compact=compact)
    return Row(held(prefix, expert), activations=args.batch * each)


def _text(prefix: FlowPrefix) -> Any:
    model = prefix.policy.model
    body = model.vlm_with_expert.vlm if hasattr(model, "vlm_with_expert") else model.paligemma_with_expert.paligemma
    return body.config.text_config


def imitation(kind: str, args: argparse.Namespace) -> Row:
    """All weights learned from demonstrations, in float32."""
    whole = build(kind, "meta").requires_grad_()
    model, config, cameras = whole.model, whole.config, args.cameras
    side = 512 if kind == "smolvla" else config.image_resolution[0]
    vision, sight = 0.0, nullcontext()
    if kind == "smolvla":
        shape = 64, SMOLVLM2_500M["text_config"]["hidden_size"]
        sight = patch.object(model.vlm_with_expert, "embed_image", lambda x: torch.zeros(len(x), *shape))
        eyes = SMOLVLM2_500M["vision_config"]
        width = 10 * eyes["hidden_size"] + 2 * eyes["intermediate_size"]
        vision = 4.0 * cameras * eyes["num_hidden_layers"] * (side // eyes["patch_size"]) ** 2 * width
    length = config.tokenizer_max_length

    def run(batch: int) -> Tensor:
        pictures = [torch.zeros(batch, 3, side, side)] * cameras, [torch.ones(batch).bool()] * cameras
        words = torch.zeros(batch, length).long(), torch.ones(batch, length).bool()
        state = () if kind == "pi05" else (torch.zeros(batch, config.max_state_dim),)
        chunk = torch.zeros(batch, config.chunk_size, config.max_action_dim)
        return model.forward(*pictures, *words, *state, chunk, chunk.clone(), torch.zeros(batch))

    with torch.device("meta"), sight:
        found = args.batch * vision + kept_for_gradient(model, run, args.batch)
    return Row(held(model), sum(p.numel() for p in model.parameters()), activations=found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16, help="samples, frames or observations at once")
    parser.add_argument("--chunks", type=int, default=256, help="of a rollout of DPPO")
    parser.add_argument("--cameras", type=int, default=2)
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    print(
        "| | precision | weights | gradients, optimiser | kept | activations | GiB |" + (" measured |" if gpu else "")
    )
    print("| --- | --- | --- | --- | --- | --- | --- |" + (" --- |" if gpu else ""))
    for model, kind in MODELS.items():
        for compact in (False, True):
            routes = {"inference, residual": inference(kind, args, compact=compact)}
            for name, rank in (("DPPO", 0), (f"DPPO, LoRA {RANK}", RANK)):
                routes[name] = dppo(kind, args, rank=rank, compact=compact)
                if gpu:
                    peak = dppo(kind, args, rank=rank, compact=compact, device="cuda").run
                    routes[name] = routes[name]._replace(run=peak)
            if not compact:
                routes["BC of all weights"] = imitation(kind, args)
            for name, row in routes.items():
                terms = (row.weights, 12.0 * row.learned, row.kept, row.activations, row.total)
                shown = " | ".join(f"{t / GIB:.1f}" for t in terms)
                measured = "" if not gpu else f" {row.run / GIB:.1f} |" if row.run else " |"
                print(f"| {model}, {name} | {'bfloat16' if compact else 'float32'} | {shown} |{measured}", flush=True)
    print("measured: the peak of allocated memory" if gpu else "computed; no GPU here, nothing was measured")


if __name__ == "__main__":
    main()
