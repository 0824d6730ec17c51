"""Encode instructions as word tokens, learned from scratch, without a vocabulary or a download.

A word is the scaled sum of the vectors of its pieces: itself and its letter trigrams, each hashed into one of `buckets`
(Bojanowski et al. 2017). So an unseen word has a token near those of words with similar spelling.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robopolicy.core.errors import SpecError

_PIECES = 24  # per word; further pieces are dropped


class WordTower(nn.Module):
    """Returns the word tokens of `tasks[index]`.

    Args:
        tasks: instructions. width: size of a token. max_words: L, tokens of every instruction, padding included.
        buckets: vectors for pieces of words; pieces in one bucket share a vector.

    Raises:
        SpecError: no instruction, one without words, or one of more than `max_words` words.
    """

    ids: Tensor  # [T L G] pieces of every word of every instruction

    def __init__(self, tasks: Sequence[str], *, width: int, max_words: int = 12, buckets: int = 4096) -> None:
        super().__init__()
        self.max_words, self.buckets = max_words, buckets
        self.pieces = nn.Embedding(buckets + 1, width, padding_idx=buckets)
        self.position = nn.Parameter(0.02 * torch.randn(max_words, width))
        self.register_buffer("ids", torch.empty(0, dtype=torch.int64), persistent=False)
        self.set_tasks(tasks)

    def set_tasks(self, tasks: Sequence[str]) -> None:
        """Replace the instructions; the weights are unchanged."""
        self.tasks = check_instructions(tasks, self.max_words)
        ids = torch.full((len(tasks), self.max_words, _PIECES), self.buckets)
        for t, task in enumerate(tasks):
            for w, word in enumerate(words(task)):
                found = pieces(word, self.buckets)
                ids[t, w, : len(found)] = torch.tensor(found)
        self.ids = ids.to(self.ids.device)

    def forward(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens [B L width] of instructions `index` [B] int64, and their mask [B L] bool."""
        known = self.ids != self.buckets
        total = self.pieces(self.ids).sum(2) / known.sum(2).clamp_min(1)[..., None].sqrt()
        return (total + self.position)[index], known.any(2)[index]


def words(text: str) -> list[str]:
    """Split a sentence into lower-case words: letters and digits of any script; other characters separate."""
    return re.findall(r"[^\W_]+", text.lower())


def pieces(word: str, buckets: int) -> list[int]:
    """Return the buckets of a word and of its letter trigrams, with "<" and ">" at its ends; platform-independent."""
    marked = f"<{word}>"
    parts = [marked, *(marked[i : i + 3] for i in range(len(marked) - 2) if len(marked) > 3)]
    return [zlib.crc32(part.encode()) % buckets for part in parts[:_PIECES]]


def check_instructions(tasks: Sequence[str], max_words: int) -> tuple[str, ...]:
    """Return `tasks` after checking that each has 1 to `max_words` words.

    Raises:
        SpecError: there is no instruction, or one has no or too many words.
    """
    if not tasks:
        raise SpecError("tasks: there is no instruction to follow. Record the dataset with a task for every episode.")
    for i, task in enumerate(tasks):
        count = len(words(task))
        if not count:
            raise SpecError(f"tasks[{i}]: the instruction is {task!r}: it has no words. Say what shall be done.")
        if count > max_words:
            raise SpecError(
                f"tasks[{i}]: {task!r} has {count} words, the policy reads {max_words}. Shorten it, or train with "
                f"policy.prefix.max_words={count}."
            )
    return tuple(tasks)
