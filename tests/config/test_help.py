"""help.py: every key of every group is explained in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from robopolicy.cli.verbs import VERBS, find_verb
from robopolicy.config import registry
from robopolicy.config.compose import compose, group_options
from robopolicy.config.described import describe_target
from robopolicy.config.help import meanings, verb_help
from robopolicy.config.hydra_configs import choices
from robopolicy.core.trees import flatten

WITH_CONFIG = [name for name, verb in VERBS.items() if verb.config]


@pytest.mark.parametrize("name", WITH_CONFIG)
def test_every_key_has_its_line(name: str) -> None:
    verb = find_verb(name)
    groups = {group.split("@")[0] for group in choices(verb.file)}
    for choice in ["", *(f"{g}={o}" for g, options in group_options().items() if g in groups for o in options)]:
        if choice.startswith("network="):
            continue  # chosen by the policies
        config = compose(verb, [choice] if choice else [], checked=False)
        about = meanings(verb, config)
        unexplained = [k for k in flatten(config) if not k.rpartition(".")[2].startswith("_") and not about.get(k)]
        assert unexplained == [], f"{name} {choice}: add them to Args: of the constructor"


def test_help_shows_groups_keys_values_and_meanings() -> None:
    text = verb_help(find_verb("train"), ["algo=residual", "loop.total_steps=77"])
    assert "  algo\n" in text and "    residual " in text
    line = next(line for line in text.splitlines() if line.strip().startswith("loop.total_steps "))
    assert line.split(maxsplit=2)[1:] == ["77", meanings(find_verb("train"), {"loop": {"_target_": "off_policy",
                                                                                      "total_steps": 1}})
                                          ["loop.total_steps"]]  # fmt: skip


def test_keys_of_the_users_own_class_are_listed_and_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        """An algorithm.

        Args:
            power: exponent of the agreement. tau: rate of the target.
            critic: makes an ensemble.
        """

        def __init__(self, policy: object, *, critic: object, power: float = 1.0, tau: float = 0.01) -> None: ...

    monkeypatch.setattr(registry, "_SLOTS", {k: dict(v) for k, v in registry._SLOTS.items()})
    registry.register("algo", "mine")(Mine)
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("# @package _global_\nalgo:\n  _target_: mine\n  power: 2.0\n")
    lines = verb_help(find_verb("train"), ["algo=mine"], [tmp_path]).splitlines()
    own = [line.split(maxsplit=2) for line in lines if line.startswith("  algo.")]
    assert own == [["algo.power", "2.0", "exponent of the agreement"], ["algo.tau", "0.01", "rate of the target"]]


@pytest.mark.parametrize("name", WITH_CONFIG)
def test_every_keyword_of_a_verb_is_listed(name: str) -> None:
    verb = find_verb(name)
    known = {key for key, entry in describe_target(verb.target).keys({}).items() if "about" in entry}
    shown = {*compose(verb, checked=False), *group_options()}
    assert known - shown == set(), f"add them to configs/{verb.file}.yaml"


def test_keywords_that_a_node_without_a_group_leaves_out_are_listed() -> None:
    def of_expert(*overrides: str) -> list[list[str]]:
        lines = verb_help(find_verb("demos"), overrides).splitlines()
        return [line.split()[:2] for line in lines if line.startswith("  expert.")]

    assert of_expert() == [["expert.speed", "1.0"]]
    assert of_expert("expert.speed=0.5") == [["expert.speed", "0.5"]]
    policy = ["expert._target_=policy", "expert.checkpoint=runs/bc"]
    assert of_expert(*policy) == [["expert.sampling", "null"], ["expert.checkpoint", "runs/bc"]]
    compose(find_verb("demos"), ["task=pick", "out=data", *policy])
