"""Refine imitation-learned robot policies by reinforcement learning, prove it, deploy them safely.

In Python the functions of robopolicy/api are the package's own: `import robopolicy as rp`, then `rp.evaluate(…)`. Each
is imported at its first use, so that this import stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from robopolicy.core.errors import RobopolicyError

if TYPE_CHECKING:
    from robopolicy.api.figures import plot
    from robopolicy.api.objects import film, load_policy, make_env, rollout
    from robopolicy.api.verbs import compare, demos, evaluate, run, train

__all__ = (
    "RobopolicyError", "compare", "demos", "evaluate", "film", "load_policy", "make_env", "plot", "rollout", "run",
    "train",
)  # fmt: skip
_MODULES = {
    "compare": "verbs", "demos": "verbs", "evaluate": "verbs", "run": "verbs", "train": "verbs",
    "film": "objects", "load_policy": "objects", "make_env": "objects", "rollout": "objects", "plot": "figures",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'robopolicy' has no attribute {name!r}")
    return getattr(importlib.import_module(f"robopolicy.api.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
