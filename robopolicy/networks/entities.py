"""EntityTokens: a token for each thing of which the state tells, so that words can point at one of them.

A picture gives attention a token for each place, and words choose among them. A state vector in one token leaves
nothing to choose: which of its numbers matter, a network must then find out by products of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from robopolicy.core.errors import SpecError, closest

WHERE = "policy.prefix.entities"


class EntityTokens(nn.Module):
    """Tokens [B n width], one an entity, from what is read of the state [B To D].

    An entity's token is made of its own elements and of those that are no entity's (the arm's). Entities of a kind
    share these layers, so that each learns from what is shown of the others; a learned name tells them apart.

    Args:
        names: of the D elements, "" where one has none. history: To. width: of a token.
        kinds: {kind: beginnings of the names of an entity's elements, one an entity}.

    Raises:
        SpecError: a kind without entities; a beginning that fits no element, or one that belongs to another entity
            too; entities of a kind whose elements end differently; no elements but those of entities.
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
        """[B n width] from read [B To D]."""
        made = []
        for k, tower in enumerate(self.towers):
            seen = read[..., self.get_buffer(f"columns_{k}")]  # [B To entities elements]
            made.append(tower(seen.transpose(1, 2).flatten(2)))
        return torch.cat(made, dim=1) + self.name


def _elements(names: Sequence[str], kind: str, entity: str) -> list[int]:
    """Columns whose names begin with `entity`."""
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
