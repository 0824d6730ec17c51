"""instantiate.py and schema.py: whatever is wrong with a config is said before anything is built."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, Unpack

import pytest
import torch
from torch import nn

from robopolicy.config import instantiate as b
from robopolicy.config import registry
from robopolicy.config.plan import plan_call
from robopolicy.config.schema import PARTIAL, Count, Device, Fraction, Natural, Node, Positive, describe
from robopolicy.core.errors import ConfigError
from robopolicy.policies.base import LikelihoodPolicy
from robopolicy.policies.factory import build_policy
from robopolicy.policies.residual import ResidualPolicy
from tests.fakes import PointPolicy


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
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of these tests, which no config of ours has."""
    net = {"net": Net}
    tasks = {"make": make, "forward": forward, "grouped": grouped}
    own = {**registry._SLOTS["network"], **net}
    more = {"thing": {"thing": Thing}, "toy": tasks, "network": own, "activation": net, "child": net, "loop": net}
    monkeypatch.setattr(registry, "_SLOTS", {**registry._SLOTS, **more})


def thing(**changes: Any) -> dict[str, Any]:
    return {"_target_": "thing", "network": {"_target_": "net", "_partial_": True, "hidden": [4, 4]}, **changes}


def problems(node: dict[str, Any], slot: str, where: str = "", supplied: list[str] | None = None) -> list[str]:
    given = None if node.get(PARTIAL) else supplied
    try:
        return plan_call(registry.resolve(node, slot, where), node, where or slot, given)[1]
    except ConfigError as error:
        return [str(error)]


def call_problems(target: Callable[..., Any], arguments: dict[str, Any]) -> list[str]:
    return plan_call(target, arguments, "", None)[1]


def check(node: dict[str, Any], slot: str, where: str = "", supplied: list[str] | None = None) -> None:
    b.raise_all(problems(node, slot, where, supplied))


def test_builds_nested_factories_and_converts_by_annotation() -> None:
    built = b.build(thing(out="runs/x", lr=1, parts=[1, 2]), "thing", spec="s")
    assert built.out == Path("runs/x")
    assert isinstance(built.lr, float)
    assert built.parts == (1, 2)
    net = built.network(3)
    assert (net.size, net.hidden) == (3, (4, 4))


def test_runtime_objects_are_passed_untouched() -> None:
    spec = {"a": torch.zeros(1)}
    assert b.build(thing(), "thing", spec=spec).spec is spec


def test_partial_node_returns_a_factory_that_build_can_complete_later() -> None:
    factory = b.build({**thing(), "_partial_": True}, "thing")
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
        ({"network": {"_target_": "net", "_partial_": True, "hiden": [1]}}, r"policy\.network\.hiden: unknown"),
        ({"network": {"_target_": "net", "_partial_": True, "hidden": ["a"]}}, r"policy\.network\.hidden: exp"),
        ({"activation": {"_target_": "net"}}, r"policy\.activation\.size: needs a value \(int\)"),
        ({"_args_": [1]}, r"policy\._args_: unknown directive"),
        ({"parts": [{"_target_": "net", "size": 1}]}, r"policy\.parts: "),
        ({"horizon": {"_target_": "net", "size": 1}}, r"policy\.horizon\._target_: "),
        ({"child": {"horizon": 1}}, r"policy\.child: has no _target_"),
        ({"child": {"_target_": "net", "hiden": 1}}, r"policy\.child\.hiden: unknown key"),
    ],
)
def test_mistakes_are_named_with_their_full_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(thing(**changes), "thing", "policy")


def test_all_mistakes_are_listed_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)2 problems.*policy\.lr.*policy\.horizonn"):
        check(thing(lr="abc", horizonn=3), "thing", "policy")


def test_missing_arguments_count_only_when_the_program_does_not_supply_them() -> None:
    check(thing(), "thing", "policy")
    check(thing(), "thing", "policy", supplied=["spec"])
    with pytest.raises(ConfigError, match=r"policy\.spec: needs a value \(str\), required by .*Thing"):
        check(thing(), "thing", "policy", supplied=[])


def test_a_factory_that_lacks_a_keyword_names_its_key() -> None:
    made = b.build(thing(network={"_target_": "net", "_partial_": True}), "thing", "policy", spec="s")
    with pytest.raises(ConfigError, match=r"policy\.network\.size: needs a value \(int.*required by .*Net"):
        made.network()
    assert made.network(size=3).size == made.network(4).size - 1 == 3


def test_key_that_the_program_sets_is_refused_in_the_config() -> None:
    with pytest.raises(ConfigError, match=r"policy\.spec: is set by the program itself"):
        b.build(thing(spec="mine"), "thing", "policy", spec="theirs")


def test_factory_where_an_object_belongs_is_refused() -> None:
    class Holder:
        def __init__(self, network: Net) -> None: ...

    node = {"network": {"_target_": "net", "_partial_": True, "size": 1}}
    assert "found a factory" in call_problems(Holder, node)[0]
    assert (
        "found a node of mlp" in call_problems(Holder, {"network": {"_target_": "mlp", "in_dim": 1, "out_dim": 1}})[0]
    )
    assert call_problems(Holder, {"network": {"_target_": "net", "size": 1}}) == []


def test_kwargs_are_checked_where_their_keys_are_known() -> None:
    node = {"_target_": "make", "task": "pick", "cameras": ["front"]}
    assert b.build(node, "toy", "task") == {"task": "pick", "cameras": ("front",)}
    with pytest.raises(ConfigError, match=r"task\.cameras: needs a value \(\[str, …\]\)"):
        check({"_target_": "make", "task": "pick"}, "toy", "task", supplied=[])
    with pytest.raises(ConfigError, match=r"task\.horizn: unknown key.*'horizon'"):
        check({**node, "horizn": 3}, "toy", "task")
    with pytest.raises(ConfigError, match=r"hiden: unknown key.*'hidden'"):
        check({"_target_": "forward", "task": "x", "hiden": 1}, "toy")


def test_groups_of_keys_are_dataclasses() -> None:
    node = {"loop": {"_target_": "net"}, "num_envs": 4}
    built = b.build({"_target_": "grouped", "group": node}, "toy")
    assert built == Group(loop={"_target_": "net"}, num_envs=4)
    with pytest.raises(ConfigError, match=r"group\.num_env: unknown key.*'num_envs'"):
        check({"_target_": "grouped", "group": {**node, "num_env": 3}}, "toy")


@pytest.mark.parametrize(
    "target",
    [
        "os.system", "subprocess.call", "torch.load", "robopolicy.config.instantiate.build",
        "robopolicy.config.registry.allow", "robopolicy.utils.atomic.write_atomically",
        "robopolicy.policies.diffusion.DiffusionPolicy", "Diffusion", "mlp", "", 3, None, ["flow"], {"a": 1},
    ],
)  # fmt: skip
def test_a_node_names_only_what_is_registered_for_its_slot(target: Any) -> None:
    with pytest.raises(ConfigError, match=r"policy\._target_: "):
        build_policy({"_target_": target}, spec=PointPolicy().spec)
    nested = {"_target_": target if target != "mlp" else "flow"}
    with pytest.raises(ConfigError, match=r"policy\.network\._target_: "):
        build_policy({"_target_": "flow", "network": nested}, spec=PointPolicy().spec, normalizer=None)


@pytest.mark.parametrize("slot", sorted(registry.ROOTS))
def test_what_the_verbs_build_is_no_argument_of_a_node(slot: str) -> None:
    """A checkpoint cannot have a tracker or a loop built: these write files."""

    def taken(algo, coevolve, expert, loop, policy, task, tracker, world, world_model, world_model_report) -> None: ...

    name = registry.names(slot)[0]
    assert [p.split(":")[0] for p in call_problems(taken, {slot: {"_target_": name}})] == [slot]


def test_nodes_inside_of_data_are_refused() -> None:
    """`load_profile` takes any keyword, and plain dicts take any value: nothing in them is built."""
    node = {"_target_": "tracker", "run_dir": "x"}
    for changes in ({"more": node}, {"tracker": node}, {"network": {"_target_": "mlp"}}, {"box": {"low": [node]}}):
        with pytest.raises(ConfigError, match=rf"profile\.{next(iter(changes))}: "):
            check({"_target_": "robot", "robot": "panda", **changes}, "profile")


@pytest.mark.parametrize("task", [["pick"], 3, {"a": 1}, True])
def test_a_native_task_is_named_by_a_string(task: Any) -> None:
    assert any(p.startswith("task.task: ") for p in problems({"_target_": "native", "task": task}, "task"))


def test_every_registered_name_exists() -> None:
    from robopolicy.utils.suite_packages import PACKAGES

    for slot in registry._SLOTS:
        for name in registry.names(slot):
            if slot == "task" and name in {*PACKAGES, "maniskill_gpu"}:
                continue  # of a suite that may not be installed
            assert callable(registry.resolve({"_target_": name}, slot)), (slot, name)


def test_code_of_the_users_own_joins_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    (tmp_path / "my_robot_code.py").write_text(
        "from robopolicy.config.registry import register\n\n@register('network', 'mine')\ndef net(size: int) -> int:\n"
        "    return size\n"
    )
    monkeypatch.setattr(registry, "_SLOTS", {k: dict(v) for k, v in registry._SLOTS.items()})
    monkeypatch.setattr(registry, "_admitted", [])
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"network\._target_: .*'mine'"):
        b.build({"_target_": "mine", "size": 3}, "network")
    caplog.set_level("INFO")
    registry.allow("my_robot_code")
    assert "network=mine" in caplog.text
    assert [r.levelname for r in caplog.records] == ["INFO"], "no warning of a thing that was asked for"
    assert registry.admitted() == ("my_robot_code",)
    assert b.build({"_target_": "mine", "size": 3}, "network") == 3
    for wrong in ("my_robot_kode", "my_robot_code.nothing", "../my_robot_code", ""):
        with pytest.raises(ConfigError, match="--allow"):
            registry.allow(wrong)


def test_a_registered_name_keeps_its_meaning() -> None:
    registry.register("network", "net")(Net)
    with pytest.raises(ConfigError, match="network=net"):
        registry.register("network", "net")(Thing)
    for slot, name in (("network", "Net"), ("network", "a.b"), ("net work", "net"), ("network", 3)):
        with pytest.raises(ConfigError, match="register"):
            registry.register(slot, name)  # type: ignore[arg-type]


def test_what_stands_in_for_a_policy_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._SLOTS["policy"], "number", lambda spec: 3)
    with pytest.raises(ConfigError, match=r"policy\._target_: "):
        build_policy({"_target_": "number"}, spec=PointPolicy().spec)


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
        b.raise_all(call_problems(ranged, given))


def test_numbers_in_range_pass() -> None:
    good = {"count": 1, "natural": 0, "rate": 1, "share": 1.0, "device": "cpu"}
    assert call_problems(ranged, good) == []
    assert call_problems(ranged, {"count": None}) == []


def test_annotations_read_like_english() -> None:
    assert describe(float | None) == "float | null"
    assert describe(tuple[int, ...]) == "[int, …]"
    assert describe(Path) == "Path"
    assert describe(Node | None) == "config node | null"


def test_a_policy_of_another_class_names_the_options_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(policy: Any) -> None: ...

    def many(policy: Any) -> None: ...

    monkeypatch.setattr(registry, "_SLOTS", {k: dict(v) for k, v in registry._SLOTS.items()})
    for function, kind, options in (
        (one, ResidualPolicy, "policy=residual"),
        (many, LikelihoodPolicy, "policy=<gaussian or mixture>"),
    ):
        function.__annotations__["policy"] = kind
        registry.register("algo", function.__name__)(function)
        with pytest.raises(ConfigError) as found:
            b.build({"_target_": function.__name__}, "algo", policy=torch.nn.Identity())
        said = str(found.value)
        assert f"needs a {kind.__name__} as 'policy', found a Identity. Add {options}, or `defaults: [" in said
        assert "` to the config of algo." in said
