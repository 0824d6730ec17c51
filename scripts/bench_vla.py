"""Two-level batching of a VLA (many noised chunks per observation) against one chunk per observation; JSON lines.

    python scripts/bench_vla.py [--device cuda --chunks 8192 --each 16 --size 96] [--quick | --record]

Both sides train the same policy (configs/policy/vla.yaml) on the same pictures, drawn here: three coloured squares, an
instruction that names one, actions that lead to it. They differ in `noise_samples` and the batch alone: `plain` has as
many observations in a batch as chunks, `two-level` S chunks for each of fewer observations.

two_level_batching, settings, with /cuda behind on a GPU
  samples_per_s   `ratio` of chunks learned from per second, the same number of chunks an update; the sides alternate.
  memory          `ratio` of what an update keeps for its gradient per chunk: bytes of tensors saved on a CPU, the peak
                  of allocated memory less what was held before on a GPU.
  equal_loss      `ratio` of seconds until the held-out loss is as low as `plain` brings it in --seconds, if it gets
                  there in as many; `loss/plain` and `loss/two-level` say how low each got.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from omegaconf import OmegaConf
from torch import Tensor

from robopolicy.algos.bc import BC
from robopolicy.config.hydra_configs import config_folder
from robopolicy.core.rng import kept_generators
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import IMAGES, STATE, TASK, ActionSpec, Feature
from robopolicy.evaluation.statistics import bootstrap
from robopolicy.policies.factory import build_policy
from robopolicy.policies.normalizer import ACTION, Normalizer
from robopolicy.policies.vla import VLAPolicy
from robopolicy.reporting.result_rows import Evidence, measured, write

COLOURS = ("red", "green", "blue")
HORIZON = 8
ARM = ActionSpec(
    names=("x", "y"), units=("m", "m"), low=(-1.0, -1.0), high=(1.0, 1.0), frame="base", tcp="tool", rotation="none",
    reference="commanded", gripper=None, gripper_meaning="",
)  # fmt: skip


def data(count: int, size: int, seed: int, device: torch.device) -> dict[str, Tensor]:
    """{key: [F ...]}: pictures uint8 of three squares, the state (where the tool is), the task, chunks towards it."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.rand(count, 3, 2, generator=generator)  # of each colour's square, 0 … 1
    tool, index = torch.rand(count, 2, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    image, side = torch.full((count, 3, size, size), 90, dtype=torch.uint8), max(2, size // 12)
    for i in range(count):
        for c in range(3):
            y, x = (place[i, c] * (size - side)).long().tolist()
            image[i, :, y : y + side, x : x + side] = 30
            image[i, c, y : y + side, x : x + side] = 220
    way = place[torch.arange(count), index] - tool
    chunk = way[:, None] * torch.linspace(1.0, 0.2, HORIZON)[:, None]
    found = {STATE: tool[:, None], IMAGES + "front": image[:, None], TASK: index[:, None], ACTION: chunk}
    return {k: v.to(device) for k, v in found.items()} | {
        "action_is_pad": torch.zeros(count, HORIZON, dtype=torch.bool, device=device)
    }


def policy(size: int, device: torch.device, **changes: object) -> VLAPolicy:
    torch.manual_seed(0)
    features = {
        STATE: Feature((2,)), IMAGES + "front": Feature((3, size, size), "uint8"), TASK: Feature((), "int64"),
    }  # fmt: skip
    tasks = tuple(f"go to the {c} square" for c in COLOURS)
    node = OmegaConf.to_container(OmegaConf.load(config_folder() / "policy" / "vla.yaml"))
    assert isinstance(node, dict)
    node = {**node, **changes}
    spec = PolicySpec(features, ARM, 0.05, 1, HORIZON, HORIZON, tasks)
    made = build_policy(node, spec=spec, normalizer=Normalizer.from_limits(features, ARM)).to(device)
    assert isinstance(made, VLAPolicy)
    return made


class VLASide:
    """A learner, and how its batches are made."""

    def __init__(self, start: VLAPolicy, frames: dict[str, Tensor], *, chunks: int, each: int, steps: int) -> None:
        self.algo = BC(copy.deepcopy(start), steps=steps, lr=5e-4, warmup=min(50, steps // 4), ema_decay=0.99)
        self.algo.model.noise_samples = each
        self.frames, self.rows, self.each = frames, chunks // each, each
        self.generator = torch.Generator().manual_seed(0)

    def batch(self) -> dict[str, Tensor]:
        count = len(self.frames[STATE])
        rows = torch.randint(0, count, (self.rows,), generator=self.generator).to(self.frames[STATE].device)
        return {k: v[rows] for k, v in self.frames.items()}

    def update(self) -> None:
        self.algo.update(self.batch())
        if self.frames[STATE].is_cuda:
            torch.cuda.synchronize()

    def bytes_per_chunk(self) -> float:
        batch, device = self.batch(), self.frames[STATE].device
        if device.type == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            self.algo.model.loss(batch)[0].backward()
            kept = float(torch.cuda.max_memory_allocated() - before)
        else:
            own = {p.untyped_storage().data_ptr() for p in self.algo.model.parameters()}
            sizes: dict[int, int] = {}

            def pack(x: Tensor) -> Tensor:
                if (at := x.untyped_storage().data_ptr()) not in own:
                    sizes[at] = x.untyped_storage().nbytes()
                return x

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                loss = self.algo.model.loss(batch)[0]  # keeps its graph, so no address is used twice
            kept = float(sum(sizes.values()))
            del loss
        self.algo.optimizer.zero_grad(set_to_none=True)
        return kept / (self.rows * self.each)

    def held_out(self, frames: dict[str, Tensor]) -> float:
        """Loss of the averaged weights under noise that is always the same."""
        model = self.algo.policy
        model.noise_samples = 4
        with kept_generators(model), torch.no_grad():
            torch.manual_seed(1)
            return model.loss(frames)[0].item()


def learn(
    side: VLASide, held_out: dict[str, Tensor], *, budget: float, until: float | None = None
) -> list[list[float]]:
    """Seconds of training and held-out loss, from time to time, within `budget` seconds or until a loss is reached."""
    spent, curve = 0.0, []
    while spent < budget:
        began = perf_counter()
        for _ in range(10):
            side.update()
        spent += perf_counter() - began
        curve.append([spent, side.held_out(held_out)])
        if until is not None and curve[-1][1] <= until:
            break
    return curve


def bench(*, size: int, chunks: int, each: int, rounds: int, budget: float, frames: int, device: str) -> list[Evidence]:
    there = torch.device(device)
    start, seen, held_out = policy(size, there), data(frames, size, 0, there), data(256, size, 1, there)

    def sides(rates: tuple[float, float]) -> tuple[VLASide, ...]:
        """Each with a learning rate that falls to zero when its time is up, at these chunks/s."""
        steps = [max(20, int(budget * rate / chunks)) for rate in rates]
        return tuple(
            VLASide(start, seen, chunks=chunks, each=s, steps=k) for s, k in zip((1, each), steps, strict=True)
        )

    plain, two = sides((1e6, 1e6))
    pairs = []
    for i in range(rounds + 1):  # the first round warms up
        times = []
        for side in (plain, two):
            began = perf_counter()
            side.update()
            times.append(perf_counter() - began)
        pairs += [times] if i else []
    found = bootstrap([[a / b] for a, b in pairs], statistic=statistics.median)
    slow, fast = (chunks / statistics.median(t) for t in zip(*pairs, strict=True))
    about = (
        f"{chunks} chunks an update, {each} an observation; {size} px, {there.type}, {torch.get_num_threads()} threads"
    )
    where = "" if there.type == "cpu" else f"/{there.type}"
    rows = [measured(id="two_level_batching", setting="samples_per_s" + where, metric="ratio", interval=found,
                     notes=f"plain {slow:.0f}, two-level {fast:.0f} chunks/s; {about}")]  # fmt: skip
    a, b = plain.bytes_per_chunk(), two.bytes_per_chunk()
    rows.append(measured(id="two_level_batching", setting="memory" + where, metric="ratio", interval=a / b,
                         notes=f"plain {a / 2**20:.3f}, two-level {b / 2**20:.3f} MiB a chunk; {about}"))  # fmt: skip
    plain, two = sides((slow, fast))
    first = learn(plain, held_out, budget=budget)
    target = min(loss for _, loss in first)
    needed = next(s for s, loss in first if loss <= target)
    second = learn(two, held_out, budget=budget, until=target)
    reached = second[-1][1] <= target
    for setting, curve in (("loss/plain", first), ("loss/two-level", second)):
        lowest, note = min(loss for _, loss in curve), f"after {curve[-1][0]:.1f} s; {about}"
        rows.append(
            measured(
                id="two_level_batching", setting=setting + where, metric="held_out_loss", interval=lowest, notes=note
            )
        )
    if reached:
        note = f"held-out loss {target:.4f}: plain {needed:.1f} s, two-level {second[-1][0]:.1f} s; {about}"
        rows.append(measured(id="two_level_batching", setting="equal_loss" + where, metric="ratio",
                             interval=needed / second[-1][0], notes=note))  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast")
    parser.add_argument("--record", action="store_true", help="write into docs/results")
    parser.add_argument("--threads", type=int, help="torch's")
    parser.add_argument("--seconds", type=float, default=300.0, help="of training, each side")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=64, help="of the pictures, px")
    parser.add_argument("--chunks", type=int, default=256, help="noised chunks in an update, of either side")
    parser.add_argument("--each", type=int, default=16, help="of them for each observation, two-level")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    sizes = (
        {"size": 32, "chunks": 32, "each": 8, "rounds": 3, "budget": 2.0, "frames": 64}
        if options.quick
        else {"size": options.size, "chunks": options.chunks, "each": options.each, "rounds": 7,
              "budget": options.seconds, "frames": 4_000}
    )  # fmt: skip
    found = bench(**sizes, device=options.device)
    for row in found:
        print(json.dumps(asdict(row), ensure_ascii=False))
    if options.record:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
