"""Memory: demonstrations that a policy looks things up in. Data, not weights: it is replaced without any training."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from robopolicy.core.errors import CheckpointError
from robopolicy.core.untrusted import Strict, checked, read_json
from robopolicy.utils.storage import read_tensors, write_tensors

MEMORY = "memory.safetensors"
_TEXTS = "memory.json"  # the instructions, which tensors cannot hold
_AT_ONCE = 2**23  # distances in memory at a time


class Retrieved(NamedTuple):
    """Frames retrieved for B queries, the nearest first."""

    frame: Tensor  # [B k] int64, into the memory
    distance: Tensor  # [B k], inf where there was nothing more to retrieve

    def closest(self, count: int) -> Retrieved:
        """Return the `count` nearest of each query; fewer where there are fewer columns."""
        distance, order = self.distance.sort(dim=1, stable=True)
        return Retrieved(self.frame.gather(1, order[:, :count]), distance[:, :count])


class Memory(nn.Module):
    """Frames of demonstrations, each with the key it is found by and the chunk that was executed from there.

    Buffers that are no part of the state dict: they move with the policy, and policies/io.py writes them beside its
    weights. `tasks`: instructions that `task` counts in.

    Args:
        key_dim: E. horizon, action_dim: H, Da.
    """

    key: Tensor  # [F E]
    chunk: Tensor  # [F H Da] normalised
    task: Tensor  # [F] int64
    seed: Tensor  # [D] int64: which episode each demonstration is
    table: Tensor  # [D L] int64: frames of each demonstration, the last one repeated

    def __init__(self, key_dim: int, horizon: int, action_dim: int) -> None:
        super().__init__()
        self.tasks: tuple[str, ...] = ()
        shapes = {"key": (0, key_dim), "chunk": (0, horizon, action_dim)}
        for name in ("key", "chunk", "task", "seed", "table"):
            empty = torch.zeros(shapes.get(name, (0,)), dtype=torch.float32 if name in shapes else torch.int64)
            self.register_buffer(name, empty, persistent=False)
        self.table = self.table.view(0, 1)

    def __len__(self) -> int:
        """Demonstrations."""
        return len(self.seed)

    def fill(
        self, key: Tensor, chunk: Tensor, task: Tensor, *, starts: Tensor, seed: Tensor, tasks: tuple[str, ...]
    ) -> None:
        """Hold these frames instead; demonstration d is frames starts[d]:starts[d+1]."""
        device, starts = self.key.device, starts.cpu()
        longest = int((starts[1:] - starts[:-1]).max()) if len(seed) else 1
        table = torch.minimum(starts[:-1, None] + torch.arange(longest), starts[1:, None] - 1)
        found = {"key": key, "chunk": chunk, "task": task, "seed": seed, "table": table}
        for name, value in found.items():
            setattr(self, name, value.to(device))
        self.tasks = tuple(tasks)

    def clear(self) -> None:
        """Forget everything."""
        none = torch.zeros(0, dtype=torch.int64)
        self.fill(self.key[:0], self.chunk[:0], none, starts=torch.zeros(1, dtype=torch.int64), seed=none, tasks=())

    def numbers(self, tasks: tuple[str, ...]) -> Tensor:
        """Return [T] int64, for each of `tasks` its number here, −1 where nothing demonstrates it."""
        shown = {self.tasks[i] for i in self.task.unique().tolist()}
        return torch.tensor([self.tasks.index(t) if t in shown else -1 for t in tasks], device=self.key.device)

    @torch.no_grad()
    def nearest(self, key: Tensor, task: Tensor, count: int, *, allowed: Tensor | None = None) -> Retrieved:
        """Return the nearest frames to `key` [B E] among demonstrations of instruction `task` [B], one of each of them.

        Neighbours in time say the same, so a demonstration gives its nearest frame only. Exact: every distance is
        computed, pair by pair, so that an answer does not depend on other queries. It is the root mean square
        difference of an element of the key.

        Args:
            count: k. allowed: [B D] bool, demonstrations that may be retrieved; None: all.

        Returns:
            [B k], −1 in `task` finds nothing.
        """
        frame = torch.zeros(len(key), count, dtype=torch.int64, device=key.device)
        found = Retrieved(frame, torch.full_like(frame, torch.inf, dtype=key.dtype))
        for number in task.unique().tolist():
            of_it = self.task[self.table] == number  # [D L]
            chosen = of_it.any(1).nonzero()[:, 0]
            rows = (task == number).nonzero()[:, 0]
            if not len(chosen):
                continue
            for part in rows.split(max(1, _AT_ONCE // (len(chosen) * self.table.shape[1]))):
                near = self._of(chosen, key[part], of_it, None if allowed is None else allowed[part])
                near = near.closest(count)
                found.frame[part, : near.frame.shape[1]] = near.frame
                found.distance[part, : near.frame.shape[1]] = near.distance
        return found

    def _of(self, chosen: Tensor, key: Tensor, of_it: Tensor, allowed: Tensor | None) -> Retrieved:
        """Return [B C] the nearest frame of each of C demonstrations."""
        table = self.table[chosen]  # [C L]
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(key, self.key[table.flatten()], compute_mode=exact) / math.sqrt(key.shape[1])
        distance = distance.view(len(key), *table.shape).masked_fill(~of_it[chosen], torch.inf)
        nearest, place = distance.min(2)
        if allowed is not None:
            nearest = nearest.masked_fill(~allowed[:, chosen], torch.inf)
        return Retrieved(table.expand(len(key), -1, -1).gather(2, place[..., None])[..., 0], nearest)

    # -- on disk -----------------------------------------------------------------------------------------------------
    def write(self, folder: Path) -> None:
        write_tensors(dict(self.named_buffers()), folder / MEMORY)
        (folder / _TEXTS).write_text(json.dumps({"tasks": self.tasks}, indent=1) + "\n", encoding="utf-8")

    def read(self, folder: Path) -> None:
        """Hold what `write` wrote.

        Raises:
            CheckpointError: missing, damaged, or of another policy.
        """
        tensors = read_tensors(folder / MEMORY)
        texts = checked(_Texts, read_json(folder / _TEXTS), str(folder / _TEXTS)).tasks
        for name, own in self.named_buffers():
            found = tensors.get(name)
            shape = own.shape[1:] if name in ("key", "chunk") else None if name == "table" else torch.Size()
            fits = found is not None and found.dtype == own.dtype and found.ndim == own.ndim
            if found is None or not fits or shape not in (None, found.shape[1:]):
                has = "is missing" if found is None else f"has shape {list(found.shape)} of {found.dtype}"
                raise CheckpointError(
                    f"{folder / MEMORY}: {name!r} {has}, expected [F, {', '.join(map(str, own.shape[1:]))}] of "
                    f"{own.dtype}: it is not of this policy. Evaluate with memory=<dataset>, which fills it again."
                )
        _check_numbers(tensors, len(texts), str(folder / MEMORY))
        for name, own in list(self.named_buffers()):
            setattr(self, name, tensors[name].to(own.device))
        self.tasks = texts

    def digest(self) -> str:
        """sha256 of the content, which tells two memories of one policy apart."""
        parts = [x.cpu().contiguous().numpy().tobytes() for _, x in self.named_buffers()]
        return hashlib.sha256(b"".join([*parts, "\n".join(self.tasks).encode()])).hexdigest()


class _Texts(Strict):
    tasks: tuple[str, ...]


def _check_numbers(tensors: dict[str, Tensor], tasks: int, where: str) -> None:
    """Raise CheckpointError where a memory's parts do not fit: indices must be in range."""
    frames, episodes = len(tensors["key"]), len(tensors["seed"])
    sizes = {"chunk": frames, "task": frames, "table": episodes}
    bad = [f"{k!r} has {len(tensors[k])} rows, expected {n}" for k, n in sizes.items() if len(tensors[k]) != n]
    for name, below in (("table", frames), ("task", tasks)):
        if tensors[name].numel() and not 0 <= int(tensors[name].min()) <= int(tensors[name].max()) < below:
            bad.append(f"{name!r} counts beyond {below}")
    bad += [f"{k!r} holds NaN or infinity" for k in ("key", "chunk") if not bool(torch.isfinite(tensors[k]).all())]
    if episodes and not tensors["table"].shape[1]:
        bad.append("'table' has no columns")
    if bad:
        raise CheckpointError(f"{where} is damaged: {'; '.join(bad)}. Evaluate with memory=<dataset>, which fills it "
                              "again.")  # fmt: skip
