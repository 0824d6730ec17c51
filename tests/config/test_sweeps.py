"""config/sweeps.py: which values a command line sweeps, which jobs they make, and what is refused before any begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from robopolicy.config.sweeps import _TAKEN, Values, launch, read_sweep
from robopolicy.core.errors import UsageError


def test_values_are_read_in_each_of_hydras_forms() -> None:
    found = read_sweep(
        ["task=reach", "seed=range(0,3)", "algo.lr=1e-4,0.01", "policy=glob(gauss*)", "rounds=choice(1,2)"]
    )
    assert found.values == {
        "seed": ("0", "1", "2"), "algo.lr": ("0.0001", "0.01"), "policy": ("gaussian",), "rounds": ("1", "2")
    }  # fmt: skip
    assert len(found.jobs()) == 12


def test_a_job_has_one_value_in_place_of_each_sweep() -> None:
    found = read_sweep(["task=reach", "seed=0,1", "++algo.lr=1,2", "policy.state=[a,b]"])
    assert found.jobs()[1] == {"seed": "0", "algo.lr": "2"}
    assert found.overrides(found.jobs()[1]) == ["task=reach", "seed=0", "++algo.lr=2", "policy.state=[a,b]"]


def test_a_value_that_is_given_twice_is_one_job() -> None:
    assert read_sweep(["seed=0,0,1"]).jobs() == [{"seed": "0"}, {"seed": "1"}]


def test_every_value_is_checked_before_the_combinations() -> None:
    found = read_sweep(["seed=0,1", "num_envs=2,4"])
    assert [tuple(job.values()) for job in found.to_check()] == [("0", "2"), ("1", "2"), ("0", "4"), ("1", "4")]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["seed=0", "task=reach"], "nothing is swept"),
        (["seed=0,1", "seed=3"], "seed: is swept"),
        (["network@policy.network=mlp,unet1d"], "without '@'"),
        (["policy=glob(nothing*)"], "sweeps over nothing"),
        (["seed=range(3,0)"], "sweeps over nothing. Give values, e.g. seed=0,1"),
        (["algo.lr=interval(0,1)"], "algo.lr=interval(0,1)"),
        (["seed=0,1", "hydra/sweeper=ax"], " hydra-ax-sweeper"),
        (["seed=0,1", "hydra/launcher=jblib"], "Did you mean 'joblib'?"),
        (["seed=0,1", "hydra.run.dir=x"], "hydra.run.dir=x"),
        (["seed=0,1", "hydra.launcher._target_=os.system"], "hydra.launcher._target_"),
        (["seed=0,1", "hydra.sweeper.params.seed=7"], "hydra.sweeper.params"),
        (["seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_jbos=2"], "Did you mean 'n_jobs'?"),
        (["seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=two"], "hydra.launcher.n_jobs=two"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(overrides: list[str], named: str) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    with pytest.raises(UsageError) as error:
        read_sweep(overrides)
    assert named in str(error.value)


def test_targets_of_plugins_stay_as_hydra_has_them() -> None:
    assert _TAKEN.match("hydra.launcher.n_jobs") and _TAKEN.match("hydra.sweeper.sampler.seed")
    assert not _TAKEN.match("hydra.sweeper.sampler._target_")


def test_submitits_processes_can_load_what_they_are_sent(tmp_path: Path) -> None:
    """They import neither the sweep's plug-ins nor, here, anything of robopolicy but the task."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    launch(read_sweep(["seed=0,1", "hydra/launcher=submitit_local"]), tmp_path / "sweep", len)  # type: ignore[arg-type]


def test_hydra_hands_every_job_its_values(tmp_path: Path) -> None:
    folder, seen = tmp_path / "it's a sweep", list[Values]()
    found = read_sweep(["algo=bc,residual", "algo.lr=0.1,0.2", "dataset='a b',c"])
    launch(found, folder, seen.append)  # type: ignore[arg-type]
    assert seen == found.jobs() and len(seen) == 8
    assert [path.name for path in folder.iterdir()] == ["multirun.yaml"]


def test_an_optimiser_takes_intervals_and_results(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    found = read_sweep(["algo.lr=interval(0.0,1.0)", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3",
                        "hydra.sweeper.n_jobs=1"])  # fmt: skip
    assert list(found.to_check()) == [{"algo.lr": "0.0"}, {"algo.lr": "1.0"}]
    first, again = list[Values](), list[Values]()
    launch(found, tmp_path / "a", lambda values: first.append(values) or float(values["algo.lr"]))
    launch(found, tmp_path / "b", lambda values: again.append(values) or float(values["algo.lr"]))
    assert len(first) == 3 and first == again
