"""An algorithm that its loop cannot call is refused before the first env step, by the method and what it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from robopolicy.algos.bc import BC
from robopolicy.algos.ppo import PPO
from robopolicy.algos.residual import ResidualTD3
from robopolicy.core.errors import ConfigError
from robopolicy.core.protocols import OffPolicy
from robopolicy.core.types import Algorithm
from robopolicy.training.contract import check_algorithm
from robopolicy.training.off_policy import off_policy
from robopolicy.training.offline import offline
from robopolicy.training.on_policy import OnPolicy, on_policy


class Mine:
    policy = None

    def explore(self, obs: Any, *, warmup: bool) -> Any: ...
    def update(self, batch: Any) -> dict[str, float]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Forgetful(Mine):
    def update(self, batch: Any, **others: Any) -> dict[str, float]: ...

    state_dict = None  # type: ignore[assignment]


class Short(Mine):
    def update(self) -> dict[str, float]: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("algo", "contract", "message"),
    [
        (Mine(), OffPolicy, r"^algo: Mine.update lacks learned_steps, which the loop x passes\. "
                            r"Expected def update\(self, batch, \*, learned_steps\)\.$"),
        (Forgetful(), OffPolicy, r"^algo: Forgetful lacks state_dict, .*Add def state_dict\(self\)"),
        (Mine(), OnPolicy, r"^algo: Mine.explore.* cannot be called .*Expected def explore\(self, obs, noise\)"),
        (Short(), Algorithm, r"^algo: Short.update\(\).* cannot be called .*Expected def update\(self, batch\)"),
    ],
)  # fmt: skip
def test_what_the_loop_needs_is_named(algo: Any, contract: type, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_algorithm(algo, contract, "x")


@pytest.mark.parametrize(("kind", "contract"), [(BC, Algorithm), (ResidualTD3, OffPolicy), (PPO, OnPolicy)])
def test_our_own_keep_the_contract(kind: Any, contract: type) -> None:
    check_algorithm(kind.__new__(kind), contract, "x")


@pytest.mark.parametrize("loop", [off_policy, offline, on_policy])
def test_every_loop_checks_first(loop: Any) -> None:
    """Nothing else is touched before the check: all other arguments are None."""
    names = [n for n in loop.__annotations__ if n not in ("return", "algo")]
    with pytest.raises(ConfigError, match=f"^algo: Short.* the loop {loop.__name__}"):
        loop(algo=Short(), **dict.fromkeys(names))
