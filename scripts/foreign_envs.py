"""Vector envs as others write them, each with one thing about it changed: the right values, or a refusal by name.

Meant for scripts/foreign_data.py and tests/sim/test_foreign_envs.py; alone it says which cases fail.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.types import IMAGES, STATE, ActionSpec
from robopolicy.sim.gymnasium.adapter import GymVecEnv, adapt
from scripts.foreign_toy import Array, Toy, objects, play

HORIZON = 4

Case = tuple[str, Callable[[], None]]


def works(name: str, how: dict[str, Any] | None = None, /, **toy: Any) -> Case:
    """A case that has to be played right. how: arguments of `adapt`."""

    def run() -> None:
        env = Toy(**toy)
        play(adapt(env, horizon=HORIZON, **(how or {})), env)

    return f"{name} works", run


def refused(name: str, key: str, make: Callable[[], Any], how: dict[str, Any] | None = None, /) -> Case:
    """A case that has to be refused, in making or in playing it, by an error of ours that names `key`."""

    def run() -> None:
        try:
            made = make()
            env = made if isinstance(made, GymVecEnv) else adapt(made, **{"horizon": HORIZON, **(how or {})})
            env.reset()
            for _ in range(24):
                env.step(torch.zeros(env.num_envs, env.spec.action.dim))
        except RobopolicyError as error:
            if key not in str(error):
                raise AssertionError(f"{name}: refused without naming {key!r}: {error}") from error
            return
        raise AssertionError(f"{name}: was taken")

    return f"{name} is refused", run


def cases() -> Iterator[Case]:
    """(name, what raises AssertionError unless the outcome is the right one)."""
    yield from _resets()
    yield from _outcomes()
    yield from _spaces()
    yield from _returns()
    yield from _facts()


# ---- how ended episodes are reset ------------------------------------------------------------------------------------


def _resets() -> Iterator[Case]:
    yield works("same step as in Gymnasium 1")
    yield works("same step of Gymnasium 0.29", final_key="final_observation", told="objects")
    yield works("last observations as a list", final="list", told="list")
    yield works("last observations batched", final="batched")
    yield works("last observations batched by key", final="batched", final_key="final_observation", as_dict=True)
    yield works("last observations as dicts", as_dict=True)
    yield works("infos as a list", final="rows", told="rows")
    yield works("infos as a list, dicts observed", final="rows", told="rows", as_dict=True)
    yield works("next step", mode="NEXT_STEP")
    yield works("next step, dicts observed", mode="NEXT_STEP", as_dict=True)
    yield works("next step, infos as a list", mode="NEXT_STEP", told="rows")
    yield works("disabled", mode="DISABLED")
    yield works("disabled, dicts observed", mode="DISABLED", as_dict=True)
    yield works("one env", lengths=(3,))
    yield works("a mode by its name", metadata={"autoreset_mode": "SAME_STEP"})
    yield works("a mode by its value", mode="NEXT_STEP", metadata={"autoreset_mode": "NextStep"})
    yield works("a mode that is told to us", {"autoreset_mode": "SAME_STEP"}, metadata={})
    make = functools.partial
    yield refused("no mode", "autoreset_mode", make(Toy, metadata={"render_modes": []}))
    yield refused("an unknown mode", "autoreset_mode", make(Toy, metadata={"autoreset_mode": "sometimes"}))
    yield refused("two modes", "autoreset_mode", Toy, {"autoreset_mode": "DISABLED"})
    yield refused("no last observations", "final_obs", make(Toy, final="none"))
    yield refused("no last observation of one env", "final_obs", make(Toy, lengths=(2, 2, 3), edit=_drop_last))
    yield refused("a mask that leaves an ended env out", "final_obs", make(Toy, edit=_unmask))
    yield refused("last observations of the ended alone", "final_obs", make(Toy, final="batched", edit=_only_ended))
    yield refused("last observations of another shape", "observation", make(Toy, edit=_short_last))
    yield refused("last observations without a key", "who", make(Toy, final="batched", as_dict=True, edit=_keyless))
    yield refused("next step that is same step", "final_obs", make(Toy, edit=lambda toy, out: tuple(out),
                  metadata={"autoreset_mode": "NEXT_STEP"}))  # fmt: skip
    yield refused("disabled that is same step", "final_obs", make(Toy, edit=lambda toy, out: tuple(out),
                  metadata={"autoreset_mode": "DISABLED"}))  # fmt: skip
    yield refused("an end in the step of a reset", "NEXT_STEP", make(Toy, mode="NEXT_STEP", edit=_ends_always))
    yield refused("a mask that is ignored", "reset_mask", make(_Deaf, mode="DISABLED"))
    yield refused("a seed that is ignored", "seed", make(_Unseeded))
    yield refused("a seed that is ignored, disabled", "seed", make(_Unseeded, mode="DISABLED"))
    yield refused("an episode without end", "horizon", make(Toy, lengths=(2, 9, 2)))


class _Deaf(Toy):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=[s or 0 for s in seed])


class _Unseeded(Toy):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=None, options=options)


def _with_final(change: Callable[[Toy, dict[str, Any]], None]) -> Callable[[Toy, list[Any]], Any]:
    """`change` the info of steps in which episodes end."""

    def edit(toy: Toy, out: list[Any]) -> Any:
        if toy.final_key in out[4]:
            change(toy, out[4])
        return tuple(out)

    return edit


@_with_final
def _drop_last(toy: Toy, info: dict[str, Any]) -> None:
    info[toy.final_key][np.flatnonzero(info[f"_{toy.final_key}"])[-1]] = None


@_with_final
def _unmask(toy: Toy, info: dict[str, Any]) -> None:
    info[f"_{toy.final_key}"][:] = False


@_with_final
def _only_ended(toy: Toy, info: dict[str, Any]) -> None:
    info[toy.final_key] = info[toy.final_key][info[f"_{toy.final_key}"]]


@_with_final
def _short_last(toy: Toy, info: dict[str, Any]) -> None:
    info[toy.final_key] = objects([None if v is None else v[:2] for v in info[toy.final_key]])


@_with_final
def _keyless(toy: Toy, info: dict[str, Any]) -> None:
    del info[toy.final_key]["who"]


def _ends_always(toy: Toy, out: list[Any]) -> Any:
    return out[0], out[1], out[2], np.ones(toy.num_envs, dtype=bool), out[4]


# ---- success ---------------------------------------------------------------------------------------------------------


def _outcomes() -> Iterator[Case]:
    for kind in (np.float32, np.int64, np.uint8, object):
        yield works(f"success of {kind.__name__}", says=lambda s, e, kind=kind: s.astype(kind))
    yield works("success in a column of its own", mode="NEXT_STEP", says=lambda s, e: s[:, None])
    yield works("is_success", key="is_success")
    yield works("a key of its own", {"success": "goal_achieved"}, key="goal_achieved")
    yield works("a nested key", {"success": "episode.won"}, key="episode", says=_nested, told="objects")
    yield works("a nested key, disabled", {"success": "episode.won"}, mode="DISABLED", key="episode", says=_columns)
    yield works("a key at the end alone", {"success": "success"}, says=_at_end, mode="NEXT_STEP")
    yield works("a key at the end alone, same step", {"success": "success"}, says=_at_end, told="objects")
    for mode in ("SAME_STEP", "NEXT_STEP", "DISABLED"):
        yield works(f"termination as success, {mode}", {"success": "terminated"}, mode=mode, key="other", told="none")
    make = functools.partial
    for mode in ("SAME_STEP", "NEXT_STEP", "DISABLED"):
        yield refused(f"an unknown key, {mode}", "goal_achieved", make(Toy, mode=mode, key="goal_achieved"))
        yield refused(
            f"a misspelt key, {mode}", "is_success", make(Toy, mode=mode, key="is_success"), {"success": "won"}
        )
        yield refused(f"success alone is told, {mode}", "task.success", make(Toy, mode=mode, says=_only_wins),
                      {"success": "success"})  # fmt: skip
    yield refused("a key at the end alone that is not named", "task.success", make(Toy, says=_at_end, told="objects"))
    yield refused("no final infos", "final_info", make(Toy, told="none"))
    yield refused("a dict for success", "task.success", make(Toy, key="episode", says=_nested, told="objects"),
                  {"success": "episode"})  # fmt: skip
    wrong: dict[str, Callable[[Array, Array], Any]] = {
        "a fraction": lambda s, e: np.where(e, 0.25, 0.0),
        "nearly one": lambda s, e: np.where(s, 0.999, 0.0),
        "two": lambda s, e: 2 * e.astype(int),
        "minus one": lambda s, e: -e.astype(int),
        "NaN": lambda s, e: np.where(e, np.nan, 0.0),
        "infinity": lambda s, e: np.where(e, np.inf, 0.0),
        "text": lambda s, e: s.astype(str),
        "nothing": lambda s, e: np.full(len(s), None),
        "a list": lambda s, e: objects([[bool(v), bool(v)] for v in s]),
        "a complex number": lambda s, e: s.astype(complex),
    }
    for name, says in wrong.items():
        yield refused(f"{name} for success", "task.success", make(Toy, says=says))
        yield refused(f"{name} for success, next step", "task.success", make(Toy, mode="NEXT_STEP", says=says))
    for name, value in {"one for all": True, "too few": np.zeros(2, dtype=bool), "too many": [False] * 4}.items():
        yield refused(f"{name} for success", "success", make(Toy, mode="NEXT_STEP", says=lambda s, e, v=value: v))
    yield refused("two keys that differ", "is_success", make(Toy, mode="DISABLED", edit=_contradict))
    yield refused("an empty key", "task.success", Toy, {"success": ""})
    yield refused("a number for a key", "task.success", Toy, {"success": 1})


def _nested(success: Array, ended: Array) -> Array:
    return objects([{"won": bool(s), "r": 1.5} for s in success])


def _columns(success: Array, ended: Array) -> dict[str, Any]:
    return {"won": success, "r": np.full(len(success), 1.5)}


def _at_end(success: Array, ended: Array) -> Array:
    return objects([bool(s) if e else None for s, e in zip(success, ended, strict=True)])


def _only_wins(success: Array, ended: Array) -> Array:
    return objects([True if s else None for s in success])


def _contradict(toy: Toy, out: list[Any]) -> Any:
    out[4]["is_success"] = ~out[4]["success"]
    return tuple(out)


# ---- spaces ----------------------------------------------------------------------------------------------------------


class _Blank(Toy):
    """Observes zeros of a space, takes actions of another one."""

    def __init__(self, observation: Any = None, action: Any = None, **toy: Any) -> None:
        super().__init__(mode="DISABLED", **toy)
        self.single_observation_space = self.single_observation_space if observation is None else observation
        self.single_action_space = self.single_action_space if action is None else action

    def seen(self, state: Array) -> Any:
        space = self.single_observation_space
        if isinstance(space, Dict):
            return {k: np.zeros((len(state), *v.shape), v.dtype) for k, v in space.items()}
        return np.zeros((len(state), *space.shape), space.dtype)


def _box(*shape: int, dtype: Any = np.uint8, high: float = 255) -> Box:
    return Box(0, high, shape, dtype)


def _spaces() -> Iterator[Case]:
    taken = {
        "a picture [h w 3]": (_box(9, 7, 3), {IMAGES + "main": (3, 9, 7)}),
        "a picture [3 h w]": (_box(3, 9, 7), {IMAGES + "main": (3, 9, 7)}),
        "points": (_box(100, 3, dtype=np.float32), {STATE: (300,)}),
        "frames of few numbers": (_box(4, 17, dtype=np.float64), {STATE: (68,)}),
        "memory of a game": (_box(128), {STATE: (128,)}),
        "infinite bounds": (Box(-np.inf, np.inf, (2,)), {STATE: (2,)}),
        "one number": (Box(-1, 1, ()), {STATE: (1,)}),
        "a picture and an empty box": (Dict(a=_box(0, dtype=np.float32), b=_box(9, 7, 3)), {IMAGES + "b": (3, 9, 7)}),
    }
    for name, (space, features) in taken.items():
        yield f"{name} works", functools.partial(_observes, space, features)
    pictures = {
        "a grey picture": _box(64, 64),
        "a grey picture with a channel": _box(84, 84, 1),
        "a grey picture, channel first": _box(1, 84, 84),
        "stacked grey pictures": _box(4, 84, 84),
        "an RGBA picture": _box(64, 64, 4),
        "stacked RGB": _box(64, 64, 9),
        "stacked RGB on an axis of its own": _box(4, 64, 64, 3),
        "a float picture": _box(96, 96, 3, dtype=np.float32, high=1),
        "a float picture, channels first": _box(3, 96, 96, dtype=np.float64, high=1),
        "a grey float picture": _box(84, 84, dtype=np.float32, high=1),
        "a picture of wide integers": _box(64, 64, 3, dtype=np.int32),
        "depth": _box(48, 64, dtype=np.uint16, high=65535),
        "a picture with channels in the middle": _box(64, 3, 64),
        "a picture whose channels are anywhere": _box(3, 64, 3),
        "a flattened picture": _box(64 * 64 * 9),
        "a flattened float picture": _box(64 * 64, dtype=np.float32, high=1),
        "an empty picture": _box(0, 0, 3),
    }
    make = functools.partial
    for name, space in pictures.items():
        yield refused(name, "observation", make(_Blank, space))
        yield refused(f"{name} in a dict", "eye", make(_Blank, Dict(eye=space, arm=_box(3, dtype=np.float32))))
    others = {
        "Discrete": Discrete(3), "MultiDiscrete": MultiDiscrete([2, 3]), "MultiBinary": MultiBinary(4),
        "Text": Text(5), "Tuple": Tuple([Box(0, 1), Discrete(2)]), "Graph": Graph(Box(0, 1), None),
        "Discrete in dicts": Dict(a=Dict(b=Discrete(2))), "Discrete in a dict": Dict(a=Box(0, 1), b=Discrete(2)),
        "no numbers": Box(0, 1, (0,)), "an empty dict": Dict(),
    }  # fmt: skip
    for name, space in others.items():
        yield refused(f"observing {name}", "observation_space", make(_Blank, space))
    for name, key in {"a folder": "../up", "a slash": "left/eye", "spaces": "left eye", "nothing": ""}.items():
        yield refused(f"a camera named by {name}", "camera", make(_Blank, Dict({key: _box(9, 7, 3)})))
    actions = {
        "Discrete": Discrete(3), "integers": Box(0, 9, (2,), np.int64), "bytes": _box(2),
        "half floats": Box(-1, 1, (2,), np.float16), "no limits": Box(-np.inf, np.inf, (2,)),
        "one limit": Box(np.array([-1, 0]), np.array([1, np.inf]), dtype=np.float64), "none": Box(-1, 1, (0,)),
        "equal limits": Box(np.array([0, 1]), np.array([0, 2]), dtype=np.float32), "Tuple": Tuple([Box(-1, 1)]),
        "Dict": Dict(a=Box(-1, 1)), "NaN as a limit": _nan_limit(),
    }  # fmt: skip
    for name, space in actions.items():
        yield refused(f"acting by {name}", "action_space", make(_Blank, None, space))
    yield refused("a meaning of other dimensions", "action", make(_Blank), {"action": _meaning(3, 1.0)})
    yield refused("a meaning beyond the limits", "action", make(_Blank), {"action": _meaning(2, 2.0)})
    yield refused("a meaning without limits", "action", make(_Blank, None, Box(-np.inf, np.inf, (2,))),
                  {"action": _meaning(2, np.inf)})  # fmt: skip
    yield "float64 actions stay within their limits works", _acts_within


def _nan_limit() -> Box:
    space = Box(-1.0, 1.0, (2,), np.float32)
    space.high[1] = np.nan
    return space


def _meaning(dim: int, high: float) -> ActionSpec:
    names = tuple(f"j{i}" for i in range(dim))
    return ActionSpec(names=names, units=("rad",) * dim, low=(-high,) * dim, high=(high,) * dim, frame="joint", tcp="",
                      rotation="joint", reference="absolute", gripper=None, gripper_meaning="")  # fmt: skip


def _observes(space: Any, features: dict[str, tuple[int, ...]]) -> None:
    env = adapt(_Blank(space), horizon=HORIZON)
    found = {k: v.shape for k, v in env.spec.observation.items() if k != "task_index"}
    assert found == features, found
    obs = env.reset()
    assert {k: tuple(obs[k].shape[1:]) for k in features} == features


def _acts_within() -> None:
    space, sent = Box(-0.1, 0.1, (2,), np.float64), []
    toy = _Blank(None, space)
    toy.step = lambda actions, step=toy.step: (sent.append(actions), step(actions))[1]  # type: ignore[method-assign]
    env = adapt(toy, horizon=HORIZON)
    env.reset()
    executed = env.step(torch.full((3, 2), 9.0)).executed
    assert all(space.contains(a) for a in sent[0]), "an action beyond the space's limits"
    assert torch.equal(executed, torch.from_numpy(sent[0].astype(np.float32))), "executed is not what was sent"


# ---- what step and reset return --------------------------------------------------------------------------------------


def _at(k: int, place: int, change: Callable[[Any], Any]) -> Callable[[Toy, list[Any]], Any]:
    """`change` what `step` returns at `place`, from the k-th step on."""
    count = iter(range(10**6))

    def edit(toy: Toy, out: list[Any]) -> Any:
        if next(count) >= k:
            out[place] = change(out[place])
        return tuple(out)

    return edit


def _put(value: Any) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        found = np.array(array, dtype=np.result_type(array, np.float32) if isinstance(value, float) else object)
        found[1] = value
        return found

    return change


def _returns() -> Iterator[Case]:
    make = functools.partial
    for mode in ("SAME_STEP", "DISABLED"):
        yield works(
            f"flags as integers, {mode}", mode=mode, edit=lambda toy, out: (*out[:2], out[2] * 1, out[3] * 1, out[4])
        )
        yield works(f"both ends at once, {mode}", mode=mode, edit=lambda toy, out: (*out[:3], out[2] | out[3], out[4]))
    yield works("float64 observed", edit=_at(0, 0, lambda obs: obs.astype(np.float64)))
    yield works("rewards of float16", edit=_at(0, 1, lambda reward: reward.astype(np.float16)))
    yield works("rewards as a list", edit=_at(0, 1, list))
    yield works("tensors", edit=lambda toy, out: (*(torch.as_tensor(v) for v in out[:4]), out[4]))
    for (key, place), changes in _bad().items():
        for name, change in changes.items():
            yield refused(f"{key}: {name}", key, make(Toy, edit=_at(0, place, change)))
            yield refused(f"{key}: {name}, later", key, make(Toy, mode="NEXT_STEP", edit=_at(4, place, change)))
    yield refused("an array for a dict", "observation", make(Toy, as_dict=True, edit=_at(2, 0, lambda o: o["who"])))
    yield refused("a dict without keys", "step", make(Toy, as_dict=True, edit=_at(2, 0, lambda o: {"eye": o["eye"]})))
    yield refused("a float picture at a step", "eye", make(Toy, as_dict=True, edit=_at(
        2, 0, lambda o: {**o, "eye": o["eye"] / 255.0})))  # fmt: skip
    yield refused("four values of a step", "step", make(Toy, edit=lambda toy, out: (*out[:3], out[4])))
    yield refused("a list of a step", "step", make(Toy, edit=lambda toy, out: out))
    yield refused("a reset without info", "reset", make(Toy, edit_reset=lambda toy, out: out[0]))
    yield refused("a reset of other shape", "observation", make(Toy, edit_reset=lambda toy, out: (out[0][:, 1:], {})))
    yield refused("a reset of NaN", "observation", make(Toy, edit_reset=lambda toy, out: (out[0] * np.nan, {})))
    yield refused("a step that fails", "a joint came off", make(Toy, edit=_fails))
    yield refused("a reset that fails", "a joint came off", make(Toy, edit_reset=_fails))


def _integers(toy: Toy, out: list[Any]) -> Any:
    return *out[:2], out[2].astype(int), out[3].astype(int), out[4]


def _bad() -> dict[tuple[str, int], dict[str, Callable[[Any], Any]]]:
    """By key and place among what `step` returns: changes that have to be refused."""
    observation: dict[str, Callable[[Any], Any]] = {
        "NaN": _put(np.nan),
        "infinity": _put(np.inf),
        "beyond float32": lambda o: o.astype(np.float64) * 1e300,
        "another shape": lambda o: o[:, :2],
        "too few envs": lambda o: o[:2],
        "too many envs": lambda o: np.concatenate([o, o]),
        "a dict": lambda o: {"main": o},
        "nothing": lambda o: None,
        "text": lambda o: o.astype(str),
        "objects": lambda o: o.astype(object),
        "ragged rows": lambda o: [o[0], o[1][:2], o[2]],
        "complex numbers": lambda o: o.astype(complex),
    }
    reward: dict[str, Callable[[Any], Any]] = {
        "NaN": _put(np.nan),
        "infinity": _put(-np.inf),
        "beyond float32": lambda r: r + 1e300,
        "one axis more": lambda r: r[:, None],
        "one for all": lambda r: 1.0,
        "nothing": lambda r: None,
        "text": lambda r: np.array(["much"] * 3),
        "unknown": _put(None),
    }
    flags: dict[str, Callable[[Any], Any]] = {
        "half": _put(0.5),
        "NaN": _put(np.nan),
        "unknown": _put(None),
        "text": lambda t: t.astype(str),
        "one for all": lambda t: False,
        "too few": lambda t: t[:2],
        "two": lambda t: t * 2 + 2,
        "nothing": lambda t: None,
    }
    info: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda i: None,
        "text": lambda i: "fine",
        "empty": lambda i: {},
        "Nones": lambda i: [None] * 3,
        "objects": lambda i: objects([3, "a", None]),
        "too few": lambda i: [{"success": False}] * 2,
        "a number": lambda i: 7,
    }
    return {
        ("observation", 0): observation,
        ("reward", 1): reward,
        ("terminated", 2): flags,
        ("truncated", 3): flags,
        ("task.success", 4): info,
    }


def _fails(toy: Toy, out: list[Any]) -> Any:
    raise KeyError("a joint came off")


# ---- facts about an env ----------------------------------------------------------------------------------------------


class One(gymnasium.Env):
    """One env of Gymnasium's; its info says `goal_achieved`."""

    observation_space, action_space = Box(-1, 1, (1,)), Box(-1, 1, (1,))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {"goal_achieved": True}


def _facts() -> Iterator[Case]:
    make = functools.partial
    yield refused("a single env", "VectorEnv", One)
    yield refused("no env", "VectorEnv", lambda: object())
    for what in ("num_envs", "single_observation_space", "single_action_space"):
        yield refused(f"no {what}", what, make(_without, what))
    for count in (0, -1, 2.0, "3", None):
        yield refused(f"num_envs={count!r}", "num_envs", make(_changed, num_envs=count))
    yield refused("num_envs of fewer", "observation", make(_changed, num_envs=2))
    yield refused("no horizon", "horizon", Toy, {"horizon": None})
    for horizon in (0, -3, 2.5, True, "4"):
        yield refused(f"horizon={horizon!r}", "horizon", Toy, {"horizon": horizon})
    for fps in (0, -10, float("nan"), float("inf"), "fast", [10]):
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_fps": fps}
        yield refused(f"render_fps={fps!r}", "render_fps", make(Toy, metadata=metadata))
    for dt in (0.0, -0.1, float("nan"), float("inf")):
        yield refused(f"dt={dt}", "dt", Toy, {"dt": dt})
    yield refused("metadata of None", "autoreset_mode", make(_changed, metadata=None))
    for mode in AutoresetMode:
        envs = make(SyncVectorEnv, [One] * 2, autoreset_mode=mode)
        yield refused(f"Gymnasium's own without a known key, {mode.name}", "goal_achieved", envs)
        yield refused(
            f"the same, infos as a list, {mode.name}", "goal_achieved", lambda envs=envs: DictInfoToList(envs())
        )


def _without(what: str) -> Toy:
    toy = Toy()
    delattr(toy, what)
    return toy


def _changed(**facts: Any) -> Toy:
    toy = Toy()
    for key, value in facts.items():
        setattr(toy, key, value)
    return toy


if __name__ == "__main__":
    failed = 0
    for name, case in cases():
        try:
            case()
        except AssertionError as error:
            failed += 1
            print(f"{name}: {error}")
    print(f"{len(list(cases()))} cases, {failed} failed")
    raise SystemExit(failed > 0)
