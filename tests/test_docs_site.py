"""README and docs are short, reachable, and build as a site without a warning (scripts/docs_shape.py, mkdocs.yml)."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
from pathlib import Path

import pytest
import yaml

import robopolicy
from scripts import docs_shape
from scripts.promise_list import programs

ROOT = Path(__file__).parents[1]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= docs_shape.README_LINES


def test_sentences_are_short() -> None:
    means = {docs_shape.name(p): docs_shape.mean_words(p.read_text()) for p in docs_shape.pages()}
    assert {page: mean for page, mean in means.items() if mean > docs_shape.SENTENCE_WORDS} == {}


def test_every_page_is_two_clicks_from_the_start() -> None:
    far = {page: count for page, count in docs_shape.max_clicks().items() if count > docs_shape.CLICKS}
    assert far == {}


def test_the_menu_of_the_site_names_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    menu = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    named = [page for entry in menu for page in leaves(entry)]
    assert sorted(named) == sorted(p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md"))


def leaves(entry: object) -> list[str]:
    """Pages of an entry of the menu."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in leaves(part)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_python_of_the_front_pages_calls_functions_that_exist(page: str) -> None:
    (code,) = (code for kind, code in programs((ROOT / page).read_text()) if kind == "python")
    calls = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "rp"
    ]
    assert len(calls) >= 4
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        function = getattr(robopolicy, call.func.attr)
        inspect.signature(function).bind(*call.args, **{str(k.arg): k.value for k in call.keywords})


@pytest.mark.timeout(300)
def test_the_site_builds_without_a_warning() -> None:
    if importlib.util.find_spec("mkdocs") is None:
        assert not os.environ.get("CI"), "mkdocs is missing: ./scripts/setup.sh dev"
        pytest.skip("needs mkdocs: ./scripts/setup.sh dev")
    assert docs_shape.build() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("One two three.", 3.0),
        ("One two. Three four five six.", 3.0),
        ("- one two\n- three four five six", 3.0),
        ("# A heading of five words\n\nOne two three.", 3.0),
        ("| a | table |\n\nOne two three.", 3.0),
        ("```bash\na b c d e f\n```\n\nOne two `three four five`.", 3.0),
        ("> Quoted one two.", 3.0),
        ("One [two](a/long/link.md) three.", 3.0),
        ("One two\nthree.", 3.0),
        ("", 0.0),
    ],
)
def test_words_of_a_sentence(text: str, words: float) -> None:
    assert docs_shape.mean_words(text) == words


def test_clicks_are_counted(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("[a](docs/index.md)")
    (tmp_path / "docs" / "index.md").write_text("[b](b.md#part) [web](https://a.b/c.md)\n```\n[d](d.md)\n```\n")
    (tmp_path / "docs" / "b.md").write_text("[c](c.md)")
    for page in ("c", "d"):
        (tmp_path / "docs" / f"{page}.md").write_text("")
    found = docs_shape.max_clicks(tmp_path)
    assert found == {"docs/index.md": 1, "docs/b.md": 2, "docs/c.md": 3, "docs/d.md": docs_shape.UNREACHED}


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs mkdocs: ./scripts/setup.sh dev")
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[gone](gone.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: a\n")
    assert any("gone.md" in line for line in docs_shape.build(tmp_path))
