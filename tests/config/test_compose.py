"""config.py: what composes, and what is refused in one clear sentence."""

from __future__ import annotations

import errno
import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose, group_options
from robopolicy.config.hydra_configs import config_folder, hydra_config
from robopolicy.config.overrides import RENAMED
from robopolicy.config.registry import names as registered
from robopolicy.config.sweeps import read_sweep
from robopolicy.core.errors import ConfigError, UsageError
from robopolicy.core.trees import flatten
from robopolicy.datasets.metadata import RecordingMeta
from robopolicy.runs.inputs import same_input
from robopolicy.runs.run_dir import check_same, dump, has_stage, open_run, read_config
from tests.fakes import POINT_ACTION

OPTIONS = {group: sorted(options) for group, options in group_options().items()}
TRAIN = find_verb("train")


def train(*overrides: str, **kw: Any) -> dict[str, Any]:
    return compose(TRAIN, ["run_dir=runs/x", *overrides], **kw)


@pytest.mark.parametrize("group", sorted(OPTIONS))
def test_every_option_of_every_group_composes_and_fits_its_constructors(group: str) -> None:
    for option in OPTIONS[group]:
        try:
            if group in ("suite", "variants"):  # the only verb that takes one
                compose(find_verb("eval"), [f"{group}={option}", "checkpoint=runs/x"])
            else:
                train(f"{group}={option}")
        except UsageError as error:  # a suite that is not installed here says so
            if "which is not installed: ./scripts/setup.sh" not in str(error):
                raise


def test_groups_combine_freely_there_is_no_file_per_pair() -> None:
    for task, algo in itertools.product(["peg", "reach"], OPTIONS["algo"]):
        config = compose(TRAIN, [f"task={task}", f"algo={algo}", "run_dir=x"], checked=False)
        assert config["task"]["task"] == task
        assert config["loop"]["_target_"] in registered("loop")
    names = [f.stem for f in config_folder().rglob("*.yaml") if f.parent.name != "experiment"]  # a recorded pair each
    assert not [n for n in names if any(t in n and n != t and not n.startswith(t) for t in OPTIONS["task"])]


def test_an_experiment_chooses_groups_and_values_and_the_command_line_changes_both() -> None:
    chosen = ["experiment=metaworld_relative", "task.name=push-v3"]
    config = train(*chosen)
    assert config["task"] == {"_target_": "metaworld", "name": "push-v3", "relative": True}
    assert (config["algo"]["_target_"], config["algo"]["penalty_final"], config["num_envs"]) == ("residual", 0.03, 8)
    assert train("loop.total_steps=9", *chosen)["loop"]["total_steps"] == 9, "in any order"
    grpo = train("algo=grpo", "experiment=vla_chain")
    assert (grpo["algo"]["_target_"], grpo["algo"]["epochs"]) == ("grpo", 6)
    with pytest.raises(UsageError, match=r"experiment=metaworld_relativ: no such option.*metaworld_relative"):
        train("experiment=metaworld_relativ")
    with pytest.raises(UsageError, match=r"`eval` has no group 'experiment'"):
        compose(find_verb("eval"), ["experiment=metaworld", "checkpoint=runs/x"])


def test_experiments_of_the_user_build_on_ours(tmp_path: Path) -> None:
    (folder := tmp_path / "experiment").mkdir()
    head = "# @package _global_\n# Mine.\ndefaults:\n  - residual_grasp\n  - _self_\n  - override /task: pick\n"
    (folder / "mine.yaml").write_text(head + "algo:\n  tau: 0.02\n")
    config = train("experiment=mine", config_dirs=[tmp_path])
    assert (config["algo"]["tau"], config["algo"]["exploration_std"]) == (0.02, 0.1)
    assert config["task"]["task"] == "pick"
    (folder / "mine.yaml").write_text(head + "algo:\n  tua: 0.02\n")
    with pytest.raises(UsageError, match=r"algo\.tua: unknown key.*'tau'"):
        train("experiment=mine", config_dirs=[tmp_path])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "algo:\n  tau: 0.1\n",
            r"^experiment: its file holds keys of the whole config\. Begin it with the line `# @pack",
        ),
        ("# @package _global_\ndefaults:\n  - override /algo: residul\n", r"algo/residul, .* not there.*'residual'"),
        ("# @package _global_\ndefaults:\n  - override /algo: ppo\n  - metaworld\n", "Overrides must be at the end"),
        ("# @package _global_\nalgo: {tau: [1\n", r"mine\.yaml.*line 3"),
    ],
)
def test_a_mistake_in_an_experiment_is_named(tmp_path: Path, text: str, said: str) -> None:
    (folder := tmp_path / "experiment").mkdir()
    (folder / "mine.yaml").write_text(text)
    with pytest.raises(UsageError, match=said):
        train("experiment=mine", config_dirs=[tmp_path])


def test_every_option_says_what_it_is() -> None:
    unexplained = [f"{g}/{o}" for g, options in group_options().items() for o, about in options.items() if not about]
    assert not unexplained, f"a YAML file begins with a comment that says what it is: {unexplained}"


def test_values_need_not_be_in_the_yaml() -> None:
    assert "horizon" not in flatten(train("task=pick"))["task.task"]
    assert train("task=pick", "task.horizon=60")["task"]["horizon"] == 60


def test_network_is_an_alias_into_the_policy() -> None:
    config = train("network=unet1d", "network.dims=[8,16]")
    assert config["policy"]["network"]["_target_"] == "unet1d"
    assert config["policy"]["network"]["dims"] == [8, 16]
    assert train("policy=flow", "network=transformer")["policy"]["network"]["_target_"] == "transformer"


def test_settings_are_python_values(tmp_path: Path) -> None:
    path = tmp_path / "a folder, with = signs"
    config = compose(TRAIN, settings={"run_dir": path, "seed": 3, "threads": None})
    assert config["run_dir"] == str(path)
    assert config["seed"] == 3
    config = compose(TRAIN, settings={"run_dir": path, "loop.steps": 7, "loop.batch_size": 3})
    assert (config["loop"]["steps"], config["loop"]["batch_size"]) == (7, 3)
    with pytest.raises(ConfigError, match=r"^lop: unknown key"):
        compose(TRAIN, settings={"run_dir": path, "lop.steps": 7})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["runn_dir=y"], r"^runn_dir: unknown key; `train` does not take it\. Did you mean 'run_dir'"),
        (["task=pik"], r"^task=pik: no such option of the group 'task'\. Did you mean 'pick'"),
        (["algo=residual_quick"], r"no such option.*'residual"),
        (["policy.horizonn=8"], r"^policy\.horizonn: unknown key; .*DiffusionPolicy does not take it"),
        (["policy.horizon=8"], r"unknown key.* There is horizon\.$"),
        (["policy.n_denoising_steps=8"], r"Did you mean 'denoising_steps'"),
        (["algo.lr=abc"], r"^algo\.lr: expected float > 0, found 'abc' \(str\)"),
        (["loop.steps=1.5"], r"^loop\.steps: expected int ≥ 1, found 1\.5"),
        (["seed=true"], r"^seed: expected int of 64 bits, found True"),
        (["loop=20"], r"^loop: expected config node, found 20 \(int\)\. Set its keys one by one: loop\.<key>=<value>$"),
        (["loop=[1]"], r"^config: loop=\[1\]: Cannot merge DictConfig with ListConfig"),
        (["loop=null"], r"^loop: expected config node, found null"),
        (["tracker=[1]"], r"^tracker"),
        (["policy.prediction=eps"], r"^policy\.prediction: expected 'epsilon' \| 'sample' \| 'v_prediction'"),
        (["policy.prediction=epsilom"], r"^policy\.prediction: expected .*Did you mean 'epsilon'\?$"),
        (
            ["policy={steps: 2}"],
            r"^policy=\{steps: 2\}: no such option .*\. Set its keys one by one: policy\.<key>=<value>\.$",
        ),
        (["network.widht=3"], r"^policy\.network\.widht: unknown key.*'width'"),
        (["task=pick", "task.horizn=3"], r"^task\.horizn: unknown key.*'horizon'"),
        (["task.horizon=3"], r"^task: must be chosen: task=<one of drawer"),
        (["algo.lr=abc", "policy.clip=x"], r"(?s)^2 problems.*policy\.clip.*algo\.lr"),
        (["seed"], r"^'seed' is not an override; expected key=value"),
        (["--seed=3"], r"is not an override"),
        (["seed=1,2"], r"one run takes one value"),
        (["policy=gaussian", "network=mlp"], r"nothing here takes a network"),
        (["hydra.job.name=x"], r"Hydra's own settings have no effect"),
        (["policy._target_=os.system"], r"^policy\._target_: "),
        (["policy._target_=difusion"], r"^policy\._target_: .*'diffusion'"),
        (["task=pick", "task.horizon={_target_: native, task: pick}"], r"^task\.horizon\._target_: "),
        (["seed=${nowhere}"], r"nowhere"),
        (
            ["n_obs_steps=0", "horizon=0", "n_action_steps=0"],
            r"(?s)^3 problems.*n_obs_steps: expected int ≥ 1, found 0",
        ),
        (["num_envs=0"], r"^num_envs: expected int ≥ 1, found 0"),
        (["keep_checkpoints=0"], r"^keep_checkpoints: expected int ≥ 1, found 0"),
        (["validation_episodes=-1"], r"^validation_episodes: expected int ≥ 0, found -1"),
        (["threads=0"], r"^threads: expected int ≥ 1 \| null, found 0"),
        (["device=tpu"], r"^device: expected 'cpu', or 'cuda'"),
        (["algo.weight_decay=-1"], r"^algo\.weight_decay: expected float ≥ 0, found -1"),
    ],
)
def test_mistakes_get_one_clear_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train(*overrides)


@pytest.mark.parametrize(
    ("expected", "overrides"),
    [
        ("int ≥ 1", ["algo.critic.heads=0", "algo.critic.width=0", "algo.target_subset=0", "algo.policy_delay=0",
                     "loop.replay.n_step=0", "loop.total_steps=0", "loop.batch_size=0"]),
        ("int ≥ 1 | null", ["loop.log_every=0"]),
        ("int ≥ 0", ["algo.critic.depth=-1", "algo.penalty_steps=-1", "loop.warmup_steps=-1",
                     "loop.critic_only_updates=-1", "loop.eval_every=-1", "loop.save_every=-1"]),
        ("float > 0", ["policy.scale=0", "algo.actor_lr=0", "algo.critic_lr=-1", "algo.grad_clip=0",
                       "algo.penalty_final=.inf", "loop.updates_per_step=0"]),
        ("float ≥ 0", ["policy.gripper_scale=-1", "policy.widen=-1", "algo.target_noise=-1", "algo.penalty=-1",
                       "algo.target_noise_clip=-1", "algo.exploration_std=-1", "algo.warmup_std=-1"]),
        ("float above 0 and up to 1", ["algo.tau=1.5", "algo.tau=0", "algo.average=0"]),
        ("float from 0 to 1", ["loop.demo_fraction=-0.5"]),
        ("float from 0 to 1 | null", ["loop.replay.gamma=1.1"]),
        ("[int ≥ 1, …]", ["policy.hidden=[256,0]"]),
    ],
)  # fmt: skip
def test_numbers_of_the_residual_have_a_range(expected: str, overrides: list[str]) -> None:
    for override in overrides:
        key = override.split("=")[0]
        with pytest.raises(UsageError, match=f"^{re.escape(f'{key}: expected {expected}, found')}"):
            train("algo=residual", override)


@pytest.mark.parametrize("key", ["demos", "bc_steps", "rl_steps", "episodes", "videos", "expert_noise", "threads"])
def test_numbers_of_the_quickstart_have_a_range(key: str) -> None:
    with pytest.raises(UsageError, match=rf"^{key}: expected (int|float) .*, found -1"):
        compose(find_verb("quickstart"), [f"{key}=-1"])


def test_missing_values_and_groups_of_other_verbs() -> None:
    with pytest.raises(UsageError, match=r"^run_dir: needs a value\. Add run_dir=<Path>"):
        compose(TRAIN, [])
    with pytest.raises(UsageError, match=r"`demos` has no group 'policy'\. "):
        compose(find_verb("demos"), ["policy=flow", "out=x"])
    with pytest.raises(UsageError, match=r"^task: must be chosen: task=<one of "):
        compose(find_verb("demos"), ["out=x"])
    with pytest.raises(UsageError, match=r"unknown verb 'tain'\. Did you mean 'train'"):
        find_verb("tain")


def test_groups_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.yaml").write_text("# My task.\n_target_: native\ntask: pick\nhorizon: 33\n")
    assert train("task=mine", config_dirs=[tmp_path])["task"]["horizon"] == 33
    (strange := tmp_path / "c (1), x=y 'é'").mkdir()
    (tmp_path / "task").rename(strange / "task")
    assert train("task=mine", config_dirs=[strange])["task"]["horizon"] == 33
    (strange / "task").rename(tmp_path / "task")
    assert group_options([tmp_path])["task"]["mine"] == "My task."
    with pytest.raises(UsageError, match="no such folder"):
        train(config_dirs=[tmp_path / "nothing"])
    with pytest.raises(UsageError, match=r"^algo=mine: .*--config-dir <folder that holds algo/mine.yaml>; in Python"):
        train("algo=mine")


def test_a_renamed_option_names_the_new_one() -> None:
    changelog = (Path(__file__).parents[2] / "docs" / "changelog.md").read_text()
    for before, now in RENAMED.items():
        group, _, old = before.partition("=")
        row = next(line for line in changelog.splitlines() if line.startswith(f"| {before}"))
        assert f"`{group}={now}`" in row and now in group_options()[group] and old not in group_options()[group]
        with pytest.raises(UsageError, match=rf"^{before}: .* It is called {group}={now} now\.$"):
            train(before)


def test_config_files_of_the_world_do_not_change_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.yaml").write_text("boo: 1\n")
    (tmp_path / "configs" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert "boo" not in train()


# --- run directories ------------------------------------------------------------------------------------------------


def test_a_run_keeps_its_config(tmp_path: Path) -> None:
    config = train("task=pick", "loop.steps=100")
    with open_run(tmp_path, config):
        assert read_config(tmp_path) == config
        (tmp_path / "checkpoints" / "step_0000000001").mkdir(parents=True)
    check_same(tmp_path, config)
    check_same(tmp_path, {**config, "run_dir": "moved", "tracker": {"_target_": "x"}})
    check_same(tmp_path, train("task=pick", "loop.steps=200"))  # extended
    with pytest.raises(ConfigError, match=r"(?s)begun with another config:\n  - algo.lr: was 0.001, now 0.1\n"
                                          r"  - loop.steps: was 100, now 50\n"):  # fmt: skip
        check_same(tmp_path, train("task=pick", "loop.steps=50", "algo.lr=0.1"))
    other = train("task=pick", "loop.steps=100", "task.horizon=9")
    told = r"task\.horizon: was absent, which means 80, now 9"
    with pytest.raises(ConfigError, match=told), open_run(tmp_path, other):
        pass
    assert read_config(tmp_path) == config, "a refused command leaves the run as it was"


def test_a_run_of_a_version_that_knew_fewer_options_goes_on(tmp_path: Path) -> None:
    now = train("algo=world_model_pictures", "dataset=x")
    before = {**now, "world_model": {k: v for k, v in now["world_model"].items() if k != "precision"}}
    with open_run(tmp_path, before):
        (tmp_path / "checkpoints" / "step_0000000001").mkdir(parents=True)
    check_same(tmp_path, now)
    other = train("algo=world_model_pictures", "dataset=x", "world_model.precision=bfloat16")
    with pytest.raises(ConfigError, match=r"world_model\.precision: was absent, which means 'float32', now 'bfloat16'"):
        check_same(tmp_path, other)
    with open_run(tmp_path / "new", now):
        (tmp_path / "new" / "checkpoints" / "step_0000000001").mkdir(parents=True)
    check_same(tmp_path / "new", before)


def test_a_run_that_came_to_nothing_does_not_keep_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typo, right = train("dataset=typo"), train("dataset=right")
    monkeypatch.setattr("sys.argv", ["robopolicy", "train", "dataset=typo"])
    with open_run(tmp_path, typo):
        (tmp_path / "evaluations").mkdir()
        (tmp_path / "wandb_id").touch()
    monkeypatch.setattr("sys.argv", ["robopolicy", "train", "dataset=right"])
    with open_run(tmp_path, right):
        assert read_config(tmp_path) == right
        assert "dataset=right" in (tmp_path / "provenance.json").read_text(), "the report shows this command"
        left = {p.name for p in tmp_path.iterdir()} - {".lock"}
        assert left == {"config.yaml", "provenance.json"}, "nothing of the first is taken for the second's"
        (tmp_path / "checkpoints" / "step_0000000001").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"dataset: was 'right', now 'typo'"), open_run(tmp_path, typo):
        pass


def test_a_quickstart_keeps_its_config_from_its_first_stage_on(tmp_path: Path) -> None:
    config, other = ({"out": str(tmp_path), "demos": n} for n in (60, 30))
    meta = tmp_path / "data" / "meta"
    meta.mkdir(parents=True)
    (meta / "info.json").write_text("{}")
    RecordingMeta(POINT_ACTION, 0.1, ("go",), ()).save(tmp_path / "data")  # interrupted: no stage is done
    for chosen in (config, other):
        with open_run(tmp_path, chosen, begun=has_stage):
            assert read_config(tmp_path) == chosen
    RecordingMeta(POINT_ACTION, 0.1, ("go",), (), complete=True).save(tmp_path / "data")
    with pytest.raises(ConfigError, match="demos: was 30, now 60"), open_run(tmp_path, config, begun=has_stage):
        pass
    (meta / "info.json").unlink()
    (tmp_path / "bc" / "checkpoints" / "step_0000000001").mkdir(parents=True)
    with pytest.raises(ConfigError, match="demos: was 30, now 60"), open_run(tmp_path, config, begun=has_stage):
        pass


def test_a_config_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("server: 1\n")
    with pytest.raises(ConfigError, match=r"config\.yaml that no run of robopolicy wrote"), open_run(tmp_path, train()):
        pass
    assert (tmp_path / "config.yaml").read_text() == "server: 1\n"


@pytest.mark.parametrize(
    ("algo", "key", "warns"),
    [
        (["algo=bc"], "loop.steps", True),
        (["algo=dppo"], "loop.total_steps", True),
        (["algo=ppo"], "loop.total_steps", True),
        (["algo=policy_flow"], "loop.total_steps", True),
        (["algo=grpo"], "loop.total_steps", True),
        (["algo=rpd", "algo.lr_schedule=constant"], "loop.total_steps", True),
        (["algo=dppo", "algo.lr_schedule=constant"], "loop.total_steps", False),
        (["algo=dppo", "algo.lr_schedule=constant", "algo.progressive=0.5"], "loop.total_steps", True),
        (["algo=bc", "algo.steps=100"], "loop.steps", False),
        (["algo=bc", "algo.steps=100"], "algo.steps", True),
        (["algo=residual"], "loop.total_steps", False),
    ],
)
def test_more_steps_than_the_schedule_began_with_are_warned_of(
    tmp_path: Path, algo: list[str], key: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    short, long = (train(*algo, f"{key}={n}") for n in (100_000, 200_000))
    for config in (short, short, long):
        caplog.clear()
        with open_run(tmp_path, config):
            (tmp_path / "checkpoints" / "step_0000000001").mkdir(parents=True, exist_ok=True)
        assert bool(caplog.records) == (warns and config is long)
    if warns:
        assert f"{key} was 100000, now 200000. Learning follows a schedule over it" in caplog.text


def test_a_run_belongs_to_one_process(tmp_path: Path) -> None:
    config = train()
    refused = pytest.raises(ConfigError, match="another process is at work in it")
    with open_run(tmp_path, config), refused, open_run(tmp_path, config):
        pass
    with open_run(tmp_path, config):
        pass


def test_damaged_or_lost_configs_are_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step_0000000001").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"holds checkpoints but no config\.yaml"):
        check_same(tmp_path, {})
    (tmp_path / "config.yaml").write_text("just text\n")
    with pytest.raises(ConfigError, match="is damaged"):
        check_same(tmp_path, {})
    assert dump({"a": {"b": [1]}, "c": None}) == "a:\n  b:\n  - 1\nc: null\n"


def _rows(path: Path, content: bytes) -> Path:
    """As much of a dataset as tells it from others."""
    for name, text in {"meta/info.json": b"{}", "data/chunk-000/file-000.parquet": content}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(text)
    return path


def test_a_dataset_may_lie_elsewhere_when_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, run = _rows(tmp_path / "data", b"one"), tmp_path / "run"
    with open_run(run, train(f"dataset={data}")):
        (run / "checkpoints" / "step_0000000001").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for spelling in ("data", "./data", f"{tmp_path}/run/../data"):
        check_same(run, train(f"dataset={spelling}"))
    moved = data.rename(tmp_path / "moved")
    check_same(run, train(f"dataset={moved}"))
    for name, content in {"other": b"two", "empty": b""}.items():
        with pytest.raises(ConfigError, match=r"dataset: was .*, now "):
            check_same(run, train(f"dataset={_rows(tmp_path / name, content)}"))
    assert same_input(run, "world.model", str(tmp_path / "run"), "./run"), "a folder of any kind, spelled otherwise"
    assert not same_input(run, "world.model", str(tmp_path / "run"), "moved")
    with pytest.raises(ConfigError, match="dataset: was"):
        check_same(run, train("dataset=nothing"))


@pytest.mark.parametrize("value", ["[front", "{a: 1", "'it", '"it', "it's", "[1,2]]", "a=b", "${x", "(", "a:{b"])
def test_what_hydra_cannot_read_is_named_by_its_key(value: str) -> None:
    with pytest.raises(UsageError, match=r"^task\.name: ") as found:
        compose(find_verb("train"), [f"task.name={value}"])
    assert not any(word in str(found.value) for word in ("Exception", "viable", "EOF", "++"))


def test_a_key_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match=r"'x\[0\]'"):
        compose(find_verb("train"), ["x[0]=3"])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("loop.total_steps=1,2", "several values given in 'loop.total_steps=1,2'"),
        ("~loop.nothing", "loop.nothing cannot be left out, as it is not there"),
        ("~loop.total_steps=7", "loop.total_steps cannot be left out, as it is 30000"),
        ("nothing@loop=3", "there is no group 'nothing'"),
    ],
)
def test_a_value_that_cannot_be_set_is_named(wrong: str, named: str) -> None:
    with pytest.raises(UsageError, match=re.escape(named)):
        hydra_config("train", ["algo=residual", wrong])


def test_values_of_one_command_do_not_stay_for_the_next() -> None:
    chosen = ["algo=residual", "task=pick"]
    before = hydra_config("train", chosen)
    changed = hydra_config("train", [*chosen, "loop.total_steps=7", "task.more={a: 1}", "~algo.critic.width"])
    assert changed["loop"]["total_steps"] == 7 and changed["task"]["more"] == {"a": 1}
    assert "width" not in changed["algo"]["critic"] and hydra_config("train", chosen) == before


def test_a_group_may_be_given_as_null() -> None:
    verb = find_verb("eval")
    assert compose(verb, ["checkpoint=x", "task=null"])["task"] is None
    assert compose(verb, ["checkpoint=x", "task=pick", "suite=null"])["suite"] is None
    assert (
        compose(find_verb("train"), ["run_dir=x", "dataset=d", "network=null"], checked=False)["policy"]["network"]
        is None
    )


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("robopolicy.runs.folder_lock.fcntl.flock", no_locks)
    with (
        pytest.raises(ConfigError, match=r"run_dir=.*no locks .*Mount it with the option flock"),
        open_run(tmp_path, {}),
    ):
        pass


@pytest.mark.parametrize("place", ["daten/rohé", "~/runs", "two words/größe", "data (2)/a~b", "データ", "a%b#c"])
def test_text_that_can_be_nothing_else_needs_no_quotes(place: str) -> None:
    assert train(f"dataset={place}")["dataset"] == place
    assert read_sweep([f"dataset={place}", "seed=0,1"]).jobs() == [{"seed": "0"}, {"seed": "1"}]


@pytest.mark.parametrize("value", ["a(b", "it's", "a,[b", '"x', "${x", "a=b=[", "x{y"])
def test_text_that_may_be_something_else_is_left_to_the_user(value: str) -> None:
    with pytest.raises(UsageError, match=r"dataset: .*cannot be read|dataset.*quotes|several values"):
        train(f"dataset={value}")


@pytest.mark.parametrize(
    ("value", "read"),
    [("a=b,c", "a=b,c"), ("it's", "it's"), ("[a=b,c]", ["a=b", "c"]), ("[it's,a]", ["it's", "a"])],
)
def test_the_message_about_text_that_cannot_be_read_shows_how_to_give_it(value: str, read: Any) -> None:
    with pytest.raises(UsageError) as found:
        compose(find_verb("train"), [f"cameras={value}"], checked=False)
    (word,) = shlex.split(str(found.value).rpartition("shell's: ")[2])
    assert compose(find_verb("train"), [word, "run_dir=x", "dataset=d"], checked=False)["cameras"] == read
