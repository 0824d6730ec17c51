"""Success of a policy while a chunk learner imitates alone, without any critic.

    python scripts/chunk_imitation.py [--seeds 0 1 2] [--bases pick vla] [--record] [algo.average=1 …]

The learners of `algo=pa_rl` and `algo=aloe` run as their presets set them, but for the choice of chunks. So a fall is
the fault of the imitation. `pa_rl` imitates samples of the policy itself, neither chosen nor improved. `aloe` imitates
executed chunks of the demonstrations and of the base, all with weight 1. `demonstrations` imitates those alone.
Each evaluation plays the same validation starts with the same noise. `worst_dip_points` is the largest fall below the
first one. Bases are made as in scripts/experiments.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torch import Tensor

from robopolicy.algos.chunk_critic import ChunkLearner
from robopolicy.buffers.chunk_replay_buffer import ChunkBatch
from robopolicy.buffers.recorded_rollouts import batch_sources
from robopolicy.buffers.replay_buffer import BatchSampler
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.instantiate import arguments_for, build
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.policies.base import SEEN
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, write
from robopolicy.training.builders import build_algorithm, build_env, build_evaluation, load_demonstrations, wrap_env
from robopolicy.training.off_policy import OffPolicyCollector, collect
from robopolicy.training.off_policy_state import OffPolicyState
from robopolicy.training.policy_builders import build_policy_for, load_base
from robopolicy.training.train import train
from robopolicy.training.train_config import TrainConfig
from robopolicy.utils.threads import set_threads
from scripts.experiment_plan import BASES, Base
from scripts.experiments import task_of, train_base

ROOT, ID = Path(__file__).resolve().parents[1], "chunk_imitation"
IMITATED = {"pick": BASES["pick"], "flow": BASES["pick_flow"], "vla": BASES["vla_rough"]}
SOURCES = {"pa_rl": (), "aloe": (), "demonstrations": ("loop.demo_fraction=1",)}  # overrides of each
EVALUATED = (0, 400, 800, 1600)  # policy updates


def learn(base: Base, folder: Path, run: Path, source: str, seed: int, overrides: list[str]) -> dict[int, EpisodeTable]:
    """Return the validation episodes after each number of updates in EVALUATED."""
    algo = "pa_rl" if source == "demonstrations" else source
    arguments = [f"algo={algo}", *task_of(base), f"base={folder / 'bc'}", f"dataset={folder / 'data'}", f"seed={seed}",
                 f"run_dir={run}", "validation_episodes=200", "threads=1", *SOURCES[source], *overrides]  # fmt: skip
    config = TrainConfig(**arguments_for(train, compose(find_verb("train"), arguments)))
    env = build_env(config)
    began = load_base(config, env, None)
    demos = load_demonstrations(config, began)
    policy = build_policy_for(config, env=env, base=began, demonstrations=demos, resumed=None)
    learner = build_algorithm(config, policy, demonstrations=demos)
    online = build(config.loop["replay"], "replay")(num_envs=env.num_envs, spec=policy.spec)
    state = OffPolicyState(
        algo=learner, replay=online, collector=OffPolicyCollector(learner, wrap_env(config, env, policy, None))
    )
    state.generator.manual_seed(seed)
    state.begin(None)
    while state.steps < config.loop["warmup_steps"]:
        collect(state, warmup=True)
    shares = {"demo_fraction": (demos, config.loop["demo_fraction"])}
    sampler = BatchSampler(batch_sources(online, shares, policy, config.loop["batch_size"]), state.generator)
    evaluate, found = build_evaluation(config), {}
    batches: Iterator[ChunkBatch] = sampler.draw(max(EVALUATED))
    for done in range(max(EVALUATED) + 1):
        if done in EVALUATED:
            evaluate(policy, done)
            found[done] = EpisodeTable.load(run / "evaluations" / f"{done:09d}.parquet")
            print(f"{run.name} {done}: {found[done].summary()}", flush=True)
        if done < max(EVALUATED):
            learner.imitate(*examples(source, learner, next(batches).to(learner.device)))
    return found


def examples(source: str, learner: ChunkLearner, batch: ChunkBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return observations [B C], chunks [B H Da] and weights [B H] that the learner would imitate without a critic."""
    cond, weight = batch.obs[SEEN], batch.keep.float()
    if source == "pa_rl":
        chunk = learner.sample(cond, 1)[:, 0]
        return cond, chunk, weight.new_ones(chunk.shape[:2])
    return cond, learner.executed(batch), weight


def rows_of(name: str, source: str, seed: int, found: dict[int, EpisodeTable], base: Base) -> list[Evidence]:
    """Return the success after the last update, and the largest fall below the beginning."""
    rates = {done: 100 * table.success_rate().value for done, table in found.items()}
    curve = ", ".join(f"{rate:.1f}% at {done}" for done, rate in rates.items())
    about = f"{base.demos} demonstrations, expert noise {base.expert_noise:g}; {curve} updates"
    dip = round(rates[0] - min(rates.values()), 3)
    return [
        of_rows(found[max(found)], id=ID, setting=f"{name}/{source}", seed=seed, notes=about),
        measured(id=ID, setting=f"{name}/{source}", metric="worst_dip_points", interval=dip, seeds=seed,
                 episodes=(len(found) - 1) * len(found[0]), notes=curve),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of `robopolicy train`, e.g. algo.average=1")
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="run directories go here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="training seeds")
    parser.add_argument("--bases", nargs="+", choices=IMITATED, default=["pick", "flow"])
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--record", action="store_true", help=f"add to docs/results/{ID}.json")
    options = parser.parse_args()
    if options.record and options.overrides:
        parser.error("--record: the presets are recorded. Leave the overrides away.")
    set_threads(1)
    for name in options.bases:
        for seed in options.seeds:
            base, rows = IMITATED[name], list[Evidence]()
            folder = options.out.resolve() / "bases" / f"{base.name}-{seed}"
            train_base(options.out, base, seed, 1)
            for source in options.sources:
                run = options.out.resolve() / ID / f"{name}-{source}-{seed}"
                found = learn(base, folder, run, source, seed, options.overrides)
                rows += rows_of(name, source, seed, found, base)
                print(json.dumps({"setting": rows[-1].setting, "seed": seed, "dip": rows[-1].value}), flush=True)
            if options.record:
                print(*write(rows, root=ROOT / "docs" / "results"), file=sys.stderr)


if __name__ == "__main__":
    main()
