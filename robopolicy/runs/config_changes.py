"""Compare the config of a resumed run with the one that it began with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from robopolicy.config.registry import resolve
from robopolicy.config.schema import TARGET, is_node, signature

_MAY_GROW = (
    "steps",
    "total_steps",
    "rounds",
)  # `check_same` warns where a schedule depends on it
# Keys that may change in a run. `threads` changes only the last bits of float sums; Checkpointer.latest warns.
# `incomplete` only permits; the data that the run began with are compared by their contents.
_FREE = ("tracker.", "run_dir", "threads", "rank_timeout", "keep_checkpoints", "incomplete", "loop.log_every")


def with_choices(config: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return `config` with the number of windows that a run has, where `config` leaves it open.

    A training replaces `loop.batch_size: null` in the run's config, see training.batch_size.with_batch_size.

    Args:
        before: config of the run; None: there is none yet.
    """
    loop, own = config.get("loop"), (before or {}).get("loop")
    if not isinstance(loop, Mapping) or not isinstance(own, Mapping):
        return dict(config)
    if "batch_size" not in loop or loop["batch_size"] is not None:
        return dict(config)
    return {**config, "loop": {**loop, "batch_size": own.get("batch_size")}}


def compared_keys(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys that are compared: without rounds, those of `coevolve` have no effect."""
    return config if config.get("rounds") else {k: v for k, v in config.items() if k not in ("rounds", "coevolve")}


def default_of(config: Mapping[str, Any], key: str) -> Any:
    """Return the constructor's default of `key`, "node.option"; None where there is none."""
    *path, option = key.split(".")
    node: Any = config
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else None
    if not is_node(node):
        return None
    known = signature(resolve(node, path[-1], ".".join(path)), node).known
    return known[option].default if option in known else None


def may_change(key: str, old: Any, new: Any) -> bool:
    """Return whether a run may be resumed with another value of `key`."""
    if any(key == free or (free.endswith(".") and key.startswith(free)) for free in _FREE):
        return True
    longer = isinstance(old, int | float) and isinstance(new, int | float) and new > old
    return longer and (key == "rounds" or key.startswith(("loop.", "algo."))) and key.rsplit(".", 1)[-1] in _MAY_GROW


def schedule_keys(config: Mapping[str, Any]) -> list[str]:
    """Return the keys of the run's length, where the algorithm follows a schedule over it."""
    algo, loop = config.get("algo") or {}, config.get("loop") or {}
    if TARGET not in algo:
        return []
    if "steps" in algo:
        return ["algo.steps"]
    target = resolve(algo, "algo")
    known = signature(target, algo).known
    asks = "steps" in known  # filled with the loop's number of steps
    if "progress" in inspect.signature(getattr(target, "update", lambda: None)).parameters:
        kinds = [
            algo.get(k, p.default if isinstance(p.default, str) else "constant")
            for k, p in known.items()
            if k.endswith("_schedule")
        ]
        asks |= not kinds or any(kind != "constant" for kind in kinds) or bool(algo.get("progressive"))
    return [f"loop.{name}" for name in _MAY_GROW if name in loop] if asks else []


def shown(values: Mapping[str, Any], key: str, other: Mapping[str, Any]) -> str:
    """Describe a value, or the default that its absence means to the constructor that `other` gives the option to."""
    if key in values:
        return repr(values[key])
    meant = default_of(other, key)
    return "absent" if meant is None or meant is inspect.Parameter.empty else f"absent, which means {meant!r}"
