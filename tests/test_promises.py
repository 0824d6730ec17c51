"""README and docs promise what is there: commands and options compose, files and links exist, flags are known.

scripts/promises.py runs them too, from the wheel in an empty environment.
"""

from __future__ import annotations

from collections import Counter

import pytest

from robopolicy.cli.verbs import VERBS
from scripts import promise_check, promise_list, promises
from scripts.promise_list import Promise, collect, kind_of, words

PROMISES = collect()
ELSEWHERE = ("which is not installed", "found 'cuda'")  # needs a suite or a GPU that this machine may lack


def broken(kind: str, page: str = "") -> dict[str, str]:
    """{promise: why it does not hold} of a kind."""
    chosen = [p for p in PROMISES if p.kind == kind and page in p.page and (kind != "command" or p.ours)]
    assert chosen
    own: dict[str, list[promise_check.Context]] = {}
    for p in PROMISES:
        if p.ours and (context := promise_check.split(words(p.text))):
            own.setdefault(p.page, []).append(context)
    asked = [(p, {"kind": kind, "text": p.text, "words": words(p.text)}) for p in chosen]
    found = {str(p): promise_check.verdict(question, own.get(p.page, [])) for p, question in asked}
    return {p: why for p, why in found.items() if why and not any(text in why for text in ELSEWHERE)}


def test_every_page_promises_something_and_few_things_are_not_tried() -> None:
    count = Counter(p.page for p in PROMISES)
    assert {str(p.relative_to(promise_list.ROOT)) for p in promise_list.pages()} == set(count)
    commands = [p for p in PROMISES if p.kind == "command"]
    assert sum(bool(p.why_not or p.why_composed) for p in commands) < len(commands) / 2
    assert set(promise_list.VERBS) | {
        "arm camera",
        "arm check",
        "arm new",
        "data check",
        "data import",
        "data view",
        "doctor",
        "push",
    } == set(VERBS)


@pytest.mark.slow
def test_commands_compose() -> None:
    assert broken("command") == {}


@pytest.mark.slow
def test_options_compose_in_a_context_of_their_own() -> None:
    assert broken("option") == {}


@pytest.mark.slow
def test_keys_and_imports_are_known() -> None:
    assert broken("key") | broken("import") == {}


def test_files_and_links_exist() -> None:
    checks = {"path": promises.missing_path, "link": promises.missing_link}
    found = {str(p): why for p in PROMISES if p.kind in checks and (why := checks[p.kind](p))}
    assert found == {}


@pytest.mark.parametrize(
    ("span", "kind"),
    [
        ("robopolicy doctor", "command"), ("eval task=pick episodes=2", "command"), ("algo=dppo", "option"),
        ("'policy.sampling={sampling_steps: 4}' policy.finetuned_steps=4", "option"), ("policy.scale", "key"),
        ("out=", "key"),
        ("scripts/results.py", "path"), ("robopolicy/", "path"), ("runs/act/x.py", ""), ("--allow", "flag"),
        ("robopolicy.sim.make(task, n)", "import"), ("ActionSpec", "name"), ("x", ""), ("load(a=1, b=2)", "name"),
        ("γ = 0.98", ""),
    ],
)  # fmt: skip
def test_what_a_piece_of_code_promises(span: str, kind: str) -> None:
    assert kind_of(span) == kind


def test_what_is_wrong_is_found() -> None:
    """A promise that cannot hold does not."""
    bad = {
        "command": "robopolicy train run_dir=x polcy=vla", "option": "policy=gausian", "key": "policy.scael",
        "import": "robopolicy.sim.no_such_name",
    }  # fmt: skip
    for kind, text in bad.items():
        assert promise_check.verdict({"kind": kind, "text": text, "words": words(text)}, []), text
    assert promises.missing_path(Promise("README.md", 1, "path", "scripts/no_such.py"))
    assert promises.missing_link(Promise("README.md", 1, "link", "docs/vla.md#no-such-heading"))
    assert not promises.missing_link(Promise("README.md", 1, "link", "docs/vla.md#what-to-expect"))
