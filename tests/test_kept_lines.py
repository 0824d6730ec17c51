"""A script that is killed goes on with the lines that it kept whole, under the same setting alone."""

from __future__ import annotations

import pytest

from scripts.kept_lines import keep_line, kept_lines


def test_lines_are_kept_but_one_that_was_cut_and_those_of_another_setting(tmp_path):
    file, head = tmp_path / "new" / "lines.jsonl", {"commit": "a"}
    assert kept_lines(file, head) == []
    keep_line(file, {"seed": 1})
    with file.open("a") as out:
        out.write('{"seed": 2, "succ')
    assert kept_lines(file, head) == [{"seed": 1}]
    keep_line(file, {"seed": 3})
    assert kept_lines(file, head) == [{"seed": 1}, {"seed": 3}]
    with pytest.raises(SystemExit, match=r"another setting .*choose another --out"):
        kept_lines(file, {"commit": "b"})
    file.write_text('{"comm')
    with pytest.raises(SystemExit, match="another setting"):
        kept_lines(file, head)
