"""What scripts/imagination.py makes of finished runs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from robopolicy.reporting.result_rows import ALL
from scripts.imagination import BASES, CHUNKS, SEEDS, Arm, ImaginationTrial, evidence, main
from tests.evaluation.points import make_rows


def arm(true: int, imagined: int | None, *, steps: int = 0, curve: dict[int, float] | None = None) -> Arm:
    base, after, dreamt = (make_rows([i < n for i in range(20)]) for n in (8, true, imagined or 0))
    return Arm(base, after, None if imagined is None else dreamt, wall_s=2.0, env_steps=steps, frames=1_000,
               commit="abc", curve=curve or {})  # fmt: skip


def test_rates_differences_and_gaps() -> None:
    found = {("reach", 0): {"dppo": arm(16, 12), "model_free": arm(10, None)}}
    rows = {(r.id, r.setting, r.metric): r for r in evidence(found)}
    assert rows["imagined_dppo", "reach/base", "success_rate"].value == 0.4
    assert rows["imagined_dppo", "reach/dppo", "difference"].value == pytest.approx(0.4)
    assert rows["imagined_dppo", "reach/dppo", "success_rate"].env_steps == 0, "no step of the task"
    gap = rows["imagination_gap", "reach/accepted", "gap"]
    assert gap.value == pytest.approx(0.2) and gap.low == 0.0 and 0.4 < gap.high < 0.5 and gap.episodes == 40
    assert ("imagination_gap", "reach/model_free", "gap") not in rows
    apart = next(r for r in evidence({("reach", 0): {"free": arm(2, 20)}}) if r.metric == "gap")
    assert apart.setting == "reach/free" and 0.6 < apart.low < apart.value == pytest.approx(0.9)


def test_some_seeds_never_stand_for_all() -> None:
    runs = {("reach", seed): {"dppo": arm(16, 12)} for seed in (0, 1, 2)}
    assert {r.setting for r in evidence(runs) if r.seeds == ALL} == {"reach/base", "reach/dppo"}
    runs.pop(("reach", 2))
    assert not [r for r in evidence(runs) if r.seeds == ALL]


def test_real_steps_for_the_same_success() -> None:
    curve = {0: 0.4, 5_000: 0.7, 10_000: 0.85, 15_000: 0.8}

    def rows(true: int) -> dict:
        arms = {"dppo": arm(true, 12), "real": arm(18, None, steps=15_000, curve=curve)}
        return {(r.id, r.metric): r for r in evidence({("reach", 0): arms})}

    found = rows(16)
    assert found["imagination_real_steps", "env_steps_to_target"].value == 10_000, "the first evaluation at 80%"
    assert found["imagination_real_steps", "ratio"].value == 10.0
    never = rows(18)["imagination_real_steps", "ratio"]
    assert never.value == 15.0 and "not reached in 15,000" in never.notes
    assert not any(r.id == "imagination_real_steps" for r in evidence({("reach", 0): {"dppo": arm(16, 12)}}))


def test_rows_of_another_kind_of_model_are_its_own() -> None:
    """Under names of their own, which no bar of the ensemble's takes for one of its tasks."""
    found = list(evidence({("reach", s): {"dppo": arm(16, 12)} for s in SEEDS}, model=CHUNKS))
    assert {(r.id, r.setting) for r in found} == {
        ("imagined_dppo", "reach/base"), ("imagined_dppo", "reach/dppo_chunk_transformer"),
        ("imagination_gap", "reach/accepted_chunk_transformer"),
    }  # fmt: skip
    assert {r.setting for r in found if r.seeds == ALL} == {"reach/base", "reach/dppo_chunk_transformer"}


def test_another_kind_of_model_is_trained_in_a_folder_of_its_own(tmp_path: Path) -> None:
    options = Namespace(out=tmp_path, jobs=2)
    plain = ImaginationTrial(options, BASES["pick"], 0)
    other = ImaginationTrial(options, BASES["pick"], 0, model=CHUNKS, about=("loop.steps=5",))
    assert (plain.folder.name, plain.about) == ("pick-0", ())
    assert (other.folder.name, other.about) == ("pick-0-chunk_transformer", (f"world_model={CHUNKS}", "loop.steps=5"))
    assert plain.start == other.start, "both refine the same base"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--world-model", "nonsense"], "invalid choice: 'nonsense'"),
        (["--world-model", CHUNKS], "--arms ['model_free']: learn without a model"),
        (["--record", "loop.steps=5"], "loop.steps=5: rows are of the ensemble as configs/ has it"),
    ],
)
def test_what_would_be_recorded_as_something_else_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert said in capsys.readouterr().err
