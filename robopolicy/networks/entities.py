"""Encode each object in the state as a token, so that instructions can attend to it.

An image has a token for each place, and words attend to some of them. With the whole state in one token, attention
cannot select the elements that matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from robopolicy.core.errors import SpecError, closest

WHERE = "policy.prefix.entities"


class EntityTokens(nn.Module):
    """Encodes elements of the state [B To D] as one token per entity [B n width].

    An entity's token is computed from its own elements and from those of no entity (the arm's). Entities of a kind
    share weights; a learned vector identifies each.

    Args:
        names: of the D elements, "" where an element has none. history: To. width: of a token.
        kinds: {kind: name prefixes of the elements, one prefix for each entity}.

    Raises:
        SpecError: a kind without entities; a prefix that matches no element, or one of another entity; entities of a
            kind with different elements; no elements besides those of entities.
    """

    rest: Tensor  # columns of no entity [R]

    def __init__(self, names: Sequence[str], kinds: Mapping[str, Sequence[str]], *, history: int, width: int) -> None:
        super().__init__()
        found = {kind: [_elements(names, kind, entity) for entity in kinds[kind]] for kind in kinds}
        _check(names, kinds, found)
        taken = {i for entities in found.values() for entity in entities for i in entity}
        rest = [i for i in range(len(names)) if i not in taken]
        if not rest:
            raise SpecError(f"{WHERE}: every element belongs to an entity. Leave the arm's own out of them.")
        self.register_buffer("rest", torch.tensor(rest), persistent=False)
        self.towers = nn.ModuleList()
        for k, entities in enumerate(found.values()):
            columns = torch.tensor([entity + rest for entity in entities])  # [entities, elements]
            self.register_buffer(f"columns_{k}", columns, persistent=False)
            size = history * columns.shape[1]
            self.towers.append(nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width)))
        self.count = sum(len(entities) for entities in found.values())  # n
        self.name = nn.Parameter(0.5 * torch.randn(self.count, width))

    def forward(self, read: Tensor) -> Tensor:
        """Compute tokens [B n width] from elements `read` [B To D]."""
        made = []
        for k, tower in enumerate(self.towers):
            seen = read[..., self.get_buffer(f"columns_{k}")]  # [B To entities elements]
            made.append(tower(seen.transpose(1, 2).flatten(2)))
        return torch.cat(made, dim=1) + self.name


def _elements(names: Sequence[str], kind: str, entity: str) -> list[int]:
    """Return the columns whose names begin with `entity`."""
    columns = [i for i, name in enumerate(names) if entity and name.startswith(entity)]
    if not columns:
        raise SpecError(f"{WHERE}.{kind}: no element that is read of the state begins with {entity!r}. "
                        f"{closest(entity, filter(None, names))}")  # fmt: skip
    return columns


def _check(names: Sequence[str], kinds: Mapping[str, Sequence[str]], found: dict[str, list[list[int]]]) -> None:
    owner: dict[int, str] = {}
    for kind, entities in found.items():
        if not entities:
            raise SpecError(f"{WHERE}.{kind}: names no entity. Give beginnings of elements' names, or leave it out.")
        ends: list[list[str]] = []
        for entity, columns in zip(kinds[kind], entities, strict=True):
            if twice := [names[i] for i in columns if i in owner]:
                other = owner[names.index(twice[0])]
                raise SpecError(f"{WHERE}.{kind}: {twice[0]!r} belongs to {other!r} and to {entity!r}. Give longer "
                                "beginnings.")  # fmt: skip
            owner |= dict.fromkeys(columns, entity)
            ends.append([names[i].removeprefix(entity) for i in columns])
            if ends[-1] != ends[0]:
                raise SpecError(
                    f"{WHERE}.{kind}: {kinds[kind][0]!r} goes on with {', '.join(ends[0])}, {entity!r} with "
                    f"{', '.join(ends[-1])}. Entities of a kind have the same elements; make it a kind of its own."
                )
