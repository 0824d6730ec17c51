from __future__ import annotations

import zlib

import torch

from robopolicy.networks.language import WordTower, pieces, words


def test_words_and_pieces():
    assert words("Pick up the RED cube, now!") == ["pick", "up", "the", "red", "cube", "now"]
    assert words("ouvre le tiroir à côté") == ["ouvre", "le", "tiroir", "à", "côté"]
    expected = [zlib.crc32(part) % 1000 for part in (b"<red>", b"<re", b"red", b"ed>")]
    assert pieces("red", 1000) == expected
    assert len(pieces("a", 1000)) == 1, "shorter than a trigram: the word alone"


def test_words_that_look_alike_have_tokens_that_are():
    torch.manual_seed(0)
    tower = WordTower(("cube", "cubes", "drawer"), width=64, max_words=2)
    with torch.no_grad():
        tokens, keep = tower(torch.arange(3))
    assert keep.tolist() == [[True, False]] * 3
    a, b, c = torch.nn.functional.normalize(tokens[:, 0], dim=-1)
    assert float(a @ b) > 0.3 > abs(float(a @ c))


def test_order_matters_and_case_does_not():
    tower = WordTower(("red on blue", "blue on red", "Red on BLUE."), width=8, max_words=4)
    tokens, _ = tower(torch.arange(3))
    assert torch.equal(tokens[0], tokens[2]) and not torch.equal(tokens[0], tokens[1])
