"""The quadratic programme: nearest, and never believed on its word."""

from __future__ import annotations

import numpy as np
import pytest
import quadprog

from robopolicy.real.safety.projection import project


def test_projection_agrees_with_another_solver():
    rng = np.random.default_rng(0)
    checked = 0
    for _ in range(200):
        n, m = 7, 20
        wish, g, h = rng.normal(size=n), rng.normal(size=(m, n)), rng.uniform(-0.1, 1.0, m)
        low, high = -np.ones(n), np.ones(n)
        ours = project(wish, low, high, g, h)
        c = np.concatenate([np.eye(n), -np.eye(n), -g]).T
        try:
            theirs = quadprog.solve_qp(np.eye(n), wish, c, np.concatenate([low, -high, -h]))[0]
        except ValueError:
            assert ours is None
            continue
        checked += 1
        np.testing.assert_allclose(ours, theirs, atol=1e-9)
    assert checked > 100


def test_projection_refuses_numbers_that_are_none():
    one, rows = np.ones(7), (np.ones((1, 7)), np.ones(1))
    assert project(one * np.nan, -one, one, *rows) is None
    assert project(one, -one, one, np.full((1, 7), np.nan), np.ones(1)) is None
    assert project(one, -one, one, np.zeros((1, 7)), np.array([np.inf])) is None
    assert project(one, -one, one, np.array([[1.0] * 7, [-1.0] * 7]), np.array([-1.0, -1.0])) is None


@pytest.mark.parametrize("kind", ["gave up", "lies", "not a number"])
def test_a_solver_is_not_believed(kind, monkeypatch):
    """Neither its flag alone nor its numbers alone are enough."""
    one, far = np.ones(7), np.full(7, np.nan if kind == "not a number" else 0.5)
    answer = {"gave up": (np.zeros(7), 0.0, -4, {}), "lies": (far, 0.0, 1, {}), "not a number": (far, 0.0, 1, {})}[kind]
    monkeypatch.setattr("daqp.solve", lambda *_: answer)
    assert project(one, -one, one, np.ones((1, 7)), np.zeros(1)) is None
    monkeypatch.setattr("daqp.solve", lambda *_: (np.zeros(7), 0.0, 1, {}))
    assert np.array_equal(project(one, -one, one, np.ones((1, 7)), np.zeros(1)), np.zeros(7))
