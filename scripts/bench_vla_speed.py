"""Our compact VLA against LeRobot's SmolVLA of equal size, and one act for many envs against one each; JSON lines.

    pip install 'lerobot[smolvla]' and then
    python scripts/bench_vla_speed.py [--device cuda] [--quick | --record]

Both policies have random weights, two cameras of 64 px, twelve tokens of text, chunks of 8, ten flow steps, and as many
parameters that learn, within a tenth. Sizes are as alike as the architectures let them be: half a million of ours are
hashed words, where SmolVLA's vocabulary is tiny here; our two pictures make 128 tokens, SmolVLA's, which merges
neighbours, 8; its last language layer runs and does not learn. SmolVLA is handed its batch ready: scaled and tokenised.
The sides alternate; `ratio` is the median over rounds of the other side's seconds over ours.

vla_speed, settings, with /cuda behind on a GPU
  inference/N  a chunk for each of N observations: SmolVLA over ours.
  training/N   an update (loss, gradients, AdamW step) on N observations with one noised chunk each: SmolVLA over ours.
  batched/N    N observations one by one over all at once: ours alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from robopolicy.config.hydra_configs import config_folder
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import IMAGES, STATE, TASK, ActionSpec, Feature
from robopolicy.evaluation.statistics import bootstrap
from robopolicy.policies.factory import build_policy
from robopolicy.policies.normalizer import ACTION, Normalizer
from robopolicy.policies.vla import VLAPolicy
from robopolicy.reporting.result_rows import Evidence, measured, write
from tests.lerobot_toys import TOKENS, tiny_vlm

CAMERAS, PIXELS, HORIZON, WORDS, STATE_DIM = ("front", "wrist"), 64, 8, 12, 10
TASKS = ("pick up the red cube", "press the button")
ARM = ActionSpec(
    names=("x", "y", "z", "yaw"), units=("m", "m", "m", "rad"), low=(-1.0,) * 4, high=(1.0,) * 4, frame="base",
    tcp="tool", rotation="none", reference="commanded", gripper=None, gripper_meaning="",
)  # fmt: skip


def ours(device: torch.device) -> VLAPolicy:
    torch.manual_seed(0)
    features = {STATE: Feature((STATE_DIM,)), TASK: Feature((), "int64")}
    features |= {IMAGES + c: Feature((3, PIXELS, PIXELS), "uint8") for c in CAMERAS}
    spec = PolicySpec(features, ARM, 0.05, 1, HORIZON, HORIZON, TASKS)
    node = OmegaConf.to_container(OmegaConf.load(config_folder() / "policy" / "vla.yaml"))
    assert isinstance(node, dict)
    node |= {"noise_samples": 1}
    policy = build_policy(node, spec=spec, normalizer=Normalizer.from_limits(features, ARM)).to(device)
    assert isinstance(policy, VLAPolicy)
    return policy


def smolvla(device: torch.device, folder: Path) -> nn.Module:
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_policy_config

    inputs = {STATE: PolicyFeature(FeatureType.STATE, (STATE_DIM,))}
    inputs |= {IMAGES + c: PolicyFeature(FeatureType.VISUAL, (3, PIXELS, PIXELS)) for c in CAMERAS}
    config = make_policy_config(
        "smolvla", input_features=inputs, output_features={"action": PolicyFeature(FeatureType.ACTION, (ARM.dim,))},
        device=str(device), push_to_hub=False, load_vlm_weights=False, num_vlm_layers=4, chunk_size=HORIZON,
        n_action_steps=HORIZON, num_steps=10, resize_imgs_with_padding=(PIXELS, PIXELS), tokenizer_max_length=WORDS,
        pad_language_to="max_length", train_expert_only=False, freeze_vision_encoder=False,
        vlm_model_name=str(tiny_vlm(folder, TASKS, width=192, depth=4, hidden=128, eyes=3)),
    )  # fmt: skip
    torch.manual_seed(0)
    return get_policy_class("smolvla")(config).to(device)  # type: ignore[no-any-return]


def seen(count: int, device: torch.device) -> dict[str, Tensor]:
    """What both read of `count` observations, each in its own layout."""
    generator = torch.Generator().manual_seed(count)
    found = {STATE: torch.rand(count, 1, STATE_DIM, generator=generator), TASK: torch.arange(count)[:, None] % 2}
    for name in CAMERAS:
        picture = torch.randint(0, 256, (count, 1, 3, PIXELS, PIXELS), generator=generator)
        found[IMAGES + name] = picture.to(torch.uint8)
    return {k: v.to(device) for k, v in found.items()}


def theirs(obs: dict[str, Tensor]) -> dict[str, Tensor]:
    from lerobot.utils.constants import OBS_LANGUAGE_ATTENTION_MASK, OBS_LANGUAGE_TOKENS

    count, device = len(obs[STATE]), obs[STATE].device
    tokens = torch.full((count, WORDS), len(TOKENS), device=device)
    found = {k: v[:, 0].float() / 255.0 if k.startswith(IMAGES) else v[:, 0] for k, v in obs.items() if k != TASK}
    mask = torch.ones(count, WORDS, dtype=torch.bool, device=device)
    return {**found, OBS_LANGUAGE_TOKENS: tokens, OBS_LANGUAGE_ATTENTION_MASK: mask}


def update_of(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], Any]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return update


def compared(slow: Callable[[], Any], fast: Callable[[], Any], rounds: int, device: torch.device) -> tuple[Any, str]:
    """The ratio of seconds and its interval, and the medians."""
    pairs = []
    for i in range(rounds + 3):  # the first rounds warm up
        times = []
        for call in (slow, fast):
            began = perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(perf_counter() - began)
        pairs += [times] if i > 2 else []
    medians = [statistics.median(t) * 1e3 for t in zip(*pairs, strict=True)]
    return bootstrap([[a / b] for a, b in pairs], statistic=statistics.median), "{:.2f} and {:.2f} ms".format(*medians)


def bench(sizes: Sequence[int], rounds: int, device: torch.device) -> list[Evidence]:
    with tempfile.TemporaryDirectory() as folder:
        smol, mine = smolvla(device, Path(folder)), ours(device).eval()
    count = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (smol, mine)]
    if abs(count[0] / count[1] - 1) > 0.1:
        raise ValueError(f"parameters: SmolVLA has {count[0]:,}, ours {count[1]:,}: sizes differ by more than a tenth")
    about = f"{count[0] / 1e6:.2f}M and {count[1] / 1e6:.2f}M parameters, {device.type}"
    if device.type == "cpu":
        about += f", {torch.get_num_threads()} threads"
    rows = []

    def add(setting: str, slow: Callable[[], Any], fast: Callable[[], Any]) -> None:
        found, medians = compared(slow, fast, rounds, device)
        notes = f"{medians}; {about}"
        setting += "" if device.type == "cpu" else f"/{device.type}"
        rows.append(measured(id="vla_speed", setting=setting, metric="ratio", interval=found, notes=notes))
        print(json.dumps(asdict(rows[-1]), ensure_ascii=False), flush=True)

    for n in sizes:
        obs = seen(n, device)
        batch, noise = theirs(obs), torch.randn(n, HORIZON, 32, device=device)
        mine_noise = torch.randn(n, *mine.noise_shape, device=device)

        def chunk(rows: slice, obs: Any = obs, noise: Tensor = mine_noise) -> Tensor:
            return mine.act({k: v[rows] for k, v in obs.items()}, noise=noise[rows])

        add(f"inference/{n}", lambda: smol.predict_action_chunk(dict(batch), noise=noise), lambda: chunk(slice(None)))  # type: ignore[operator]  # noqa: B023
        if n > 1:
            add(f"batched/{n}", lambda: [chunk(slice(i, i + 1)) for i in range(n)], lambda: chunk(slice(None)))  # noqa: B023
    n = max(sizes)
    obs, action = seen(n, device), torch.rand(n, HORIZON, ARM.dim, device=device)
    pad = torch.zeros(n, HORIZON, dtype=torch.bool, device=device)
    batch = {**theirs(obs), ACTION: action, "action_is_pad": pad}
    own = {**obs, ACTION: action, "action_is_pad": pad}
    smol.train()
    mine.train()
    add(
        f"training/{n}",
        update_of(smol, lambda: smol(dict(batch))[0]),
        update_of(mine, lambda: mine.loss(own)[0]),
    )
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small batches: whether it runs, not how fast")
    parser.add_argument("--record", action="store_true", help="write into docs/results")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, help="torch's")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    found = bench((1, 4) if options.quick else (1, 64), 2 if options.quick else options.rounds,
                  torch.device(options.device))  # fmt: skip
    if options.record:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
