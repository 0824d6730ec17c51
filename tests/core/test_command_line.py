"""Commands in messages can be typed: the shell and Hydra read back the value."""

from __future__ import annotations

import shlex

import pytest

from robopolicy.config.hydra_configs import hydra_config
from robopolicy.core.command_line import argument


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
    ],
)
def test_a_path_is_read_back_as_it_is(path: str) -> None:
    (word,) = shlex.split(argument("run_dir", path))
    assert hydra_config("report", [word])["run_dir"] == path


def test_plain_paths_need_no_quotes() -> None:
    assert argument("run_dir", "/home/me/runs/a-1.0_b") == "run_dir=/home/me/runs/a-1.0_b"
