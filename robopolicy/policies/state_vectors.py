"""Find the vectors of numbers that a residual reads, and join them to its state."""

from __future__ import annotations

from robopolicy.core.errors import SpecError
from robopolicy.core.types import BASE_ACTION, ENV_STATE, RENDERED, STATE, TASK, Feature


def state_vectors(observation: dict[str, Feature]) -> tuple[str, ...]:
    """Return the keys of vectors of numbers in the order in which they are joined.

    Raises:
        SpecError: there are none, or keys of another kind than vectors, images and point clouds.
    """
    found = [k for k, f in observation.items() if f.dtype == "float32" and len(f.shape) == 1 and k != BASE_ACTION]
    extra = [k for k in observation if k not in (*found, BASE_ACTION, TASK) and not k.startswith(RENDERED)]
    if extra:
        raise SpecError(
            f"policy=residual: reads vectors of float32, pictures and point clouds; found {extra[0]!r}, "
            f"{observation[extra[0]].dtype} {observation[extra[0]].shape}. Train a base without it."
        )
    if not found:
        raise SpecError(
            "policy=residual: reads at least one vector of float32, with policy.pictures=true too; the base reads "
            f"{', '.join(observation) or 'nothing'}. Train a base that also reads one, such as {STATE} with the joint "
            "positions."
        )
    return tuple(sorted(found, key=lambda k: (k != STATE, k != ENV_STATE)))  # the others stay in their order


def joined(parts: dict[str, Feature]) -> Feature:
    """Return the feature of vectors that are joined, by key; elements without a name are counted where others have."""
    size = sum(part.shape[0] for part in parts.values())
    if not any(part.names for part in parts.values()):
        return Feature((size,))
    short = {key: key.removeprefix("observation.") for key in parts}
    names = [part.names or tuple(f"{short[key]}_{i}" for i in range(part.shape[0])) for key, part in parts.items()]
    return Feature((size,), names=tuple(name for own in names for name in own))
