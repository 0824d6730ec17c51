"""Training a world: from a dataset on disk to an env, resumed in the same bits; what is refused, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.cli.main import main
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.schema import TARGET
from robopolicy.core.errors import CheckpointError, ConfigError, DataError, SpecError
from robopolicy.core.rng import keyed_normal
from robopolicy.core.types import STATE, Obs
from robopolicy.datasets.compatibility import check_same_world
from robopolicy.datasets.demonstrations import record_demos
from robopolicy.datasets.episodes import take
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.envs.grouped_env import GroupedEnv
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.world_models.envs.make_imagined import make
from robopolicy.world_models.envs.starts import starts_of
from robopolicy.world_models.evaluation.imagined_evaluation import ImaginedEvaluation
from robopolicy.world_models.models.state_transform import StateTransform
from robopolicy.world_models.models.world import find_world, load_world, read_spec
from robopolicy.world_models.training.fit import fit
from tests.elsewhere import elsewhere
from tests.fakes import NoTracker, PointEnv, PointPolicy
from tests.world_models.point import FEATURES, walk

MODEL = {TARGET: "ensemble", "heads": 2, "width": 16, "depth": 1, "phases": 2, "unroll": 3,
         "block": 16}  # fmt: skip
SUCCESS = {TARGET: "classifier", "window": 2, "width": 16, "depth": 1, "min_positives": 8}


class Shaky:
    """Goes to the origin with noise, so that some episodes run out of time."""

    expert_noise = 1.0

    def reset(self, mask: torch.Tensor | None, *, episode_seed: torch.Tensor) -> None:
        if mask is None:
            self.seed, self.clock = episode_seed.clone(), torch.zeros_like(episode_seed)
        else:
            self.seed = torch.where(mask, episode_seed, self.seed)
            self.clock = torch.where(mask, 0, self.clock)

    def act(self, obs: Obs) -> torch.Tensor:
        noise = keyed_normal(self.seed, self.clock, (2,))
        self.clock = self.clock + 1
        return (-0.5 * obs[STATE][:, :2] + 0.04 * noise).clamp(-0.1, 0.1)


def record(out: Path, *, episodes: int = 120, seed: int = 0) -> Path:
    env = PointEnv(20, horizon=12)
    record_demos(env=env, expert=Shaky(), episodes=episodes, out=out, only_success=False, run_seed=seed)
    return out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("data") / "play")


def run(run_dir: Path, data: Path | None, /, **changes: Any) -> Any:
    checkpointer = changes.pop("checkpointer", None) or Checkpointer(run_dir)
    given: dict[str, Any] = {
        "world_model": MODEL, "success": SUCCESS, "dataset": data, "incomplete": False, "steps": 30, "batch_size": 16,
        "labelled": 16, "holdout": 0.3, "warmup": 5, "lr": 3e-3, "seed": 0, "device": torch.device("cpu"),
        "tracker": NoTracker(), "checkpointer": checkpointer, "log_every": 10, "save_every": 10,
    }  # fmt: skip
    given |= changes
    result = fit(**given)
    run_dir.mkdir(exist_ok=True)
    (run_dir / "config.yaml").write_text(f"dataset: {data}\nloop: {{data: {{}}, holdout: {given['holdout']}}}\n")
    return result


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "world"
    run(out, data, steps=300, log_every=100, save_every=0)
    return out


class Stopping(Checkpointer):
    """Somebody presses Ctrl-C after update `at`."""

    def __init__(self, run_dir: Path, at: int) -> None:
        super().__init__(run_dir)
        self.at, self.asked = at, 0

    @property
    def requested(self) -> bool:
        self.asked += 1
        return self.asked >= self.at

    @requested.setter
    def requested(self, value: bool) -> None:
        pass


def test_a_trained_world_says_how_good_it_is_and_beats_standing_still(trained: Path) -> None:
    world = load_world(trained)
    report = world.report
    one = report["open_loop"]["1"]
    assert one["windows"] > 10 and one["model"] < 0.8 * one["copy_last"]
    assert report["open_loop"]["50"] == {
        "model": None,
        "likeliest": None,
        "copy_last": None,
        "linear": None,
        "windows": 0,
    }
    assert set(report["success"]) >= {"precision", "recall", "threshold", "positives"}
    assert 0.0 <= report["trust"]["flagged_episodes"] <= 0.5
    counts = report["data"]
    assert sum(part["episodes"] for part in counts.values()) == 120
    assert world.spec.id == "point" and world.spec.horizon == 12 and world.spec.dt == 0.1
    assert report["names"] == ["x", "y", "seed", "t"] and bool(torch.isfinite(world.success.least))


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")  # this meta device holds numbers
def test_it_is_trained_and_resumed_on_another_device(data: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run(here, data, steps=6)
    with elsewhere() as device:
        with pytest.raises(KeyboardInterrupt):
            run(there, data, steps=6, device=device, checkpointer=Stopping(there, 3))
        run(there, data, steps=6, device=device)
    own, other = (load_world(out).state_dict() for out in (here, there))
    assert all(torch.equal(value, other[key]) for key, value in own.items())


def test_the_env_of_a_run_starts_in_its_data_and_reproduces(trained: Path, data: Path) -> None:
    a, b = make(trained, num_envs=5, seed=3, part="all"), make(trained, num_envs=5, seed=3, starts=data)
    assert torch.equal(a.observe()[STATE], b.observe()[STATE]) and a.spec.digest == b.spec.digest
    for _ in range(15):
        x, y = a.step(torch.full((5, 2), 0.05)), b.step(torch.full((5, 2), 0.05))
        assert torch.equal(x.obs[STATE], y.obs[STATE]) and torch.equal(x.ended, y.ended)
    assert make(trained, num_envs=1, start_at="any").spec.digest != a.spec.digest
    assert len(make(trained, num_envs=1, start_at="any").starts) > 3 * len(a.starts)
    seen, held = (make(trained, num_envs=1, part=p).starts.obs[STATE] for p in ("train", "held_out"))
    counts = {name: found["episodes"] for name, found in load_world(trained).report["data"].items()}
    assert len(seen) == counts["train"] and len(held) == counts["calibration"] + counts["validation"] > 20
    assert not (seen[:, None, -1] == held[None, :, -1]).all(2).any()
    assert torch.equal(make(trained, num_envs=1).held_out().obs[STATE], held)
    assert make(trained, num_envs=1, horizon=4).spec.horizon == 4


def test_branches_are_cut_and_begin_anywhere_but_whole_episodes_are_judged(trained: Path) -> None:
    env = make(trained, num_envs=40, seed=3, branch=3)
    assert torch.equal(env.starts.obs[STATE], make(trained, num_envs=1, start_at="any").starts.obs[STATE])
    still = torch.zeros(40, 2)
    steps = [env.step(still) for _ in range(3)]
    going = ~(steps[0].terminated | steps[1].terminated | steps[2].terminated)
    assert not any(bool((s.truncated & going).any()) for s in steps[:2]), "not cut before"
    assert bool(going.any()) and bool(steps[2].truncated[going].all()), "cut, and not at an end: values bootstrap"
    evaluation = ImaginedEvaluation.crossed(env, 20)
    assert evaluation.spec.horizon == 12 and torch.equal(evaluation.starts.obs[STATE], ImaginedEvaluation.crossed(
        make(trained, num_envs=1), 20).starts.obs[STATE])  # fmt: skip
    assert ImaginedEvaluation.crossed(make(trained, num_envs=1, branch=3, horizon=6), 20).spec.horizon == 6
    assert env.spec.digest != make(trained, num_envs=1, start_at="any").spec.digest
    assert env.spec.branches and not evaluation.spec.branches
    assert env.spec.task_horizon == 12 and evaluation.spec.task_horizon is None


def test_branches_are_not_for_everything(trained: Path) -> None:
    for wrong in ({"branch": 12}, {"branch": 6, "horizon": 6}, {"branch": 3, "start_at": "any"}):
        with pytest.raises(ConfigError, match=r"world\.branch=\d+: begins in any state and cuts episodes of"):
            make(trained, num_envs=1, **wrong)
    env = make(trained, num_envs=4, branch=3)
    with pytest.raises(SpecError, match=r"reads 2 frames, and branches begin with one"):
        wrap_for(PointPolicy(n_obs_steps=2), env)
    with pytest.raises(ConfigError, match=r"group_size=2: compares the outcomes of episodes"):
        GroupedEnv(env, 2)
    assert wrap_for(PointPolicy(), env).spec.branches


@pytest.mark.parametrize("pessimism", [0.1, float("nan"), float("-inf")])
def test_a_pessimism_that_is_no_return_is_refused(trained: Path, pessimism: float) -> None:
    with pytest.raises(ConfigError, match=r"world\.pessimism: expected a number of at most 0"):
        make(trained, num_envs=1, pessimism=pessimism)


def test_a_model_does_not_go_on_with_episodes_held_out_that_it_learned_from(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"loop\.holdout=0\.5: .*world held out 0\.3, so it has learned from some"):
        run(tmp_path / "next", data, init=trained, holdout=0.5)


def test_a_world_written_before_branches_were_is_read(trained: Path) -> None:
    said = json.loads((find_world(trained) / "spec.json").read_text())
    spec = load_world(trained).spec
    assert read_spec({k: v for k, v in said.items() if k != "branches"}) == spec and not spec.branches
    with pytest.raises(CheckpointError, match=r"(?s)spec\.json.*- dt: "):
        read_spec({k: v for k, v in said.items() if k != "dt"})


def test_any_start_lies_before_its_episodes_first_success(data: Path) -> None:
    """Also where an episode goes on afterwards; and somebody has to say where a success is."""
    episodes = take(load_episodes(data), torch.arange(120) < 2)
    length, success = episodes.lengths.tolist(), torch.zeros(episodes.num_frames, dtype=torch.bool)
    success[2] = True  # not the last frame
    episodes = replace(episodes, success=success)
    found = starts_of(episodes, 1, where="any").obs[STATE][:, -1]
    wanted = [0, 1, *range(length[0], sum(length))]
    assert torch.equal(found, episodes.obs[STATE][wanted])
    with pytest.raises(ConfigError, match=r"does not say where"):
        starts_of(replace(episodes, outcomes=False), 1, where="any")


def test_interrupted_and_resumed_it_ends_in_the_same_bits(data: Path, tmp_path: Path) -> None:
    run(tmp_path / "whole", data)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", data, checkpointer=Stopping(tmp_path / "cut", at=17))
    assert Checkpointer(tmp_path / "cut").step == 17
    with pytest.raises(CheckpointError, match=r"its training has not ended.*Repeat its command"):
        load_world(tmp_path / "cut")
    run(tmp_path / "cut", data)
    whole, cut = load_world(tmp_path / "whole"), load_world(tmp_path / "cut")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, cut.state_dict()[name]), name
    assert whole.report == cut.report
    run(tmp_path / "whole", data)
    assert sorted(p.name for p in (tmp_path / "whole" / "checkpoints").glob("step_*")) == [
        "step_0000000020", "step_0000000030",
    ], "a finished run is not assessed and saved again"  # fmt: skip


def test_other_data_is_not_taken_for_the_runs_own(data: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", data, checkpointer=Stopping(tmp_path / "run", at=3))
    other = record(tmp_path / "other", seed=1)
    with pytest.raises(CheckpointError, match=r"is not that of the run"):
        run(tmp_path / "run", other)


def test_sources_are_mixed_by_name(data: Path, tmp_path: Path) -> None:
    more = record(tmp_path / "more", seed=1, episodes=40)
    run(tmp_path / "run", data, data={"more": more}, mix_weights={"more": 0.5, "dataset": 0.5}, steps=2)
    assert sum(part["episodes"] for part in load_world(tmp_path / "run").report["data"].values()) == 160


def test_a_model_goes_on_from_the_weights_of_another(trained: Path, data: Path, tmp_path: Path) -> None:
    run(tmp_path / "refit", data, init=trained, steps=1, warmup=0, lr=1e-9)
    before, after = (load_world(p).state_dict() for p in (trained, tmp_path / "refit"))
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-6, rtol=1e-6, equal_nan=True, msg=name)
    with pytest.raises(CheckpointError, match=r"loop\.init="):
        run(tmp_path / "other", data, init=trained, world_model={**MODEL, "depth": 2}, steps=1)


def test_new_data_widens_what_is_believed_and_leaves_the_units() -> None:
    old, new = walk([30] * 4), walk([30] * 4, seed=1)
    new.obs[STATE][:, 0] += 5.0
    transform = StateTransform(FEATURES[STATE], old.action_spec).fit(old)
    mean, low, state = transform.mean.clone(), transform.low.clone(), new.obs[STATE][:1]
    assert transform.outside(state).all()
    transform.widen(new)
    assert not transform.outside(new.obs[STATE]).any() and not transform.outside(old.obs[STATE]).any()
    assert torch.equal(transform.mean, mean) and (transform.low <= low).all()


def test_too_little_to_learn_from(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"too few.*needed 5000 for train \(found \d+\).* lower loop\.success\.min_"):
        run(tmp_path / "a", data, success={**SUCCESS, "min_positives": 5000})
    with pytest.raises(DataError, match=r"\(40 steps\), the longest episode has 12.*world_model\.unroll so that"):
        run(tmp_path / "b", data, world_model={**MODEL, "unroll": 40})
    with pytest.raises(DataError, match=r"calibration: none of the 120 episodes fell to it with loop\.holdout=0\.0"):
        run(tmp_path / "c", data, holdout=0.0)
    with pytest.raises(ConfigError, match=r"dataset: there is no data"):
        run(tmp_path / "d", None)
    with pytest.raises(ConfigError, match=r"width: expected a multiple of 16.*found 50.*Take 64"):
        run(tmp_path / "e", data, world_model={**MODEL, "width": 50})
    with pytest.raises(ConfigError, match=r"world_model\._target_: "):
        run(tmp_path / "f", data, world_model={TARGET: "robopolicy.networks.mlp.Identity", "in_dim": 3})


def test_models_that_are_not_to_be_believed(trained: Path, data: Path, tmp_path: Path) -> None:
    run(tmp_path / "bad", data, steps=1, warmup=0, lr=3.0)
    with pytest.raises(ConfigError, match=r"(?s)not fit to learn in:.*1 steps: error .*world\.even_if_bad=true"):
        make(tmp_path / "bad", num_envs=2)
    assert make(tmp_path / "bad", num_envs=2, even_if_bad=True).num_envs == 2
    with pytest.raises(ConfigError, match=r"^world\.model: needs a value"):
        make(num_envs=2)
    with pytest.raises(CheckpointError, match="no such directory"):
        make(tmp_path / "nothing", num_envs=2)
    (tmp_path / "policy").mkdir()
    with pytest.raises(CheckpointError, match=r"expected a world model \(world\.json\), a policy lies there"):
        find_world(tmp_path)
    folder = find_world(trained)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match=r"does not name its training data\. Add world\.starts=<dataset>"):
        make(copy, num_envs=1)
    meta = json.loads((copy / "world.json").read_text())
    (copy / "world.json").write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(CheckpointError, match=r"world\.json is damaged"):
        load_world(copy)
    from robopolicy.utils.storage import write_manifest

    write_manifest(copy)
    with pytest.raises(CheckpointError, match=r"format 99, expected 4"):
        load_world(copy)


def test_a_world_of_another_task_is_refused(trained: Path) -> None:
    from dataclasses import replace

    spec = make(trained, num_envs=1).spec
    check_same_world(spec, PointEnv(1).spec)
    with pytest.raises(SpecError, match=r"dt: the world model has a step every 0\.1 s, the task every 0\.05 s"):
        check_same_world(spec, replace(PointEnv(1).spec, dt=0.05))
    with pytest.raises(SpecError, match=r"action\.tcp: the world model has 'point', the task has 'hand'"):
        check_same_world(spec, replace(PointEnv(1).spec, action=replace(spec.action, tcp="hand")))


def test_the_command_line_composes() -> None:
    train = find_verb("train")
    config = compose(train, ["run_dir=x", "algo=world_model", "dataset=d", "loop.data.play=p", "world_model.heads=3"])
    assert config["loop"]["data"] == {"play": "p"} and config["world_model"]["heads"] == 3 and "policy" not in config
    config = compose(train, ["run_dir=x", "algo=dppo", "base=b", "world=imagined", "world.model=m", "world.trust=2"])
    assert config["world"]["model"] == "m" and config["world"]["trust"] == 2
    config = compose(find_verb("eval"), ["checkpoint=c", "world=imagined", "world.model=m"])
    assert config["world"]["_target_"] == "imagined"
    with pytest.raises(ConfigError, match=r"world_model\.widht: unknown key.*'width'"):
        compose(train, ["run_dir=x", "algo=world_model", "world_model.widht=3"])


QUIET = ("tracker=quiet", "threads=1")


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """reach: demonstrations in data, a base in bc, and a world model in world."""
    folder = tmp_path_factory.mktemp("reach")
    data = f"dataset={folder / 'data'}"
    demos = ("task=reach", f"out={folder / 'data'}", "episodes=80", "expert_noise=0.4", "only_success=false")
    assert main(["demos", *demos]) == 0
    policy = ("loop.steps=20", "loop.batch_size=16", "loop.save_every=0", "horizon=4", "n_action_steps=2")
    bc = ("task=reach", f"run_dir={folder / 'bc'}", "validation_episodes=0")
    assert main(["train", *bc, data, *policy, *QUIET]) == 0
    model = ("world_model.heads=2", "world_model.width=32", "loop.steps=150", "loop.holdout=0.3",
             "loop.success.min_positives=8")  # fmt: skip
    assert main(["train", "algo=world_model", data, f"run_dir={folder / 'world'}", *model, *QUIET]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["residual", "dppo"])
def test_algorithms_run_in_imagination_unchanged(
    algo: str, reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refinement of a base without the task's env, then evaluation in truth."""
    loop = {
        "residual": ("loop.total_steps=200", "loop.warmup_steps=40", "loop.critic_only_updates=4",
                          "loop.batch_size=16", f"dataset={reach / 'data'}", "loop.demo_fraction=0", "num_envs=8"),
        "dppo": ("loop.total_steps=320", "loop.rollout_steps=10", "algo.epochs=1", "num_envs=8",
                 "policy.finetuned_steps=4", "algo.minibatch=64"),
    }[algo]  # fmt: skip
    world, run = reach / "world", tmp_path / "rl"
    # Its 150 updates are few.
    imagined = ("world=imagined", f"world.model={world}", "world.even_if_bad=true", "world.gate.starts=10")
    refine = (f"algo={algo}", "task=reach", f"base={reach / 'bc'}", f"run_dir={run}", "validation_episodes=8")
    branch = ("world.branch=6",) if algo == "residual" else ()
    assert main(["train", *refine, *imagined, *branch, *loop, *QUIET]) == 0
    assert main(["eval", f"checkpoint={run}", "episodes=4", "split=validation", "videos=0"]) == 0
    assert main(["eval", f"checkpoint={run}", "episodes=4", "split=validation", *imagined]) == 0
    cut = ["eval", f"checkpoint={run}", "episodes=4", "split=validation", *imagined, "world.branch=6"]
    assert main(cut) != 0 and "world.branch: cuts episodes" in capsys.readouterr().err
    assert (run / "episodes-validation.csv").is_file()
    rows = (run / "episodes-imagined-validation.csv").read_text()
    assert rows.count("imagined reach") == 4
    decisions = json.loads((run / "gate.json").read_text())
    assert len(decisions) > 2 and decisions[0]["accepted"] and all(d["true"] is None for d in decisions)
    if algo == "dppo":
        assert main(["report", f"run_dir=[{run},{world}]", "world_model_report.episodes=2"]) == 0
        page = (run / "report.html").read_text()
        titles = ("What was kept (rl)", "Real and imagined (rl)", "Real and imagined (world)", "The world model (rl)")
        assert all(f"<h2>{title}</h2>" in page for title in titles)
        rounds, refit = tmp_path / "rounds", ("rounds=1", "coevolve.episodes=4", "coevolve.refit_steps=5")
        again = ["train", f"algo={algo}", "task=reach", f"base={run}", f"run_dir={rounds}", *imagined, *refit, *QUIET]
        assert main([*again, "coevolve.starts=10", "loop.total_steps=80", "algo.critic_warmup=0", *loop[1:]]) == 0
        (record,) = json.loads((rounds / "rounds.json").read_text())
        assert record["episodes"] == 4 and 0 < record["real_steps"] <= 4 * 100
        model = load_world(rounds / "round_1" / "model")
        assert model.report["data"]["train"]["episodes"] > load_world(world).report["data"]["train"]["episodes"]
        assert main(["eval", f"checkpoint={rounds}", "episodes=4", "videos=0"]) == 0
