"""The risk critic may slow the arm down, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from robopolicy.real.safety import Mode, SafetyError, load_profile
from robopolicy.real.safety.audit import joint_violations, space_violations
from robopolicy.real.safety.risk import RiskCritic, features
from tests.real.adversary import targets
from tests.real.safety.test_chain import DT, Rig

PROFILE = load_profile("panda", tcp_speed=1.0, reference_clip=10.0)


def critic(bias: float, **options) -> RiskCritic:
    """Says the same of everything: `bias` is the logit."""
    return RiskCritic(PROFILE, DT, ((np.zeros((21, 1)), np.array([bias])),), **options)


def fastest(rig: Rig) -> float:
    rig.run(0.5)
    return float((np.abs(np.diff(rig.commands, axis=0)) / DT / rig.profile.velocity).max())


def test_a_critic_can_only_slow_down():
    free, calm, wary = fastest(Rig()), fastest(Rig(risk=critic(-20.0))), fastest(Rig(risk=critic(20.0)))
    assert calm == free > 0.5 and wary <= 0.21, "a fifth, and what a joint overshoots in a few ticks"
    rig = Rig(risk=critic(20.0))
    assert "risk" in rig.tick().reasons and rig.chain.mode is Mode.RUN
    assert "risk" not in Rig(risk=critic(-20.0)).tick().reasons


NOT_A_NUMBER = ((np.full((21, 1), np.nan), np.zeros(1)),)


@pytest.mark.parametrize("layers", [
    NOT_A_NUMBER, ((np.full((21, 1), np.inf), np.full(1, -np.inf)),),
    ((np.zeros((3, 1)), np.zeros(1)),), ((np.zeros((21, 1)), np.array([1e308])),),
])  # fmt: skip
def test_what_is_no_number_is_as_slow_as_can_be(layers):
    it = RiskCritic(PROFILE, DT, layers)
    home = np.array(PROFILE.data["home"])
    assert it.pace(np.tile(home, (6, 1)), home) == it.floor


def test_pace_falls_with_risk_and_stays_in_its_bounds():
    home = np.array(PROFILE.data["home"])
    paces = [critic(b).pace(np.tile(home, (6, 1)), home) for b in np.linspace(-8, 8, 33)]
    assert paces == sorted(paces, reverse=True) and paces[0] == 1.0 and paces[-1] == pytest.approx(0.2)
    with pytest.raises(SafetyError, match="floor"):
        critic(0.0, floor=0.0)


def test_a_critic_that_changes_its_mind_breaks_no_limit():
    """Random verdicts under adversarial targets: certified as ever, by the independent checker."""
    rng = np.random.default_rng(0)
    rig = Rig(settings={"tracking_error": 10.0})
    rig.chain.risk = type(
        "Moody", (), {"pace": lambda self, c, target: float(rng.choice([0.2, 1.0, np.nan, 7.0, -1.0]))}
    )()
    with np.errstate(all="ignore"):
        for target in targets(rig.profile, 1, 400, seed=2):
            rig.tick(target[0])
    commands = np.array(rig.commands)[:, None]
    assert sum(joint_violations(commands, rig.profile, DT).values()) == 0 and not rig.chain.error
    assert sum(space_violations(commands, rig.profile, DT, poses=60).values()) == 0
    assert np.ptp(commands, axis=0).max() > 0.1


def test_saved_and_loaded_and_refused(tmp_path):
    rng = np.random.default_rng(1)
    it = RiskCritic(
        PROFILE, DT, ((rng.normal(size=(21, 8)), rng.normal(size=8)), (rng.normal(size=(8, 1)), np.zeros(1)))
    )
    it.save(tmp_path / "risk.npz")
    again = RiskCritic.load(tmp_path / "risk.npz", PROFILE, DT)
    c, target = np.tile(PROFILE.data["home"], (6, 1)), np.array(PROFILE.data["home"]) + 0.1
    assert again.risk(c, target) == it.risk(c, target) and 0 < it.risk(c, target) < 1
    with pytest.raises(SafetyError, match="fr3"):
        RiskCritic.load(tmp_path / "risk.npz", load_profile("fr3"), DT)
    with pytest.raises(SafetyError, match=r"0\.01"):
        RiskCritic.load(tmp_path / "risk.npz", PROFILE, 0.01)
    (tmp_path / "bad.npz").write_bytes(b"no")
    with pytest.raises(SafetyError, match=r"train_risk\.py"):
        RiskCritic.load(tmp_path / "bad.npz", PROFILE, DT)
    RiskCritic(PROFILE, DT, NOT_A_NUMBER).save(tmp_path / "nan.npz")
    with pytest.raises(SafetyError, match="do not fit"):
        RiskCritic.load(tmp_path / "nan.npz", PROFILE, DT)


def test_features_are_small_numbers():
    rng = np.random.default_rng(2)
    q = rng.uniform(PROFILE.low, PROFILE.high, (5, 7))
    found = features(np.tile(q[:, None], (1, 6, 1)), q + 100.0, PROFILE, DT)
    assert found.shape == (5, 21) and np.abs(found).max() <= 1.0 and (found[:, 7:14] == 0).all()
