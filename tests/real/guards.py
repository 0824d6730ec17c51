"""Guards that tests disable one by one, by a change in the syntax tree of the function that holds them."""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

FAILS = (AssertionError, pytest.fail.Exception)


@dataclass(frozen=True)
class Guard:
    """A piece of code without which a test must fail.

    Attributes:
        name: of the test case.
        owner: class or module.
        function: its function that holds the guard.
        old: expression, statement, or header `if …:`, which occurs once in the function; "" for the whole body.
        new: code of the same kind that takes its place.
        test: must raise one of `how` without the guard.
    """

    name: str
    owner: Any
    function: str
    old: str
    new: str
    test: Callable[[], Any]
    how: tuple[type[BaseException], ...] = FAILS


class GuardNotFoundError(AssertionError):
    """The function does not hold the guard exactly once."""


def disabled(guard: Guard) -> Callable[..., Any]:
    """Compile the function of a guard without the guard.

    Raises:
        GuardNotFoundError: the code of the guard does not occur exactly once; lists the function's conditions.
    """
    function = getattr(guard.owner, guard.function)
    _check_names(guard, function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    space: dict[str, Any] = {}
    code = compile(
        _replaced(tree, guard), f"<{guard.name} disabled>", "exec", flags=__future__.annotations.compiler_flag
    )
    exec(code, function.__globals__, space)  # noqa: S102 our own source
    return space[guard.function]


def with_patch(test: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Bind the arguments of a test that takes `monkeypatch`."""

    def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            test(*args, monkeypatch=patch)

    return run


def case_of(test: Callable[..., Any], chosen: Callable[[Any], bool]) -> Callable[[], Any]:
    """Bind a parametrized test to the first of its cases that is chosen."""
    cases = next(mark.args[1] for mark in test.pytestmark if mark.name == "parametrize")
    return partial(test, *next(case for case in cases if chosen(case)))


def kill(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test of a guard without the guard; it must fail."""
    monkeypatch.setattr(guard.owner, guard.function, disabled(guard))
    with np.errstate(all="ignore"), pytest.raises(guard.how):
        guard.test()


def _check_names(guard: Guard, function: Callable[..., Any]) -> None:
    """Refuse new code with a name that the function does not know: a NameError would fail the test in its place."""
    code = function.__code__
    known = {*function.__globals__, *vars(builtins), *code.co_varnames, *code.co_freevars, *code.co_cellvars}
    new = ast.parse(guard.new).body if not guard.old else [_code(guard.new)]
    names = {node.id for part in new for node in ast.walk(part) if isinstance(node, ast.Name)}
    assert names <= known, f"{guard.name}: {guard.function} does not know {sorted(names - known)}"


def _replaced(tree: ast.Module, guard: Guard) -> ast.Module:
    """Change the one node of `tree` that is the guard's old code into its new code."""
    body = tree.body[0]
    assert isinstance(body, ast.FunctionDef)
    if not guard.old:
        body.body = ast.parse(guard.new).body
        return ast.fix_missing_locations(tree)
    old, new = _code(guard.old), _code(guard.new)
    if isinstance(new, ast.stmt) and isinstance(old, ast.expr):
        old = ast.Expr(old)
    is_header = guard.old.endswith(":")

    def same(node: ast.AST) -> bool:
        if is_header:
            return isinstance(node, ast.If) and ast.dump(node.test) == ast.dump(old)
        return ast.dump(node) == ast.dump(old)

    found = [node for node in ast.walk(body) if same(node)]
    if len(found) != 1:
        raise GuardNotFoundError(
            f"{guard.name}: expected {guard.old!r} once in {guard.owner.__name__}.{guard.function}, found it "
            f"{len(found)} times. Its conditions: {_conditions(body)}. Correct the list of guards"
        )
    swapped = found[0].test if is_header else found[0]

    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is swapped else self.generic_visit(node)

    return ast.fix_missing_locations(Swap().visit(tree))


def _code(source: str) -> ast.expr | ast.stmt:
    """Parse a guard's code: an expression where it is one, the condition of a header, else a statement."""
    if source.endswith(":"):
        node = ast.parse(f"{source} pass").body[0]
        assert isinstance(node, ast.If)
        return node.test
    (node,) = ast.parse(source).body
    return node.value if isinstance(node, ast.Expr) else node


def _conditions(body: ast.FunctionDef) -> list[str]:
    """List the conditions of a function, as source text."""
    nodes = (n for n in ast.walk(body) if isinstance(n, ast.If | ast.IfExp | ast.While | ast.Assert))
    return [ast.unparse(node.test) for node in nodes]
