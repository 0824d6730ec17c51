"""Read success, and the last observations of ended episodes, from the infos of a Gymnasium vector env."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError, SpecError, closest
from robopolicy.sim.gymnasium.info_columns import column, flags, names_of

KNOWN = ("success", "is_success")
TERMINATED = "terminated"
FINAL_INFO = "final_info"
FINAL_OBS = ("final_obs", "final_observation")  # since Gymnasium 1.0, and before


class Success:
    """Reads success out of infos. Absence is never taken for failure.

    Args:
        key: None: "success" or "is_success", which has to be there at every step.
            "terminated": an episode that the env itself ended is a success, and no other.
            Else this key. Before an episode's last step it may be missing, which reads False there.
        env: its name, for messages.
    """

    def __init__(self, key: str | None, env: str) -> None:
        if key is not None and not (isinstance(key, str) and key):
            raise ConfigError(f"{env}: task.success: expected a key of info or {TERMINATED!r}, found {key!r}")
        self.key, self.env = key, env
        self.keys = KNOWN if key is None else (key,)

    def read(
        self,
        info: Any,
        terminated: NDArray[np.bool_],
        *,
        active: NDArray[np.bool_],
        ended: NDArray[np.bool_],
        same_step: bool = False,
    ) -> NDArray[np.bool_]:
        """Success [N] at the states that this step led to.

        Args:
            terminated: [N]
            active: [N]: made a step; the others read False.
            ended: [N]: that step was their episode's last.
            same_step: the env has reset the ended ones already: theirs is the final info, not the new episode's.

        Raises:
            ConfigError: the key is missing where it has to be, or its value is neither true nor false.
        """
        if self.key == TERMINATED:
            return terminated & active
        n = len(active)
        found: NDArray[np.bool_] = np.zeros(n, dtype=bool)
        known: NDArray[np.bool_] = np.zeros(n, dtype=bool)
        for key in self.keys:
            try:
                says, present = _said(info, key, active=active, final=ended & same_step)
            except SpecError as error:
                raise self._wrong(error) from error
            if (clash := present & known & (says != found)).any():
                raise self._clash(int(clash.nonzero()[0][0]))
            found, known = found | says, known | present
        missing = (active if self.key is None else ended) & ~known
        if missing.any():
            i = int(missing.nonzero()[0][0])
            inner = column(info, FINAL_INFO, n)[0][i] if same_step and ended[i] else None
            if inner is not None:
                raise self._missing(names_of(inner), f"info[{FINAL_INFO!r}]", i)
            lacks = f"info, which has no {FINAL_INFO!r}," if same_step and ended[i] else "info"
            raise self._missing(_names_in(info, n, i), lacks, i)
        return found

    def _wrong(self, error: SpecError) -> ConfigError:
        return ConfigError(
            f"{self.env}: task.success: {error}. A fraction is no success, and each env needs a value of its own: name "
            "another key, task.success=<key>, or let a wrapper of the env decide."
        )

    def _clash(self, i: int) -> ConfigError:
        return ConfigError(
            f"{self.env}: task.success: {' and '.join(self.keys)} differ in info of env {i}. Name the one that counts: "
            f"task.success={self.keys[0]}"
        )

    def _missing(self, names: list[str], where: str, i: int = 0) -> ConfigError:
        if self.key is None:
            said = f"expected {' or '.join(KNOWN)} in {where} at every step"
        else:
            said = f"expected {self.key!r} in {where} at the last step of every episode. {closest(self.key, names)}"
        return ConfigError(
            f"{self.env}: task.success: {said}; found {', '.join(names) or 'nothing'} (env {i}). Name the key that "
            f"tells success, task.success=<key>, which may come at the last step alone, or task.success={TERMINATED} "
            "if the env ends an episode only where it succeeds. Else let a wrapper of the env say it, True or False."
        )


def _said(
    info: Any, key: str, *, active: NDArray[np.bool_], final: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return values [N] of `key`, and where [N] it exists; envs in `final` are read from their final info."""
    values, present = column(info, key, len(active))
    if final.any():
        last, had = column(info, f"{FINAL_INFO}.{key}", len(active))
        values = np.where(final, last.astype(object), values.astype(object))
        present = np.where(final, had, present)
    return flags(values, present & active, f"info[{key!r}]"), present & active


def _names_in(info: Any, n: int, i: int) -> list[str]:
    """Return the entries that the info of env `i` has; other envs of the batch may have more."""
    found = []
    for name in names_of(info):
        with contextlib.suppress(SpecError):  # not one value for each env
            if column(info, name, n)[1][i]:
                found.append(name)
    return found


def final_observations(info: Any, n: int, ended: NDArray[np.bool_]) -> list[Any]:
    """Return the last observations of the envs in `ended`, in order, each without batch axis.

    Raises:
        SpecError: they are not there for every ended env.
    """
    for name in FINAL_OBS:
        rows, present = column(info, name, n)
        if present.any():
            break
    else:
        raise SpecError(
            f"autoreset mode SAME_STEP: an episode ended, and info has none of {', '.join(FINAL_OBS)}, so its last "
            f"observation is lost; found {', '.join(names_of(info)) or 'nothing'}. Build the env with "
            "AutoresetMode.DISABLED or NEXT_STEP, or hand the last observations out."
        )
    if lost := (ended & ~present).nonzero()[0].tolist():
        raise SpecError(f"info[{name!r}]: expected an observation for every ended env, has none for env {lost[0]}")
    return [rows[i] for i in ended.nonzero()[0]]


def refuse_final(info: Any, n: int, env: str, fix: str) -> None:
    """Raise SpecError where an info has last observations, though `env` is to reset ended episodes in another step."""
    for key in FINAL_OBS:
        if column(info, key, n)[1].any():
            raise SpecError(
                f"{env}: info has {key!r}, as where the step that ends an episode resets it: the first observation of "
                f"an episode would be taken for the last one's. {fix}"
            )
