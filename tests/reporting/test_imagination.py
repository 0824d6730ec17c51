"""The report's sections about imagination, from files written by hand."""

from __future__ import annotations

import json
from pathlib import Path

from robopolicy.reporting.imagination import _differing, imagination
from robopolicy.reporting.run_reader import read_run

SUCCESS = {"precision": 0.98, "early": 0.015, "recall": 0.9, "episodes": 60, "positives": 20}
TRUST = {"flagged_episodes": 0.05, "spearman_uncertainty_error": 0.61}
OPEN_LOOP = {
    "1": {"model": 0.01, "linear": 0.02, "copy_last": 0.04, "windows": 9},
    "50": {"model": None, "linear": None, "copy_last": None, "windows": 0},
}


def side(x: list[float], success: bool | None) -> dict[str, object]:
    return {"state": [x, [0.0] * len(x)], "uncertainty": [[0.1] * len(x)], "success": success}


def write(run: Path) -> None:
    run.mkdir()
    episode = {"seed": 7, "real": side([0.0, 1.0, 2.0], True), "imagined": side([0.0, 0.5], False)}
    report = {"names": ["<x>", "y"], "bound": 0.3, "dt": 0.1, "kind": "policy", "model": "world", "episodes": [episode],
            "open_loop": OPEN_LOOP, "success": SUCCESS, "trust": TRUST, "stuck": "5 steps: y", "data": {}}  # fmt: skip
    gate = [
        {"step": 0, "accepted": True, "reason": "accepted: the first policy", "imagined": [0.5, 0.4, 0.6],
         "kept": [0.5, 0.4, 0.6], "gain": None, "uncertain": 0.02, "true": [0.45, 0.3, 0.6]},
        {"step": 100, "accepted": False, "reason": "refused: <b>worse</b>", "imagined": [0.3, 0.2, 0.4],
         "kept": [0.5, 0.4, 0.6], "gain": [-0.2, -0.3, -0.1], "uncertain": 0.4, "true": None},
    ]  # fmt: skip
    rounds = [{"round": 1, "real_steps": 480, "real_steps_total": 480, "imagined": [0.9, 0.8, 1.0],
               "true": [0.5, 0.3, 0.7], "gap": 0.4, "imagined_refitted": [0.6, 0.5, 0.7],
               "reason": "taken back: the model promised too much"}]  # fmt: skip
    for name, data in (("world_model_report", report), ("gate", gate), ("rounds", rounds)):
        (run / f"{name}.json").write_text(json.dumps(data))


def test_all_that_a_run_in_imagination_left(tmp_path: Path) -> None:
    write(tmp_path / "dreamt")
    page = "".join(imagination([read_run(tmp_path / "dreamt")]))
    for title in ("What was kept", "Rounds", "Real and imagined", "The world model"):
        assert f"<h2>{title}</h2>" in page
    assert "0 of 1 updates were accepted" in page and "refused: &lt;b&gt;worse&lt;/b&gt;" in page and "<b>" not in page
    assert "&lt;x&gt;" in page and "<x>" not in page, "names of a dataset cannot inject code"
    assert "taken back: the model promised too much" in page and "<td class=n>+40<" in page
    assert "seed 7 · real: success · imagined: failure" in page
    assert "<tr><td class=n>1<td class=n>0.0100<td class=n>0.0200<td class=n>0.0400" in page
    assert "<tr><td class=n>50<" not in page, "no episode was that long"
    assert "no better than copied<dd>5 steps: y" in page
    assert "precision 0.980, early alarms 0.015, recall 0.900" in page


def test_pictures_that_were_imagined(tmp_path: Path) -> None:
    write(tmp_path / "dreamt")
    file = tmp_path / "dreamt" / "world_model_report.json"
    report = json.loads(file.read_text())
    assert "data:image/png" not in "".join(imagination([read_run(tmp_path / "dreamt")]))
    report["episodes"][0]["strips"] = {"<front>": "iVBORw0="}
    none = {"mse": None, "psnr": None}
    report["pictures"] = {"observation.images.front": {
        "5": {"windows": 9, "model": {"mse": 0.001, "psnr": 30.04}, "copy_last": {"mse": 0.01, "psnr": 20.0}},
        "50": {"windows": 0, "model": none, "copy_last": none},
    }}  # fmt: skip
    file.write_text(json.dumps(report))
    page = "".join(imagination([read_run(tmp_path / "dreamt")]))
    assert (
        'src="data:image/png;base64,iVBORw0="' in page and "&lt;front&gt;: real above" in page and "<front>" not in page
    )
    assert "<h3>front: signal to noise" in page
    assert "<tr><td class=n>5<td class=n>30.0 dB<td class=n>20.0 dB" in page and page.count(" dB<td") == 1


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert imagination([read_run(tmp_path / "plain")]) == []
    (tmp_path / "plain" / "gate.json").write_text("{torn")
    assert "gate.json" in "".join(imagination([read_run(tmp_path / "plain")]))


def test_the_page_shows_the_gates_decision(tmp_path: Path) -> None:
    """With its bounds and the lines that `gate` prints; a decision with unknown keys is named as damaged."""
    run = tmp_path / "offline"
    run.mkdir()
    decision = {"accepted": False, "gain": 0.04, "low": -0.01, "high": 0.09, "level": 0.9, "episodes": 75,
                "without_run": ["candidate"]}  # fmt: skip
    (run / "decision.json").write_text(json.dumps(decision))
    page = "".join(imagination([read_run(run)]))
    assert "<h2>The gate</h2>" in page and "refused: the value changes by +0.0400 (-0.0100 to +0.0900 at 90%" in page
    assert "candidate: no run lies beside this policy" in page and "<svg" not in page
    (run / "decision.json").write_text(json.dumps({**decision, "estimator": "world_model", "gain": 0.5}))
    page = "".join(imagination([read_run(run)]))
    assert "+50.0 points" in page and "<svg" in page
    (run / "decision.json").write_text(json.dumps({**decision, "<b>": 1}))
    page = "".join(imagination([read_run(run)]))
    assert "Not shown" in page and "decision.json" in page and "<b>" not in page


def test_numbers_that_differ_most_come_first() -> None:
    """In deviations: x differs by 1 of a spread of 0.82 over its two steps, y by 30 of a spread of 82."""
    real, imagined = ({"state": s} for s in ([[0, 1, 2], [0, 100, 200]], [[1, 2], [30, 130]]))
    episode = {"real": real, "imagined": imagined}
    assert _differing([episode], episode) == [0, 1]
    imagined["state"][1] = [150, 250]
    assert _differing([episode], episode) == [1, 0]
