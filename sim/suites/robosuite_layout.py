"""Order and names of the numbers in robosuite's low-dimensional observations, the same for its versions 1.4 and 1.5."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from robopolicy.sim.experts.suites import slices

TOOL = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
_SIZES = {"tool": 3, "quat": 4, "fingers": 2, "object": 3, "object_quat": 4}  # of every task's observation, at its head
PARTS = slices(_SIZES)
_MOVING = ("tool", "object", "fingers")  # whose last steps `relative` adds


class Layout(NamedTuple):
    """Parts of an observation: those of the tool, then the suite's of objects, in order: {name: size}."""

    tool: dict[str, int]
    objects: dict[str, int]

    def moving(self, own: Any) -> tuple[Any, list[Any], Any]:
        """Return the places of the tool, of each object, and the fingers' positions, of an observation."""
        parts = slices({**self.tool, **self.objects})
        places = [own[parts[key]] for key in self._places()]
        return own[parts["tool"]], places, own[parts["fingers"]]

    def names(self, relative: bool) -> list[str]:
        """Return the names of the elements: tool_x …, tool_qx …, fingers_0 …, cubeA_x …, cubeA_to_cubeB_x …"""
        found = [_named(key, size) for key, size in {**self.tool, **self.objects}.items()]
        if relative:
            things = [key.removesuffix("_pos") for key in self._places()]
            found += [_named(f"tool_to_{thing}", 3) for thing in things]
            found += [_named(f"{thing}_step", 3) for thing in ("tool", *things)]
            found.append(_named("fingers_step", self.tool["fingers"]))
        return [name for part in found for name in part]

    def _places(self) -> list[str]:
        return [key for key, size in self.objects.items() if key.endswith("_pos") and "_to_" not in key and size == 3]


def layout(inner: Any, thing: str) -> Layout:
    """Read the layout of a task's observation.

    Args:
        thing: the one object, which is then called `object`; "": each as the suite calls it. Tasks whose object differs
            from episode to episode have it as `object` too.
    """
    if thing:
        return Layout({"tool": 3, "quat": 4, "fingers": 2}, {"object_pos": 3})
    obs = inner._get_observations(force_update=True)
    keys = [k for k, o in inner._observables.items() if o.modality == "object" and k in obs and o.is_active()]
    one = {key.removesuffix("_pos") for key in keys if key.endswith("_pos") and "_to_" not in key}
    varies = next(iter(one)) if {"nut_id", "obj_id"} & set(keys) and len(one) == 1 else ""
    sizes = {_ours(key, varies): int(np.size(obs[key])) for key in keys}
    return Layout({"tool": 3, "quat": 4, "fingers": int(np.size(obs[TOOL[2]]))}, sizes)


def _ours(key: str, varies: str) -> str:
    """Return our name of a part: object for the one that varies, X_in_tool for its pose in the tool's frame."""
    key = key.replace(varies, "object") if varies else key
    return key.replace("_to_robot0_eef_pos", "_in_tool").replace("_to_robot0_eef_quat", "_in_tool_quat")


def _named(key: str, size: int) -> list[str]:
    """Return the names of a part's elements; one number has the part's own name."""
    stem = key.removesuffix("_pos").removesuffix("_quat").replace("quat", "tool")
    quat = key.endswith("quat") and size == 4
    ends = ("qx", "qy", "qz", "qw") if quat else "xyz" if size == 3 else tuple(map(str, range(size)))
    return [stem] if size == 1 else [f"{stem}_{end}" for end in ends]


def element_names(name: str, relative: bool = False, *, peg: bool = False) -> list[str]:
    """Return the names of a task of one object: tool_x …, fingers_0, …, object_x …, then the object beside the tool.

    Lift has the vector from the cube to the tool in the world's frame (object_to_tool_*); the others have the object's
    pose in the tool's frame (object_in_tool_*). Behind them what `relative` adds: tool_to_object_* in the world's
    frame, object_to_peg_* where there is a `peg`, tool_step_*, object_step_*, fingers_step_*.
    """
    beside = {"object_to_tool": 3} if name == "Lift" else {"object_in_tool": 3, "object_in_tool_quat": 4}
    if relative:
        beside |= {"tool_to_object": 3} | ({"object_to_peg": 3} if peg else {})
        beside |= {f"{key}_step": _SIZES[key] for key in _MOVING}
    ends = {2: ("0", "1"), 3: "xyz", 4: ("qx", "qy", "qz", "qw")}
    return [
        f"{key.removesuffix('_quat').replace('quat', 'tool')}_{e}"
        for key, size in {**_SIZES, **beside}.items()
        for e in ends[size]
    ]


def object_keys(thing: str, *, of_parts: bool) -> dict[str, int]:
    """Return the suite's parts of an object's observation, in the order and with the signs of 1.4.

    Args:
        thing: as for `layout`. of_parts: the suite is 1.5, which has another order, and the cube seen from the tool.
    """
    if not thing:
        return {"object-state": 1}
    from_cube = {f"gripper_to_{thing}_pos": -1 if of_parts else 1}
    in_tool = {f"{thing}_to_robot0_eef_pos": 1, f"{thing}_to_robot0_eef_quat": 1}
    return {f"{thing}_pos": 1, f"{thing}_quat": 1, **(from_cube if thing == "cube" else in_tool)}
