"""Imitation: our DiffusionPolicy against LeRobot's, side by side in one run; rows of evidence as JSON, one a line.

    python scripts/bench_bc.py [--only training | --only inference] [--quick | --record]

Both have the same dataset on disk, U-Net (equal parameter counts, or the script stops), chunk, batch size, DDPM steps
and torch threads, on the CPU, each with its own optimiser settings. The sides alternate, round by round.

training   end to end. Ours: `loops.offline` with BC on the dataset in tensors, as `robopolicy train` runs it (moving
           average of the weights included). LeRobot: the loop body of `lerobot-train` (dataset, sampler, DataLoader,
           processors, optimiser, `update_policy`; 0.6 keeps no average) without Accelerate's wrappers, with the fastest
           number of workers of 0 to 2; they stand still, queues full, while we train. Start-up is not counted.
update     the same without data: one batch in memory, normalised beforehand for LeRobot, raw for us.
inference  a chunk in physical units from a raw observation history: our `act`; LeRobot's preprocessor,
           `predict_action_chunk` and postprocessor. `network`: LeRobot without its processors, ours as before.

ratio: median over rounds of LeRobot's seconds over ours, with its 95% bootstrap interval.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from timeit import timeit
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import torch
from torch.utils.data import DataLoader

from robopolicy.algos.bc import BC
from robopolicy.cli.main import invoke
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, TASK
from robopolicy.datasets.batches import Batches
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.evaluation.statistics import bootstrap
from robopolicy.networks.unet1d import UNet1d
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.logger import Tracker
from robopolicy.training.offline import offline

try:
    from datasets import disable_progress_bars
    from lerobot.datasets import EpisodeAwareSampler, LeRobotDataset, LeRobotDatasetMetadata
    from lerobot.datasets.factory import resolve_delta_timestamps
    from lerobot.policies import make_policy, make_pre_post_processors
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.scripts.lerobot_train import update_policy
    from lerobot.utils.logging_utils import AverageMeter, MetricsTracker
    from lerobot.utils.utils import cycle
except ImportError as error:
    sys.exit(f"LeRobot: {error}. Install it: ./scripts/setup.sh bench, or: uv pip install 'lerobot[diffusion]==0.6.1'")

ENV_STATE = "observation.environment_state"  # LeRobot's diffusion needs an image or this beside the robot's own state
TO, H, TA, K = 2, 16, 8, 10  # observation history, predicted and executed steps, denoising steps
DIMS, KERNEL, GROUPS, TIME_DIM = (64, 128, 256), 5, 8, 128
SCHEDULE = 100_000  # updates that the learning rate falls over, on both sides


def record_dataset(path: Path, episodes: int) -> Episodes:
    """Demonstrations of pick as a plain LeRobotDataset, the state split into robot and cube; read back by us."""
    disable_progress_bars()
    demos = path.with_name("demos")
    with contextlib.redirect_stdout(sys.stderr):
        invoke("demos", "task=pick", out=demos, episodes=episodes, expert_noise=0.5)
    found = load_episodes(demos)
    cut = next(i for i, name in enumerate(found.observation[STATE].names or ()) if name.startswith("cube"))
    columns = {STATE: found.obs[STATE][:, :cut], ENV_STATE: found.obs[STATE][:, cut:], "action": found.action}
    features = {k: {"dtype": "float32", "shape": (v.shape[1],), "names": None} for k, v in columns.items()}
    written = LeRobotDataset.create("local/bench", round(1 / found.dt), features, root=path, use_videos=False)
    for t in range(found.num_frames):
        written.add_frame({**{k: v[t].numpy() for k, v in columns.items()}, "task": found.tasks[0]})
        if t + 1 in found.starts:
            written.save_episode()
    written.finalize()
    return load_episodes(path, action_spec=found.action_spec)


class OurBC:
    def __init__(self, episodes: Episodes, batch_size: int) -> None:
        observation = {k: v for k, v in episodes.observation.items() if k != TASK}
        spec = PolicySpec(observation, episodes.action_spec, episodes.dt, TO, H, TA, episodes.tasks)
        normalizer = Normalizer(observation, episodes.action_spec).fit(episodes)
        network: Any = partial(UNet1d, dims=DIMS, kernel=KERNEL, groups=GROUPS, time_dim=TIME_DIM)
        policy = DiffusionPolicy(spec, normalizer, denoising_steps=K, network=network, prediction="epsilon")
        algo = BC(policy, steps=SCHEDULE)
        self.train: Any = partial(
            offline, algo=algo, episodes=episodes, batch_size=batch_size, seed=0, tracker=Tracker(quiet=True),
            checkpointer=SimpleNamespace(requested=False, latest=lambda: None, save=lambda *_, **__: None),
        )  # fmt: skip
        self.update = partial(algo.update, Batches(episodes, spec, batch_size=batch_size, seed=0)[0])
        self.network, self.act = policy.network, algo.policy.act


class LeRobot:
    # What `update_policy` asks of Accelerate, as it is on one CPU in float32; costs nothing.
    accelerator = SimpleNamespace(
        autocast=contextlib.nullcontext, backward=torch.Tensor.backward, unwrap_model=lambda model, **_: model,
        clip_grad_norm_=torch.nn.utils.clip_grad_norm_,
    )  # fmt: skip

    def __init__(self, root: Path, batch_size: int) -> None:
        config = DiffusionConfig(
            n_obs_steps=TO, horizon=H, n_action_steps=TA, drop_n_last_frames=H - TA - TO + 1, num_train_timesteps=K,
            down_dims=DIMS, kernel_size=KERNEL, n_groups=GROUPS, diffusion_step_embed_dim=TIME_DIM, device="cpu",
            do_mask_loss_for_padding=True, push_to_hub=False,
        )  # fmt: skip
        meta = LeRobotDatasetMetadata("local/bench", root=root)
        deltas = resolve_delta_timestamps(config, meta)
        self.dataset = LeRobotDataset("local/bench", root=root, delta_timestamps=deltas, return_uint8=True)
        self.policy = make_policy(config, ds_meta=meta)
        self.pre, self.post = make_pre_post_processors(config, dataset_stats=meta.stats)
        self.drop, self.batch_size, self.network = config.drop_n_last_frames, batch_size, self.policy.diffusion.unet
        meters = {k: AverageMeter(k) for k in ("loss", "grad_norm", "lr", "update_s")}
        metrics = MetricsTracker(batch_size, meta.total_frames, meta.total_episodes, meters)
        optimizer = (preset := config.get_optimizer_preset()).build(self.policy.get_optim_params())
        self.step = partial(
            update_policy, metrics, self.policy, optimizer=optimizer, grad_clip_norm=preset.grad_clip_norm,
            accelerator=self.accelerator, lr_scheduler=config.get_scheduler_preset().build(optimizer, SCHEDULE),
        )  # fmt: skip

    def load_with(self, workers: int) -> None:
        """Begin loading again, and train until the queues are as they will be."""
        bounds = [self.dataset.meta.episodes[f"dataset_{end}_index"] for end in ("from", "to")]
        more: Any = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
        more["sampler"] = EpisodeAwareSampler(*bounds, drop_n_last_frames=self.drop, shuffle=True)
        self.batches = cycle(DataLoader(self.dataset, num_workers=workers, batch_size=self.batch_size, **more))
        self.update = partial(self.step, batch=self.pre(next(self.batches)))
        self.train(2 + 4 * workers)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step(batch=self.pre(next(self.batches)))


def compare_training(ours: OurBC, theirs: LeRobot, rounds: int, steps: int) -> list[Evidence]:
    count, other = (sum(p.numel() for p in side.network.parameters()) for side in (ours, theirs))
    if count != other:
        sys.exit(f"the networks differ: ours has {count} parameters, LeRobot's {other}")
    size, rates = theirs.batch_size, {}
    for workers in (0, 1, 2):
        theirs.load_with(workers)
        rates[workers] = round(steps * size / timeit(lambda: theirs.train(steps), number=1))
    theirs.load_with(best := max(rates, key=rates.__getitem__))
    tail = "" if size == 64 else f"/batch{size}"
    notes = f"batch {size}, {steps} steps a round, U-Net of {count} parameters"
    loading = f"{notes}; LeRobot with {best} loading workers (samples/s by workers: {rates})"
    sides: Any = (lambda: ours.train(steps=steps)), (lambda: theirs.train(steps))
    rows = compare(f"training{tail}", sides, rounds, loading, samples=steps * size)
    theirs.load_with(0)  # ends its workers
    sides = (lambda: [ours.update() for _ in range(steps)]), (lambda: [theirs.update() for _ in range(steps)])
    return rows + compare(f"update{tail}", sides, rounds, notes, samples=steps * size)


@torch.inference_mode()
def compare_inference(ours: OurBC, theirs: LeRobot, data: Episodes, size: int, rounds: int) -> list[Evidence]:
    obs = {k: data.obs[k][torch.arange(size)[:, None] + torch.arange(TO)] for k in (STATE, ENV_STATE)}
    act, network = partial(ours.act, obs), theirs.policy.eval().predict_action_chunk
    tail, notes = "" if size == 1 else f"/batch{size}", f"batch {size}, {K} DDPM steps"
    rows = compare(f"inference{tail}", (act, lambda: theirs.post(network(theirs.pre(obs)))), rounds, notes)
    return rows + compare(f"inference/network{tail}", (act, lambda: network(obs)), rounds, notes)


def compare(setting: str, sides: Any, rounds: int, notes: str, *, samples: int = 0) -> list[Evidence]:
    """Rows of one comparison: ratio; samples/s of both sides, or milliseconds a call where there are no `samples`."""
    times = []
    with Tracker().progress(rounds, setting) as bar:
        for i in range(rounds + 1):  # the first round warms up
            with contextlib.ExitStack() as stack:
                for worker in psutil.Process().children(recursive=True):
                    worker.suspend()
                    stack.callback(worker.resume)
                spent = timeit(sides[0], number=1)
            times.append((spent, timeit(sides[1], number=1)))
            bar.update(i, ratio=times[-1][1] / times[-1][0])
    values: dict[str, Any] = {"ratio": bootstrap([[b / a for a, b in times[1:]]], statistic=statistics.median)}
    for name, column in zip(("ours", "lerobot"), zip(*times[1:], strict=True), strict=True):
        middle = statistics.median(column)
        unit, value = ("samples_per_s", samples / middle) if samples else ("ms", 1e3 * middle)
        values[f"{unit}_{name}"] = round(value, 2)
    notes = f"{notes}; {rounds} rounds, {torch.get_num_threads()} threads"
    made = [measured(id="bc_speed", setting=setting, metric=m, interval=v, notes=notes) for m, v in values.items()]
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in made), sep="\n", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="of each comparison; ten times as many of inference")
    parser.add_argument("--only", choices=("training", "inference"), help="training includes the update alone")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quick", action="store_true", help="batch 64 and a few rounds, to see that it works")
    group.add_argument("--record", action="store_true", help="write the rows to docs/results/bc_speed.json too")
    args = parser.parse_args()
    rounds, steps, episodes = (2, 3, 5) if args.quick else (args.rounds, 20, 50)
    with tempfile.TemporaryDirectory() as folder:
        root, rows = Path(folder) / "data", []
        data = record_dataset(root, episodes)
        for batch_size in (64,) if args.quick else (256, 64):
            sides = OurBC(data, batch_size), LeRobot(root, batch_size)
            rows += compare_training(*sides, rounds, steps) if args.only != "inference" else []
        for size in (1, 32) if args.only != "training" else ():
            rows += compare_inference(*sides, data, size, 10 * rounds)
    if args.record:
        print(*write(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
