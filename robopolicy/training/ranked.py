"""Train by several ranks (see utils.ranks): rank 0 alone writes, and what one rank would hold is shared by all."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from robopolicy.core.errors import CheckpointError, ConfigError, RankError
from robopolicy.core.trees import flatten
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.policies.base import Policy
from robopolicy.runs.checkpointer import Checkpointer, Product
from robopolicy.utils import ranks
from robopolicy.utils.provenance import code_digest, version

_TIMEOUT_S = 600.0  # where `rank_timeout` is not given
_LOOPS = ("offline", "on_policy")


@contextmanager
def joined(config: Mapping[str, Any]) -> Iterator[None]:
    """Join the ranks of a training, which must have the same config and code. One rank: nothing happens.

    Raises:
        ConfigError: the device cannot be shared. RankError: ranks differ; each differing key is named.
    """
    if ranks.expected() == 1:
        yield
        return
    device = str(config.get("device") or "cpu")
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"device={device}: ranks share cpu or cuda. Set device=cuda: each takes a GPU of its own.")
    with ranks.joined(cuda=device == "cuda", timeout=float(config.get("rank_timeout") or _TIMEOUT_S)):
        code = {
            "code": code_digest(),
            "robopolicy": version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        check_same({key: repr(value) for key, value in flatten(config).items()} | code)
        yield


def check_same(own: Mapping[str, str]) -> None:
    """Compare texts by name over ranks.

    Raises:
        RankError: in every rank, where some differ; names, values and ranks are listed.
    """
    first, *others = ranks.gather(dict(own))
    for rank, other in enumerate(others, start=1):
        if names := sorted(name for name in first.keys() | other.keys() if first.get(name) != other.get(name)):
            listed = "\n  - ".join(
                f"{k}: rank 0 has {first.get(k, 'none')}, rank {rank} {other.get(k, 'none')}" for k in names
            )
            raise RankError(
                f"ranks differ in config or code:\n  - {listed}\nStart all ranks by the same command, on the same "
                "installation."
            )


def check_supported(loop: str, algo: Any = None) -> None:
    """Refuse, where there are several ranks, a loop or an algorithm that learns in one process alone.

    Raises:
        ConfigError: names the loop or the algorithm, and those that do.
    """
    if ranks.count() == 1:
        return
    found = "" if loop in _LOOPS else f"the loop {loop}"
    if not found and algo is not None and not getattr(algo, "across_ranks", False):
        found = f"algo: {type(algo).__name__}"
    if found:
        raise ConfigError(
            f"{found} learns in one process, and torchrun started {ranks.count()} ranks. bc, distill, dppo, grpo, ppo, "
            "policy_flow and rpd learn on several. Start this one without torchrun."
        )


def check_weights(policy: nn.Module) -> None:
    """Compare the ranks' initial weights.

    Raises:
        RankError: they differ.
    """
    if ranks.count() > 1:
        total = sum(float(p.detach().double().abs().sum()) for p in policy.parameters())
        check_same({"sum of the initial weights": f"{total:.6g}"})


def join_rows(state: Any, rows: int) -> Any:
    """Join the saved states of all ranks' envs: tensors [rows ...] become those of all envs, the rest is rank 0's."""
    return _mapped(state, lambda x: ranks.gather_rows(x) if x.ndim and len(x) == rows else x)


def own_rows(state: Any, rows: int) -> Any:
    """Return this rank's part of a state that `join_rows` joined; rows: envs of this rank."""
    whole = rows * ranks.count()
    return _mapped(state, lambda x: x[ranks.own_part(whole)].clone() if x.ndim and len(x) == whole else x)


def _mapped(state: Any, change: Any) -> Any:
    if ranks.count() == 1:
        return state
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, dict):
        return {key: _mapped(state[key], change) for key in sorted(state)}
    return [_mapped(value, change) for value in state] if isinstance(state, list | tuple) else state


def gather_episodes(own: EpisodeTable) -> EpisodeTable:
    """Join the episodes of all ranks, in their order."""
    if ranks.count() == 1:
        return own
    parts = ranks.gather({name: own.frame[name].tolist() for name in own.frame})
    frames = [pd.DataFrame(part) for part in parts if part["seed"]]  # a rank without episodes knows no types
    return EpisodeTable(pd.concat(frames, ignore_index=True)) if frames else own


class RankedCheckpointer(Checkpointer):
    """A Checkpointer of several ranks: rank 0 writes, and all read the same folder. Its calls are exchanges.

    A stop that one rank was asked for is one of all: they save together, and all raise KeyboardInterrupt.
    """

    @property
    def writes(self) -> bool:
        """See Checkpointer; a slower rank would delete the files that rank 0 is writing."""
        return ranks.rank() == 0

    @property
    def requested(self) -> bool:
        return ranks.any_of(self._asked)

    @requested.setter
    def requested(self, asked: bool) -> None:
        self._asked = asked

    def ask(self) -> None:
        """Torchrun repeats the signal that ends it: unlike with one process, the second one does not interrupt."""
        self._asked = True

    def save(self, step: int, *, policy: Policy | Product, state: dict[str, Any], best: bool = False) -> Path:
        """See Checkpointer; only rank 0 writes.

        Raises:
            KeyboardInterrupt: a rank was asked to stop, and everything is saved.
        """
        stop = self.requested
        path = self.folder if ranks.rank() else self.write(step, policy=policy, state=state, best=best)
        ranks.barrier()  # none ends before everything is saved
        if stop:
            raise KeyboardInterrupt
        return path

    def latest_path(self) -> Path | None:
        """See Checkpointer.

        Raises:
            RankError: not all ranks see the same checkpoint.
        """
        if self._valid is not None and self._valid.exists():
            return self._valid
        path = None if ranks.rank() else super().latest_path()
        ranks.barrier()  # rank 0 sets damaged ones aside
        path = super().latest_path() if ranks.rank() else path
        name = "none" if path is None else path.name
        try:
            check_same({"newest checkpoint": name})
        except RankError as error:
            raise CheckpointError(f"{error} run_dir must be a folder that all machines share.") from error
        return path
