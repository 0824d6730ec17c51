"""Migrate the training state of older checkpoints, one format at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FORMAT = 4  # of the training state; policies have one of their own


def _from_1(state: dict[str, Any]) -> dict[str, Any]:
    """Add the best success rate, and the newest metrics and the tally of off-policy runs."""
    state = {"best": -1.0, **state}
    if "replay" in state:
        tally = state.get("tally") or {"recent": state.pop("recent")}
        state = {"metrics": {}, **state, "tally": {"diverged": 0, "rounds": 0, "sums": {}, **tally}}
    return state


def _from_2(state: dict[str, Any]) -> dict[str, Any]:
    """Add the state of the regression monitor, which starts at the resume."""
    unseen: dict[str, Any] = {"decline": {"recent": [], "first": None, "said": False}}
    if "tally" in state:
        return {**state, "tally": {**state["tally"], **unseen}}
    return {**state, **unseen} if "collector" in state else state


def _from_3(state: dict[str, Any]) -> dict[str, Any]:
    """Add the chunk executor of off-policy runs, with an empty queue."""
    if "replay" not in state:
        return state
    action = state["replay"]["store"]["action"]  # [rows N Da]
    none = action.new_zeros(action.shape[1], dtype=torch.int64)
    queue = action.new_zeros(action.shape[1], 1, action.shape[2])
    return {**state, "player": {"queue": queue, "left": none, "clock": none.clone()}}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {  # format → to the next one
    1: _from_1,
    2: _from_2,
    3: _from_3,
}
