"""Records of a deployment as JSON: the header, decisions, measured states."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robopolicy.core.specs import EnvSpec, PolicySpec
from robopolicy.core.types import Feature
from robopolicy.real.safety import Decision, SafetyChain
from robopolicy.real.safety.decision import Measured
from robopolicy.utils.provenance import version

LIBRARIES = ("numpy", "numba", "daqp", "mujoco")


def describe(
    chain: SafetyChain, *, observation: Mapping[str, Feature], policy: PolicySpec, **facts: Any
) -> dict[str, Any]:
    """Build the header of a chain's recording, from which it can be rebuilt; `facts` are JSON values."""
    risk = chain.risk and {
        "layers": [[w.tolist(), b.tolist()] for w, b in chain.risk.layers],
        **{k: getattr(chain.risk, k) for k in ("dt", "low", "high", "floor")},
        "settings": asdict(chain.risk.profile.settings),
    }
    return {
        "robopolicy": version(),
        "versions": {n: importlib.metadata.version(n) for n in LIBRARIES},
        "machine": platform.machine(),
        "profile": {"data": chain.profile.data, "settings": asdict(chain.profile.settings)},
        "digest": chain.profile.digest,
        "dt": chain.limiter.dt,
        "budget_s": chain.limiter.budget,
        "watchdogs": {dog.name: list(asdict(dog.patience).values()) for dog in chain.watchdogs},
        "risk": risk,
        "observation": {k: asdict(f) for k, f in observation.items()},
        "policy": asdict(policy),
        **facts,
    }


def header_of(chain: SafetyChain, env: EnvSpec, policy: PolicySpec, *, seed: int, **facts: Any) -> dict[str, Any]:
    """Build the header of an episode of the task `env`; see `describe`."""
    return describe(
        chain, observation=env.observation, policy=policy, task=env.id, task_digest=env.digest, seed=seed, **facts
    )


def decided(decision: Decision) -> dict[str, Any]:
    """Record a decision; of the stop a checksum."""
    return {
        "command": decision.command.tolist(),
        "stop": hashlib.blake2b(np.ascontiguousarray(decision.stop).tobytes(), digest_size=8).hexdigest(),
        "mode": decision.mode.name,
        "reasons": list(decision.reasons),
        "changed": decision.changed,
    }


def dumps(content: dict[str, Any]) -> bytes:
    """JSON; numbers that are none become text."""
    try:
        return json.dumps(content, allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(content), allow_nan=False).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def packed(value: NDArray[Any]) -> Any:
    """Numbers as lists; pictures as hexadecimal text, which is quicker."""
    return value.tobytes().hex() if value.dtype == np.uint8 and value.ndim == 3 else value.tolist()


def measured_record(measured: Measured | None) -> dict[str, Any]:
    return {name: as_list(getattr(measured, name, None)) for name in ("q", "torque", "qd")}


def as_list(value: ArrayLike | None) -> Any:
    return None if value is None else np.asarray(value, dtype=np.float64).tolist()
