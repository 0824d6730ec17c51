"""build.py and schema.py: whatever is wrong with a config is said before anything is built."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, Unpack

import pytest
import torch
from torch import nn

from robopolicy import build as b
from robopolicy.errors import ConfigError
from robopolicy.schema import Count, Device, Fraction, Natural, Node, Positive, describe
from tests.fakes import PointPolicy

HERE = __name__


class Net(nn.Module):
    def __init__(self, size: int, *, hidden: tuple[int, ...] = (8,), dropout: float | None = None) -> None:
        super().__init__()
        self.size, self.hidden, self.dropout = size, hidden, dropout


class Thing:
    def __init__(
        self,
        spec: str,
        *,
        network: Callable[..., nn.Module],
        activation: nn.Module | None = None,
        kind: Literal["ddpm", "ddim"] = "ddpm",
        horizon: int = 16,
        lr: float = 1e-3,
        out: Path = Path("x"),
        flag: bool = False,
        child: Node | None = None,
        parts: tuple[Any, ...] = (),
    ) -> None:
        self.__dict__.update(locals())


class Options(TypedDict, total=False):
    cameras: Required[tuple[str, ...]]
    horizon: int


def make(task: str, **kw: Unpack[Options]) -> dict[str, Any]:
    return {"task": task, **kw}


def forward(task: str, **kw: Any) -> dict[str, Any]:
    return kw


forward.forwards_to = lambda given: (Net,)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Group:
    loop: Node
    num_envs: int = 1


def grouped(group: Group | None = None) -> Group | None:
    return group


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(b, "PACKAGES", {*b.PACKAGES, "tests"})


def thing(**changes: Any) -> dict[str, Any]:
    node = {"_target_": f"{HERE}.Thing", "network": {"_target_": f"{HERE}.Net", "_partial_": True, "hidden": [4, 4]}}
    return {**node, **changes}


def test_builds_nested_factories_and_converts_by_annotation() -> None:
    built = b.build(thing(out="runs/x", lr=1, parts=[1, 2]), spec="s")
    assert built.out == Path("runs/x")
    assert isinstance(built.lr, float)
    assert built.parts == (1, 2)
    net = built.network(3)
    assert (net.size, net.hidden) == (3, (4, 4))


def test_runtime_objects_are_passed_untouched() -> None:
    spec = {"a": torch.zeros(1)}
    assert b.build(thing(), spec=spec).spec is spec


def test_partial_node_returns_a_factory_that_build_can_complete_later() -> None:
    factory = b.build({**thing(), "_partial_": True})
    assert isinstance(factory, functools.partial)
    assert factory("s").horizon == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizonn": 8}, r"policy\.horizonn: unknown key; .*Thing does not take it\. Did you mean 'horizon'\?"),
        ({"lr": "abc"}, r"policy\.lr: expected float, found 'abc' \(str\)"),
        ({"horizon": 8.5}, r"policy\.horizon: expected int, found 8\.5 \(float\)"),
        ({"horizon": True}, r"policy\.horizon: expected int, found True \(bool\)"),
        ({"horizon": None}, r"policy\.horizon: expected int, found null"),
        ({"kind": "dpm"}, r"policy\.kind: expected 'ddpm' \| 'ddim', found 'dpm'"),
        ({"horizon": "???"}, r"policy\.horizon: needs a value\. Add policy\.horizon=<int>"),
        ({"network": {"_target_": f"{HERE}.Net", "_partial_": True, "hiden": [1]}}, r"policy\.network\.hiden: unknown"),
        ({"network": {"_target_": f"{HERE}.Net", "_partial_": True, "hidden": ["a"]}}, r"policy\.network\.hidden: exp"),
        ({"activation": {"_target_": f"{HERE}.Net"}}, r"policy\.activation\.size: needs a value \(int\)"),
        ({"_args_": [1]}, r"policy\._args_: unknown directive"),
        ({"parts": [{"_target_": f"{HERE}.Net", "size": "x"}]}, r"policy\.parts\.0\.size: expected int"),
        ({"child": {"horizon": 1}}, r"policy\.child: has no _target_"),
        ({"child": {"_target_": f"{HERE}.Net", "hiden": 1}}, r"policy\.child\.hiden: unknown key"),
    ],
)
def test_mistakes_are_named_with_their_full_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        b.check(thing(**changes), "policy")


def test_all_mistakes_are_listed_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)2 problems.*policy\.lr.*policy\.horizonn"):
        b.check(thing(lr="abc", horizonn=3), "policy")


def test_missing_arguments_count_only_when_nobody_supplies_them() -> None:
    b.check(thing(), "policy")
    b.check(thing(), "policy", supplied=["spec"])
    with pytest.raises(ConfigError, match=r"policy\.spec: needs a value \(str\), required by .*Thing"):
        b.check(thing(), "policy", supplied=[])


def test_key_that_the_program_sets_is_refused_in_the_config() -> None:
    with pytest.raises(ConfigError, match=r"policy\.spec: is set by the program itself"):
        b.build(thing(spec="mine"), "policy", spec="theirs")


def test_factory_where_an_object_belongs_is_refused() -> None:
    class Holder:
        def __init__(self, net: Net) -> None: ...

    node = {"net": {"_target_": f"{HERE}.Net", "_partial_": True, "size": 1}}
    assert "found a factory" in b.call_problems(Holder, node)[0]
    assert "found a node of torch.nn.ReLU" in b.call_problems(Holder, {"net": {"_target_": "torch.nn.ReLU"}})[0]
    assert b.call_problems(Holder, {"net": {"_target_": f"{HERE}.Net", "size": 1}}) == []


def test_kwargs_are_checked_where_their_keys_are_known() -> None:
    node = {"_target_": f"{HERE}.make", "task": "pick", "cameras": ["front"]}
    assert b.build(node) == {"task": "pick", "cameras": ("front",)}
    with pytest.raises(ConfigError, match=r"task\.cameras: needs a value \(\[str, …\]\)"):
        b.check({"_target_": f"{HERE}.make", "task": "pick"}, "task", supplied=[])
    with pytest.raises(ConfigError, match=r"task\.horizn: unknown key.*'horizon'"):
        b.check({**node, "horizn": 3}, "task")
    with pytest.raises(ConfigError, match=r"hiden: unknown key.*'hidden'"):
        b.check({"_target_": f"{HERE}.forward", "task": "x", "hiden": 1})


def test_groups_of_keys_are_dataclasses() -> None:
    node = {"loop": {"_target_": f"{HERE}.Net"}, "num_envs": 4}
    built = b.build({"_target_": f"{HERE}.grouped", "group": node})
    assert built == Group(loop={"_target_": f"{HERE}.Net"}, num_envs=4)
    with pytest.raises(ConfigError, match=r"group\.num_env: unknown key.*'num_envs'"):
        b.check({"_target_": f"{HERE}.grouped", "group": {**node, "num_env": 3}})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("os.system", "outside the packages"),
        ("subprocess.run", "outside the packages"),
        ("torch.load", "outside the packages"),
        ("robopolicy.build.importlib.import_module", "leads out of our packages"),
        ("robopolicy.build.importlib", "is a module; expected a class or a function"),
        ("robopolicy.build._construct", "has no public '_construct'"),
        ("robopolicy.build.nothing", "has no public 'nothing'"),
        ("robopolicy.bild.build", r"has no public 'bild'\. Did you mean 'build'"),
        ("pick", "expected an import path"),
        (3, "expected an import path"),
    ],
)
def test_targets_outside_are_refused(target: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        b.build({"_target_": target}, "policy")


def test_a_package_of_the_users_own_can_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_robot_code.py").write_text("def net(size: int) -> int:\n    return size\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="--allow my_robot_code"):
        b.resolve("my_robot_code.net")
    b.allow("my_robot_code")
    assert b.build({"_target_": "my_robot_code.net", "size": 3}) == 3
    with pytest.raises(ConfigError, match="no such top-level package"):
        b.allow("my_robot_kode")


def test_policies_remember_their_node() -> None:
    node = {"_target_": "robopolicy.policies.hold.Nothing"}
    with pytest.raises(ConfigError, match="has no public 'Nothing'"):
        b.build_policy(node, spec=PointPolicy().spec)
    with pytest.raises(ConfigError, match=r"is not a robopolicy\.policies\.base\.Policy"):
        b.build_policy({"_target_": f"{HERE}.Net"}, spec=PointPolicy().spec)


def test_whitelisted_torch_classes() -> None:
    assert isinstance(b.build({"_target_": "torch.nn.GELU"}), nn.GELU)


def ranged(
    count: Count | None, natural: Natural = 0, rate: Positive = 1.0, share: Fraction = 0.5, device: Device = "cpu"
) -> None:
    pass


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"count": 0}, r"^count: expected int ≥ 1 \| null, found 0 \(int\)$"),
        ({"count": True}, "^count: expected int"),
        ({"natural": -1}, "^natural: expected int ≥ 0, found -1"),
        ({"natural": "many"}, "^natural: expected int ≥ 0, found 'many'"),
        ({"rate": 0.0}, "^rate: expected float > 0, found 0.0"),
        ({"rate": float("nan")}, "^rate: expected float > 0, found nan"),
        ({"rate": True}, "^rate: expected float > 0, found True"),
        ({"share": 1.5}, "^share: expected float from 0 to 1, found 1.5"),
        ({"device": "cdua"}, "^device: expected 'cpu', or 'cuda' where `doctor` finds a GPU, found 'cdua'"),
        ({"device": "cuda:99"}, "^device: expected 'cpu', or 'cuda'"),
    ],
)
def test_numbers_out_of_range_are_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        b.raise_all(b.call_problems(ranged, given))


def test_numbers_in_range_pass() -> None:
    good = {"count": 1, "natural": 0, "rate": 1, "share": 1.0, "device": "cpu"}
    assert b.call_problems(ranged, good) == []
    assert b.call_problems(ranged, {"count": None}) == []


def test_annotations_read_like_english() -> None:
    assert describe(float | None) == "float | null"
    assert describe(tuple[int, ...]) == "[int, …]"
    assert describe(Path) == "Path"
    assert describe(Node | None) == "config node | null"
