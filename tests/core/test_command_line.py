"""Commands in messages can be typed: the shell and Hydra read back the value."""

from __future__ import annotations

import random
import shlex
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from robopolicy.config.hydra_configs import hydra_config
from robopolicy.core.command_line import argument, hydra_text


@pytest.mark.parametrize(
    "path",
    [
        "runs/bc",
        "sw ü/b c",
        "mit leer 数据",
        "it's",
        'say "hi"',
        "a,b",
        "a=b",
        "[x]",
        "{y}",
        "a\\b",
        "a\\",
        'a\\"b',
        "hub:me/mine@v1",
        "$HOME/x",
        "a${b}",
        "a\\${b}",
        "a\\\n",
        "~/x",
        "/home/me/josé/data",
        "5",
        "1_0",
        "1e3",
        ".5",
        "null",
        "True",
        "-inf",
        "",
    ],
)
def test_a_path_is_read_back_as_it_is(path: str) -> None:
    (word,) = shlex.split(argument("run_dir", path))
    assert hydra_config("report", [word])["run_dir"] == path


def test_plain_paths_need_no_quotes() -> None:
    assert argument("run_dir", "/home/me/runs/a-1.0_b") == "run_dir=/home/me/runs/a-1.0_b"


PIECES = [*"\\\"'${}aEe015._-+~,:=()[]# %@|*?é\t\n;&", "${", "${x}", "\\${", "nan", "inf", "true", "null", "1e3", "_0"]


def read(word: str) -> Any:
    """Read a word of the command line as Hydra and OmegaConf do."""
    override = OverridesParser.create().parse_override(word)
    assert not override.is_sweep_override()
    config = OmegaConf.create({})
    OmegaConf.update(config, "key", override.value())
    return OmegaConf.to_container(config, resolve=True)["key"]  # type: ignore[index, call-overload]


@pytest.mark.parametrize("seed", range(3))
def test_any_text_is_read_back_alone_in_lists_and_in_mappings(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        text = "".join(rng.choices(PIECES, k=rng.randint(0, 6)))
        (word,) = shlex.split(argument("key", text))
        assert read(word) == text
        for value in ([text, "b", [text]], {"a": text, "b c": {"d,e": text}}):
            assert read(f"key={hydra_text(value)}") == value


@pytest.mark.parametrize("value", [None, True, 5, -0.5, 1e-5, 1e22, float("inf"), [1, "1", None, [False]], {}, []])
def test_values_keep_their_types(value: object) -> None:
    found = read(f"key={hydra_text(value)}")
    assert found == value and type(found) is type(value)
