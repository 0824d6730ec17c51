"""Build objects from config nodes; nothing else does.

A node is a mapping with `_target_` (a name that is registered for the node's slot, see registry.py), keyword
arguments and, for a factory, `_partial_: true`. The slot of a nested node is the key that it stands at. A node and all
nodes in it become a plan first (plan.py), which is checked against constructors (schema.py); then it is carried out.

Hydra composes the configs; its `instantiate` is not used. It calls any import path, it turns the dataclasses and dicts
that are passed at run time (specs, features) into OmegaConf containers, and its lists can never become tuples.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from robopolicy.config.hydra_configs import group_files
from robopolicy.config.plan import Plan, plan_call
from robopolicy.config.registry import names, resolve
from robopolicy.config.schema import PARTIAL, TARGET, join, signature
from robopolicy.core.errors import ConfigError


def raise_all(found: list[str], error: type[ConfigError] = ConfigError) -> None:
    """Raise one `error` for all sentences in `found`; return when there is none."""
    if len(found) == 1:
        raise error(found[0])
    if found:
        raise error(f"{len(found)} problems in the configuration:\n  - " + "\n  - ".join(found))


def build(node: Mapping[str, Any], slot: str, where: str = "", /, **runtime: Any) -> Any:
    """Build the object that `node` describes, passing `runtime` keywords beside those of the config.

    Args:
        slot, where: as `resolve`.

    Raises:
        ConfigError: anything is wrong with the node, or a key that both the config and the program set.
    """
    where = where or slot
    target = resolve(node, slot, where)
    if both := sorted(set(node) & set(runtime)):
        raise ConfigError(f"{join(where, both[0])}: is set by the program itself, remove it from the config")
    plan, found = plan_call(target, node, where, None if node.get(PARTIAL) else runtime)
    plan.partial = bool(node.get(PARTIAL))
    if problems := found or _runtime_problems(plan, runtime, where):
        raise_all(problems)
    return plan.make(runtime)


def open_arguments(node: Mapping[str, Any], slot: str) -> set[str]:
    """Return the keywords that the node's target takes and the node leaves to the program."""
    return signature(resolve(node, slot), node).known.keys() - node.keys()


def takes(node: Mapping[str, Any], slot: str, key: str) -> bool:
    """Return whether the node's target takes a keyword, given or not."""
    return key in signature(resolve(node, slot), node).known


def value_of(node: Mapping[str, Any], slot: str, key: str) -> Any:
    """Return the value of a key: the node's, or else the constructor's default; None where there is neither."""
    if key in node:
        return node[key]
    parameter = signature(resolve(node, slot), node).known.get(key)
    return None if parameter is None or parameter.required else parameter.default


def arguments_for(
    target: Callable[..., Any], arguments: Mapping[str, Any], name: str = "", error: type[ConfigError] = ConfigError
) -> dict[str, Any]:
    """Return keyword arguments as `target`'s annotations want them; nodes are built, unless `Node` asks for them.

    Args:
        name: of the target in the messages.
        error: the class to raise.

    Raises:
        ConfigError: anything is wrong with them; missing ones are not.
    """
    plan, found = plan_call(target, arguments, "", None, name)
    raise_all(found, error)
    return dict[str, Any](Plan(dict, plan.arguments).make())


def _runtime_problems(plan: Plan, runtime: Mapping[str, Any], where: str) -> list[str]:
    """Find objects of another class than the target needs, e.g. a policy that the chosen algo cannot train."""
    found, known, name = [], plan.known.known, plan.target.__qualname__
    for key, value in runtime.items():
        if key not in known:
            found += [] if plan.known.anything else [f"{where}: does not take {key!r}"]
            continue
        kind = known[key].annotation
        if kind is Any or not inspect.isclass(kind) or getattr(kind, "_is_protocol", False):
            continue
        if kind.__module__ != "builtins" and not isinstance(value, kind):
            found.append(
                f"{where}: {name} needs a {kind.__name__} as {key!r}, found a {type(value).__name__}. "
                f"{_choice_of(key, kind, where)}{_trained_by(value) if (where, key) == ('algo', 'policy') else ''}"
            )
    return found


def _trained_by(policy: object) -> str:
    """Say which algos are for this kind of policy, which a base may have decided; "" for none."""
    fitting = []
    for name in names("algo"):
        taken = signature(resolve({TARGET: name}, "algo"), {}).known.get("policy")
        kind = None if taken is None else taken.annotation
        if inspect.isclass(kind) and kind.__name__ != "Policy" and isinstance(policy, kind):
            fitting.append(name)
    return f" A {type(policy).__name__} is trained by algo=<{' or '.join(fitting)}>." if fitting else ""


def _choice_of(group: str, kind: type, where: str) -> str:
    """Say which options of a config group make an object of a class, and where they are chosen."""
    fitting = []
    for name in [n for n in names(group) if not n.startswith("lerobot")]:  # others' policies come by base=
        target = resolve({TARGET: name}, group)
        fitting += [name] if inspect.isclass(target) and issubclass(target, kind) else []
    head = re.compile(rf"^{TARGET}: ({'|'.join(fitting)})$", re.MULTILINE)
    files = group_files().get(group, {}) if fitting else {}
    options = [option for option, file in files.items() if head.search(file.read_text(encoding="utf-8"))]
    if not options:
        return "Choose options that belong together."
    one = options[0] if len(options) == 1 else f"<{' or '.join(options)}>"
    return f"Add {group}={one}, or `defaults: [override /{group}: {one}]` to the config of {where}."
