"""EntityTokens: a token for each thing of which the state tells, so that words can point at one of them.

A picture gives attention a token for each place, and words choose among them. A state vector in one token leaves
nothing to choose: which of its numbers matter, a network must then find out by products of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from robopolicy.errors import SpecError, closest

WHERE = "policy.prefix.entities"


class EntityTokens(nn.Module):
    """Tokens [B n width], one an entity, from what is read of the state [B To D].

    An entity's token is made of its own elements and of those that are no entity's (the arm's). Entities of a kind
    share these layers, so that each learns from what is shown of the others; a learned name tells them apart.

    Args:
        names: of the D elements, "" where one has none. history: To. width: of a token.
        kinds: {kind: beginnings of the names of an entity's elements, one an entity}.

    Raises:
        SpecError: a beginning fits no element, or one that another entity has; entities of a kind differ in theirs;
            there are no other elements.
    """

    columns: list[Tensor]  # of each kind [entities, elements]

    def __init__(self, names: Sequence[str], kinds: Mapping[str, Sequence[str]], *, history: int, width: int) -> None:
        super().__init__()
        found = {kind: [_elements(names, kind, entity) for entity in kinds[kind]] for kind in kinds}
        _check(names, kinds, found)
        taken = {i for entities in found.values() for entity in entities for i in entity}
        self.rest = [i for i in range(len(names)) if i not in taken]  # columns of no entity
        if not self.rest:
            raise SpecError(f"{WHERE}: every element belongs to an entity. Leave the arm's own out of them.")
        self.columns = [torch.tensor([e + self.rest for e in entities]) for entities in found.values()]
        sizes = [history * columns.shape[1] for columns in self.columns]
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width)) for size in sizes
        )
        self.count = sum(len(columns) for columns in self.columns)  # n
        self.name = nn.Parameter(0.5 * torch.randn(self.count, width))

    def forward(self, read: Tensor) -> Tensor:
        """[B n width] from read [B To D]."""
        made = []
        for tower, columns in zip(self.towers, self.columns, strict=True):
            seen = read[..., columns.to(read.device)]  # [B To entities elements]
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
