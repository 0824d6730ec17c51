from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from robopolicy.cli.report import report
from robopolicy.core.errors import ConfigError, DataError
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.mp4 import Mp4Writer
from robopolicy.evaluation.video import INDEX
from robopolicy.policies.find import policy_digest
from robopolicy.reporting.films import films
from robopolicy.reporting.html_report import sampled_cells, write_report
from robopolicy.reporting.run_reader import Video, read_run
from robopolicy.reporting.templates import asset
from robopolicy.utils.provenance import write_provenance
from robopolicy.utils.storage import MANIFEST
from tests.datasets.conftest import ACTION, OBSERVATION, episode
from tests.evaluation.points import make_rows


class Page(HTMLParser):
    """Tags with attributes, the text outside scripts, and whatever asks for another resource."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.html = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.inside = ""
        self.data = ""
        self.feed(self.html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = "json" if dict(attrs).get("id") == "episodes" else tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "json":
            self.data += data
        elif self.inside not in ("script", "style"):
            self.text += data

    @property
    def requests(self) -> list[str]:
        found = [v for _, a in self.tags for k, v in a.items() if k in ("src", "href", "srcset", "poster", "data")]
        return found + re.findall(r"url\(([^)]*)\)|@import", self.html)


def complete_run(folder: Path, *, films: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    make_rows([True] * 40 + [False] * 60, policy="bc").save(folder / "episodes-base.csv")
    make_rows([True] * 95 + [False] * 5, policy="rl").save(folder / "episodes-refined.csv")
    make_rows([True] * 9 + [False], policy="rl-best", split=1).save(folder / "episodes-validation.parquet")
    (folder / "config.yaml").write_text("task: pick\nnote: </pre><script>alert(1)</script>\n")
    (folder / "spec.json").write_text('{"version": 1}')
    lines = [{"step": s, "wall_s": s / 10, "train/seconds": s / 11, "train/loss": 1 / (s + 1),
              "eval/success_rate": min(1.0, s / 900)} for s in range(0, 1000, 100)]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 10')
    write_provenance(folder, ["robopolicy", "train", "task=pick"])
    index = []
    for i in range(films):
        with Mp4Writer(folder / "videos" / f"{i:02d}.mp4", fps=10) as writer:
            writer.add(np.random.default_rng(i).integers(0, 255, (64, 64, 3), dtype=np.uint8))
        index.append({"file": f"{i:02d}.mp4", "kind": "single", "label": "refined", "seed": i,
                      "outcome": "success" if i == 0 else "failure"})  # fmt: skip
    (folder / "videos" / INDEX).write_text(json.dumps(index)) if films else None
    return folder


def test_a_complete_page(tmp_path):
    page = Page(write_report(complete_run(tmp_path / "run"), tmp_path / "report.html"))
    assert all(r.startswith("data:video/mp4;base64,") for r in page.requests) and len(page.requests) == 3
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page.html)  # the SVG namespace is a name, not a link
    for text in ("40.0%", "95.0%", "+55.0 points", "refined is better", "robopolicy train task=pick", "task: pick"):
        assert text in page.text, text
    assert "95% CI 30.9 – 49.8" in page.text  # Wilson, 40/100
    assert "10.0% to" not in page.text
    kinds = [a["data-kind"] for t, a in page.tags if t == "figure"]
    assert kinds == ["failure", "failure", "success"]
    assert sum(1 for t, _ in page.tags if t == "svg") >= 4
    table = json.loads(page.data)
    assert len(table["rows"]) == 210 and table["columns"][:2] == ["evaluation", "seed"]
    assert isinstance(table["rows"][0][1], str)  # a 64-bit seed does not fit a JavaScript number
    assert "metrics.jsonl: 1 unreadable line left out" in page.text


def test_a_refinement_shows_its_base_its_demonstrations_and_its_warm_up(tmp_path):
    data = tmp_path / "demonstrations"
    with DatasetWriter(data, observation=OBSERVATION, action=ACTION, dt=0.1, tasks=("pull", "unused", "push")) as to:
        to.add_episode(**episode(0, 7))
    with Mp4Writer(data / "videos" / "observation.images.front" / "chunk-000" / "file-000.mp4", fps=10) as film:
        film.add(np.zeros((64, 64, 3), dtype=np.uint8))
    base, run = complete_run(tmp_path / "bc", films=0), complete_run(tmp_path / "refined", films=0)
    page = Page(write_report(run, tmp_path / "r.html"))
    assert "Learned from" not in page.text and "warm-up" not in page.text, "nothing says what it was made from"
    config = f"task: {{name: pick}}\nbase: {base}\ndataset: {data}\nloop: {{warmup_steps: 300}}\n"
    (run / "config.yaml").write_text(config)
    page = Page(write_report(run, tmp_path / "r.html"))
    for text in ("Learned from", "demonstrations", "frames on average", "loss", "warm-up"):
        assert text in page.text, text
    assert page.html.count('class="begin"') == 2, "over steps and over minutes"
    (base / "config.yaml").write_text(f"dataset: {data}\n")
    for both in ([base, run], [run, base]):
        assert Page(write_report(both, tmp_path / "r.html")).text.count("frames on average") == 1, "the dataset of both"
    assert len([r for r in page.requests if r.startswith("data:video")]) == 1, "the demonstrations' film"
    (run / "inputs.json").write_text(json.dumps({"dataset": "of another recording"}))
    assert "frames on average" not in Page(write_report(run, tmp_path / "r.html")).text, "it was recorded again since"
    (run / "inputs.json").unlink()
    (data / "meta" / "info.json").write_text("[")
    assert "frames on average" not in Page(write_report(run, tmp_path / "r.html")).text


def test_intervals_are_drawn_for_wide_and_for_narrow_screens(tmp_path):
    page = Page(write_report(complete_run(tmp_path / "run", films=0), tmp_path / "r.html"))
    drawn = [a.get("class") for t, a in page.tags if t == "div" and a.get("class") in ("broad", "narrow")]
    assert drawn == ["broad", "narrow"] * 2, "the difference, and every evaluation"
    assert "@media(max-width:700px)" in page.html


def test_names_cannot_inject_code(tmp_path):
    run = complete_run(tmp_path / "run", films=0)
    evil = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'
    rows = make_rows([True, False], policy=evil)
    type(rows)(rows.frame.assign(task=evil, env=evil)).save(run / "episodes-evil.csv")
    page = Page(write_report(run, tmp_path / "r.html", title=evil))
    assert [t for t, _ in page.tags if t in ("script", "img")] == ["script", "script"]  # rows and our own code
    assert not any(k.startswith("on") for _, a in page.tags for k in a)


def test_films_are_bounded_in_size(tmp_path):
    run = complete_run(tmp_path / "run")
    size = max(p.stat().st_size for p in (run / "videos").glob("*.mp4"))
    page = Page(write_report(run, tmp_path / "r.html", max_video_mib=1.5 * size / 2**20))
    assert len(page.requests) == 1
    assert "2 films did not fit into this page: 02.mp4, 00.mp4" in page.text  # the success went last


def test_evaluations_of_several_tasks_name_theirs(tmp_path):
    for name, env in (("one", "point"), ("other", "line")):
        rows = make_rows([True, False])
        EpisodeTable(rows.frame.assign(env=env)).save(tmp_path / name / "episodes.csv")
    one, both = (Page(write_report([tmp_path / n for n in names], tmp_path / "report.html")).html
                 for names in (("one",), ("one", "other")))  # fmt: skip
    assert "<th>env" in both and "<td>line" in both and '"seed","env",' in both
    assert "<th>env" not in one and '"env"' not in one


def test_a_continued_run_shows_its_last_command_to_copy_and_those_before_it(tmp_path):
    folder = complete_run(tmp_path / "run", films=0)
    for word in ("loop.steps=20", "loop.steps=20", "loop.steps=30"):
        write_provenance(folder, ["robopolicy", "train", "task=pick", word])
    page = Page(write_report(folder, tmp_path / "report.html"))
    assert "<pre>robopolicy train task=pick loop.steps=30</pre>" in page.html
    assert page.html.count("robopolicy train task=pick loop.steps=20") == 1, "the same command again is no other start"
    begun = page.html.partition("<dt>begun by<dd>")[2].partition("<dt>")[0]
    assert begun.index("robopolicy train task=pick ·") < begun.index("loop.steps=20 ·")
    (folder / "provenance.json").write_text(json.dumps({"command": "x", "earlier": [1, {"command": 2}]}))
    assert "2 ·" in Page(write_report(folder, tmp_path / "report.html")).html


def test_whatever_is_missing_is_said(tmp_path):
    empty = tmp_path / "empty"
    (empty / "checkpoints").mkdir(parents=True)
    page = Page(write_report(empty, tmp_path / "r.html"))
    assert "No evaluated episodes yet" in page.text
    for piece in ("config.yaml", "spec.json", "metrics.jsonl", "provenance.json", "episodes*.csv", "videos/"):
        assert piece in page.text
    (empty / "episodes.csv").write_text("seed,env\n1,a\n")
    (empty / "spec.json").write_text("[")
    assert [m for m in read_run(empty).missing if "digest" in m or "JSON object" in m] != []
    with pytest.raises(DataError, match="no such run directory"):
        write_report(tmp_path / "nowhere", tmp_path / "r.html")
    with pytest.raises(ConfigError, match=r"is no run directory, which holds config\.yaml, "):
        report(run_dir=tmp_path / "empty" / "checkpoints")


def test_rows_of_weights_that_are_gone_are_set_aside(tmp_path):
    """Also where the run was renamed, or its checkpoints were removed and it was trained again."""
    run = tmp_path / "renamed"
    policy = run / "checkpoints" / "step_0000000300" / "policy"
    policy.mkdir(parents=True)
    for name in (MANIFEST, "policy.json"):
        (policy / name).write_text("{}")
    digest = policy_digest(policy)[:12]
    for played, aside in ((f"step_0000000150@{digest}", True), ("step_0000000900@0123456789ab", True),
                           ("step_0000000300@0123456789ab", True),
                          (f"step_0000000300@{digest}", False), ("step_0000000300", False)):  # fmt: skip
        make_rows([True, False], policy=f"before/{played}").save(run / "episodes.csv")
        found = read_run(run)
        assert found.evaluations[0].aside == aside, played
        assert any("which is not the newest checkpoint. Evaluate again" in text for text in found.missing) == aside


def test_one_evaluation_alone(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    make_rows([True] * 97 + [False] * 3).save(run / "episodes.csv")
    page = Page(write_report(run, tmp_path / "r.html"))
    assert "97.0%" in page.text and "Success on 100 test episodes" in page.text
    assert "McNemar" not in page.text


def test_several_runs_and_named_headline(tmp_path):
    runs = [complete_run(tmp_path / name, films=0) for name in ("seed0", "seed1")]
    page = Page(write_report(runs, tmp_path / "r.html", names=("seed1/base", "seed0/refined")))
    assert "seed0/refined is better" in page.text and "4 more evaluations are below" in page.text
    with pytest.raises(DataError, match="no evaluation named 'best'"):
        write_report(runs, tmp_path / "r.html", names=("best", "seed0/base"))


def test_more_than_two_runs_are_listed_not_compared(tmp_path):
    """The first and the last run of a list may be training seeds of two algorithms."""
    runs = [tmp_path / name for name in ("old-s0", "old-s1", "new-s0", "new-s1")]
    for i, run in enumerate(runs):
        run.mkdir()
        make_rows([True] * (99 - 20 * i) + [False] * (1 + 20 * i)).save(run / "episodes.csv")
    page = Page(write_report(runs, tmp_path / "r.html"))
    assert "4 runs. Compare two with robopolicy compare a=… b=…" in page.text
    assert "McNemar" not in page.text and all(rate in page.text for rate in ("99.0%", "79.0%", "59.0%", "39.0%"))
    assert "old-s1 is better" not in page.text
    page = Page(write_report(runs[:2], tmp_path / "r.html"))
    assert "old-s0 is better" in page.text
    (runs[2] / "config.yaml").write_text(f"base: {runs[1]}\n")
    page = Page(write_report(runs, tmp_path / "r.html"))
    assert "old-s1 is better" in page.text and "2 more evaluations are below" in page.text
    (runs[3] / "config.yaml").write_text(f"base: {runs[1]}\n")
    assert "McNemar" not in Page(write_report(runs, tmp_path / "r.html")).text


def test_regressions_are_shown_first_and_improvements_beside_them(tmp_path):
    videos = []
    for kind, outcome in (
        ("single", "success"), ("single", "failure"), ("pair", "failure | failure"), ("pair", "failure | success"),
        ("pair", "success | failure"),
    ):  # fmt: skip
        path = tmp_path / f"{len(videos)}.mp4"
        path.write_bytes(b"x")
        videos.append(Video(path, kind, "", outcome, 1))
    tiles, _ = films(videos, max_bytes=100)
    assert [t.kind for t in tiles] == ["regression", "improvement", "pair", "failure", "success"]
    assert [t.pair for t in tiles] == [True, True, True, False, False]


def test_evaluations_that_cannot_be_paired_are_not(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    make_rows([True, False]).save(run / "episodes-base.csv")
    make_rows([True, False], digest="other").save(run / "episodes-refined.csv")
    page = Page(write_report(run, tmp_path / "r.html"))
    assert "McNemar" not in page.text


def test_of_many_episodes_the_grid_shows_each_kind_in_proportion(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    before, after = ([i < 2500 for i in range(3000)], [i < 2300 or i >= 2999 for i in range(3000)])
    make_rows(before).save(run / "episodes-base.csv")
    make_rows(after).save(run / "episodes-refined.csv")
    page = Page(write_report(run, tmp_path / "r.html"))
    shown = {kind: page.html.count(f'<rect class="{kind} f"') for kind in ("soft", "good", "bad", "dim")}
    assert shown == {"soft": 1534, "good": 1, "bad": 133, "dim": 332}
    assert "The squares are 2,000 of 3,000 episodes, each kind in proportion." in page.text
    few = sampled_cells([[1] * 9, [2], [], [3]], most=4)
    for sizes in ((500, 500, 500, 501), (666, 666, 666, 4), (3000, 1, 0, 2)):
        cells = sampled_cells([[(kind, i) for i in range(n)] for kind, n in enumerate(sizes)])
        assert len(cells) == len(set(cells)) == 2000
    assert few == [1, 1, 2, 3] and sampled_cells([[1], [2]], most=2) == [1, 2]


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_outcomes_can_be_read_and_told_apart_in_light_and_in_dark(dark):
    sheet = str(asset("report.css"))
    themes = [dict(re.findall(r"--(\w+):(#\w+)", block)) for block in re.findall(r":root{([^}]*)}", sheet)]
    theme = {k: "#" + 2 * v[1:] if len(v) == 4 else v for k, v in themes[dark].items()}
    assert "figcaption em.dim{color:var(--muted)}" in sheet
    assert contrast(theme["muted"], theme["paper"]) >= 4.5
    share = float(re.findall(r"color-mix\(in srgb,var\(--c\) (\d+)%,var\(--ink\)\)", sheet)[0]) / 100
    for name in ("ok", "no"):
        mixed = [round(share * int(theme[name][i : i + 2], 16) + (1 - share) * int(theme["ink"][i : i + 2], 16))
                 for i in (1, 3, 5)]  # fmt: skip
        assert contrast("#" + "".join(f"{v:02x}" for v in mixed), theme["paper"]) >= 4.5, name
    assert ".grid svg.plot .dim{fill:transparent;stroke:var(--muted)" in sheet, "both fail: an outline"
    assert ".legend li.dim::before{background:none;box-shadow:inset 0 0 0 1.5px var(--muted)}" in sheet


def test_a_damaged_config_is_named(tmp_path):
    run = complete_run(tmp_path / "run", films=0)
    (run / "config.yaml").write_text("a: [")
    page = Page(write_report(run, tmp_path / "r.html"))
    assert "config.yaml is damaged" in page.text.partition("Missing")[2]
