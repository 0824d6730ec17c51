"""Films on disk, and text in their pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robopolicy.evaluation.mp4 import Mp4Writer, burn, read_mp4


def test_a_film_that_fails_leaves_nothing(tmp_path):
    def break_off():
        with Mp4Writer(tmp_path / "a.mp4", fps=10) as writer:
            writer.add(np.zeros((32, 32, 3), dtype=np.uint8))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    assert list(tmp_path.iterdir()) == []


def test_two_processes_may_write_one_film(tmp_path):
    picture = np.zeros((32, 32, 3), dtype=np.uint8)
    with Mp4Writer(tmp_path / "a.mp4", fps=10) as one, Mp4Writer(tmp_path / "a.mp4", fps=10) as other:
        one.add(picture)
        other.add(picture)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
    assert len(list(read_mp4(tmp_path / "a.mp4"))) == 9


def test_label_is_burnt_into_the_upper_edge():
    plain = torch.full((3, 64, 96), 230, dtype=torch.uint8)
    picture = burn(plain, "a label that is much too long for this picture", mark="failure", good=False)
    assert picture.shape == (64, 96, 3)
    assert (picture[0] < 230).all(axis=-1).any() and (picture[40:] == 230).all()
    assert tuple(picture[2, 94]) == pytest.approx((214, 84, 72), abs=25)
