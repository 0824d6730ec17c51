"""DPPO's update against the published minibatched one, and where an iteration's time goes; evidence as JSON lines.

    python scripts/bench_dppo.py [--device cuda --scale 16] [--quick | --record]

dppo_update_speed     one whole update (all epochs over N·T·K' samples) of the same policy from the same rollout, with
                      the same networks, optimisers, number and size of minibatches. `Published` is the update as the
                      paper and the reference describe it, written plainly: old log-probs are computed again for all
                      samples; every minibatch gathers observations, encodes them for each of its samples,
                      embeds every sample's time, and learns the value of every sample. Ours is `DPPO.update`.
                      The sides alternate; `ratio` is the median over rounds of Published's seconds over ours. A side
                      that stops early (target_kl) ends the benchmark: it would have done less. `share`, on a CPU: where
                      the seconds of our update go, timed around its parts: the policy's loss, its optimiser, all that
                      the critic does; what is left is the policy's backward pass, its gradient's norm and drawing.
dppo_iteration_split  shares of collection, returns and update in iterations of the loop on pick, at the sizes of
                      configs/algo/dppo.yaml; the policy is untrained, so its episodes last to the time limit. On a GPU
                      also `gpu_idle`, the share of an iteration in which neither kernel nor copy runs: one less
                      their time in a profiled iteration over the median of the others.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from robopolicy import sim
from robopolicy.algos.advantage_estimator import Advantages
from robopolicy.algos.dppo import DPPO, DenoisingSamples
from robopolicy.algos.returns import clipped_loss
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import IMAGES, STATE, Feature, Obs
from robopolicy.envs.wrappers import HistoryEnv
from robopolicy.evaluation.statistics import bootstrap
from robopolicy.networks.mlp import MLP, ResidualMLP
from robopolicy.policies.denoising_chain import gaussian_log_prob
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.training.on_policy import on_policy

OPTIONS = {"critic": partial(MLP, width=256, depth=3), "epochs": 5, "clip": 0.02, "actor_lr": 3e-4, "target_kl": 1e3}
EPOCHS, MINIBATCH, ROLLOUT = 8, 1_300, 40  # configs/algo/dppo.yaml


def make(env: Any, *, images: bool, minibatch: int, device: torch.device, **options: Any) -> DPPO:
    torch.manual_seed(0)
    observation = {STATE: env.spec.observation[STATE]}
    if images:
        observation |= {IMAGES + name: Feature((3, 96, 96), "uint8") for name in ("front", "wrist")}
    spec = PolicySpec(observation, env.spec.action, env.spec.dt, 1, 8, 4, env.spec.tasks)
    policy = DiffusionPolicy(
        spec,
        Normalizer.from_limits(observation, spec.action),
        network=partial(ResidualMLP, width=256),
        finetuned_steps=5,
        prediction="epsilon",
    )
    return DPPO(policy.to(device), minibatch=minibatch, **{**OPTIONS, **options})


def rollout(algo: DPPO, chunks: int) -> tuple[Obs, DenoisingSamples]:
    """Random observations [D 1 ...], chains of the policy, advantages at random."""
    spec, device = algo.policy.spec, algo.clip.device
    obs = {k: torch.randint(0, 256, (chunks, 1, *f.shape), dtype=torch.uint8) if f.dtype == "uint8"
           else torch.randn(chunks, 1, *f.shape) for k, f in spec.observation.items()}  # fmt: skip
    obs = {k: v.to(device) for k, v in obs.items()}
    parts = [algo.explore({k: v[i : i + 64] for k, v in obs.items()}, torch.randn(len(obs[STATE][i : i + 64]),
             *algo.noise_shape))[1] for i in range(0, chunks, 64)]  # fmt: skip
    record = {k: torch.cat([p[k] for p in parts]) for k in parts[0]}
    weight = torch.full((chunks, spec.n_action_steps), 1.0 / spec.n_action_steps, device=device)
    keep = torch.ones(chunks, dtype=torch.bool, device=device)
    advantages = Advantages(keep, *torch.randn(3, chunks).to(device), weight)
    return obs, DenoisingSamples(
        record["cond"], record["x"].flatten(0, 1), record["log_prob"].mean(-1).flatten(), advantages
    )


class Published:
    """The update of the paper's algorithm 1, minibatch by minibatch over (env step × denoising step) pairs."""

    def __init__(self, algo: DPPO) -> None:
        self.algo = copy.deepcopy(algo)
        self.policy, self.learner, self.steps = self.algo.policy, self.algo.learner, self.algo.steps

    def log_prob(self, obs: Obs, batch: DenoisingSamples, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[B] log-probs, and the encoded observations [B C] of the samples."""
        policy, chunk, k = self.policy, rows // self.steps, rows % self.steps
        with torch.no_grad():  # the encoder is frozen
            cond = policy.encode({name: v[chunk] for name, v in obs.items()})
        index = k + len(policy.times) - self.steps
        x = batch.x[rows + chunk]
        mean, std = policy.mean_std(x, policy.finetuned(x, policy.times[index], cond), index)
        count = policy.spec.n_action_steps
        found = gaussian_log_prob(batch.x[rows + chunk + 1][:, :count], mean[:, :count], std.clamp_min(0.1))
        return found.mean((-1, -2)), cond

    def update(self, obs: Obs, batch: DenoisingSamples) -> None:
        learner, size = self.learner, self.learner.config.minibatch
        every = torch.arange(len(batch.log_prob), device=batch.log_prob.device)
        with torch.no_grad():
            old = torch.cat([self.log_prob(obs, batch, rows)[0] for rows in every.split(size)])
        for _ in range(learner.config.epochs):
            for rows in every[torch.randperm(len(every), device=every.device)].split(size):
                chunk, k = rows // self.steps, rows % self.steps
                log_prob, cond = self.log_prob(obs, batch, rows)
                advantage = batch.advantages.advantage[chunk] * self.algo.discount[k]
                loss, _ = clipped_loss(log_prob - old[rows], advantage, self.algo.clip[k])
                value = nn.functional.mse_loss(learner.estimator.network(cond)[:, 0], batch.advantages.target[chunk])
                learner.optimizer.zero_grad(set_to_none=True)
                learner.estimator.optimizer.zero_grad(set_to_none=True)
                (loss + 0.5 * value).backward()
                nn.utils.clip_grad_norm_(learner.parameters, learner.config.grad_norm)
                nn.utils.clip_grad_norm_(learner.estimator.parameters, learner.config.grad_norm)
                learner.optimizer.step()
                learner.estimator.optimizer.step()


def seconds(work: Any) -> float:
    began = perf_counter()
    work()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return perf_counter() - began


def update_speed(
    env: Any, *, images: bool, chunks: int, minibatch: int, rounds: int, device: torch.device, scale: int
) -> Evidence:
    chunks, minibatch = chunks * scale, minibatch * scale
    ours = make(env, images=images, minibatch=minibatch, device=device)
    theirs = Published(ours)
    obs, batch = rollout(ours, chunks)
    pairs = []
    for i in range(rounds + 1):  # the first round warms up
        a = seconds(lambda: theirs.update(obs, batch))
        done: dict[str, float] = {}
        b = seconds(lambda: done.update(ours.update(batch, progress=0.0)))  # noqa: B023
        steps = ours.learner.config.epochs * max(1, round(len(batch.log_prob) / minibatch))
        if done["actor_steps"] != steps:
            raise RuntimeError(f"ours took {done['actor_steps']:.0f} of {steps} actor steps: the sides did unlike work")
        pairs += [(a, b)] if i else []
    found = bootstrap([[a / b] for a, b in pairs], statistic=statistics.median)
    plain, fast = (statistics.median(side) for side in zip(*pairs, strict=True))
    about = f"published {plain:.2f} s, ours {fast:.2f} s; {chunks} chunks × K'=5, minibatch {minibatch}, 5 epochs"
    setting = ("image" if images else "state") + where(device) + (f"/x{scale}" if scale > 1 else "")
    return measured(id="dppo_update_speed", setting=setting, metric="ratio", interval=found,
                    notes=f"{about}, {torch.get_num_threads()} threads")  # fmt: skip


def update_profile(
    env: Any, *, images: bool, chunks: int, minibatch: int, rounds: int, device: torch.device, scale: int
) -> list[Evidence]:
    """Shares of our update's seconds; see above."""
    algo = make(env, images=images, minibatch=minibatch * scale, device=device)
    _, batch = rollout(algo, chunks * scale)
    learner = algo.learner
    spent = dict.fromkeys(("loss", "optimiser", "critic"), 0.0)

    def timed(name: str, work: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            began = perf_counter()
            try:
                return work(*args, **options)
            finally:
                spent[name] += perf_counter() - began

        return run

    algo.loss = timed("loss", algo.loss)  # type: ignore[method-assign]
    learner.optimizer.step = timed("optimiser", learner.optimizer.step)  # type: ignore[method-assign]
    learner.estimator.learn = timed("critic", learner.estimator.learn)  # type: ignore[method-assign]
    algo.update(batch, progress=0.0)
    spent.update(dict.fromkeys(spent, 0.0))
    whole = sum(seconds(lambda: algo.update(batch, progress=0.0)) for _ in range(rounds))
    spent["backward"] = whole - sum(spent.values())
    setting, about = "image" if images else "state", f"of {whole / rounds:.2f} s, mean of {rounds} updates"
    return [measured(id="dppo_update_speed", setting=f"{setting}/{name}", metric="share", interval=s / whole,
                     notes=f"{s / rounds:.3f} s {about}") for name, s in spent.items()]  # fmt: skip


def where(device: torch.device) -> str:
    """What is added to a setting measured on a GPU."""
    return "" if device.type == "cpu" else f"/{device.type}"


class LogLines:
    """Tracker and checkpoints at once: keeps the metrics, saves nothing."""

    requested = False

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append(metrics)

    @contextmanager
    def progress(self, total: int, description: str) -> Any:
        yield self

    def update(self, step: int, **numbers: float) -> None: ...
    def save(self, step: int, **state: Any) -> None: ...
    def latest(self) -> None: ...


def iteration_split(env: Any, iterations: int, device: torch.device) -> list[Evidence]:
    lines, algo = LogLines(), make(env, images=False, minibatch=MINIBATCH, device=device, epochs=EPOCHS)

    def run(iterations: int) -> None:
        on_policy(algo=algo, env=HistoryEnv(env, 1), tracker=lines, checkpointer=lines, evaluate=None,
                  rollout_steps=ROLLOUT, total_steps=env.num_envs * ROLLOUT * iterations)  # fmt: skip

    run(iterations + 1)
    taken = {k: statistics.median(row[f"train/{k}_s"] for row in lines.rows[1:])
             for k in ("collect", "returns", "update", "env", "act")}  # fmt: skip
    whole = taken["collect"] + taken["returns"] + taken["update"]
    size = f"{env.num_envs} envs × {ROLLOUT} steps, " + ("CPU alone" if device.type == "cpu" else str(device))
    shares = {k: (taken[k], f"{taken[k]:.2f} s of {whole:.2f} s") for k in ("collect", "returns", "update")}
    shares["collect"] = (taken["collect"], shares["collect"][1] + f"; of it env {taken['env']:.2f} s, policy "
                                           f"{taken['act']:.2f} s")  # fmt: skip
    if device.type == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run(1)
        busy = sum(e.self_device_time_total for e in profile.key_averages()) / 1e6
        shares["gpu_idle"] = (whole - busy, f"kernels take {busy:.3f} s of {whole:.2f} s")
    return [
        measured(id="dppo_iteration_split", setting=k + where(device), metric="share", interval=spent / whole,
                 notes=f"{notes}; {size}")
        for k, (spent, notes) in shares.items()
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast")
    parser.add_argument("--record", action="store_true", help="write into docs/results")
    parser.add_argument("--threads", type=int, help="torch's")
    parser.add_argument("--scale", type=int, default=1, help="times as many chunks and samples a minibatch")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    small, device, scale = options.quick, options.device, options.scale
    env = sim.make("pick", num_envs=8 if small else 128, seed=0)
    sizes = ((False, 64, 2560, 2560, 7), (True, 16, 256, 500, 5))
    found = [
        update_speed(
            env, images=images, chunks=few if small else chunks, minibatch=minibatch, rounds=2 if small else rounds,
            device=device, scale=scale,
        )
        for images, few, chunks, minibatch, rounds in sizes
    ]  # fmt: skip
    if device.type == "cpu":
        for images, few, chunks, minibatch, rounds in sizes:
            found += update_profile(
                env, images=images, chunks=few if small else chunks, minibatch=minibatch, rounds=2 if small else rounds,
                device=device, scale=scale,
            )  # fmt: skip
    found += iteration_split(env, 1 if small else 5, device)
    for row in found:
        print(json.dumps(asdict(row), ensure_ascii=False))
    if options.record:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
