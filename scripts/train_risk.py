"""Train the risk critic of one arm from interventions of its limits; rows of evidence as JSON lines.

    python scripts/train_risk.py --robot panda --out runs/risk/panda.npz [--record]

Arms are driven about at random by targets as a policy sends them (way points at permitted and unpermitted speed, with
noise) and, every fourth, by the adversary of the tests. A tick is labelled risky if a limit steps in within the next
0.2 s; being too far for one tick does not count. A small network learns to tell, on seeds apart from those it is
judged by.

auc            how well it tells risky ticks of unseen seeds from others: chance is 0.5.
interventions  ratio, with the critic over without, of ticks in which a limit steps in, one arm on unseen seeds.
speed          ratio, likewise, of the way that the joints go: what caution costs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import nn

from robopolicy.real.safety import CommandLimiter, SafetyChain, load_profile, profile_names
from robopolicy.real.safety.decision import Measured
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.risk import RiskCritic, features
from robopolicy.real.safety.settings import Plane
from robopolicy.reporting.result_rows import Evidence, measured, write
from tests.real.adversary import targets as adversary

DT, AHEAD = 0.004, 50  # s; ticks that a label looks ahead


def waypoints(profile: Profile, arms: int, ticks: int, seed: int) -> Iterator[np.ndarray]:
    """[N n] a tick: straight ways to random poses about home, at 0.2 to 2 times the permitted speed."""
    rng, home = np.random.default_rng(seed), np.array(profile.data["home"])
    at, goal = np.tile(home, (arms, 1)), np.tile(home, (arms, 1))
    pace = np.ones((arms, 1))
    for _ in range(ticks):
        new = (np.abs(goal - at).max(axis=1) < 1e-6) | (rng.random(arms) < 0.005)
        far = np.clip(home + rng.normal(0, 0.6, goal.shape), profile.maker["low"], profile.maker["high"])
        goal = np.where(new[:, None], far, goal)
        pace = np.where(new[:, None], rng.uniform(0.2, 2.0, (arms, 1)), pace)
        step = goal - at
        slowest = np.maximum((np.abs(step) / (pace * profile.velocity * DT)).max(axis=1, keepdims=True), 1.0)
        at = at + step / slowest
        yield at + rng.normal(0, 2e-5, at.shape)


def collect(profile: Profile, arms: int, ticks: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features [M 3n] and labels [M] of arms that are driven about."""
    limiter = CommandLimiter(profile, arms, dt=DT, projection=None)
    limiter.start(np.tile(profile.data["home"], (arms, 1)))
    quarter = arms // 4
    streams = zip(
        waypoints(profile, arms - quarter, ticks, seed), adversary(profile, quarter, ticks, seed), strict=True
    )
    seen, stepped_in = [], []
    with np.errstate(all="ignore"):
        for calm, wild in streams:
            target = np.concatenate([calm, wild])
            readable = np.where(np.abs(target) < 1e6, target, limiter.last)
            seen.append(features(limiter.c, readable, profile, DT))
            verdict = limiter.filter(target)
            if verdict.error:
                sys.exit(verdict.error)
            stepped_in.append(verdict.reasons[:, : len(limiter.limits)].any(axis=1))
    soon = np.array(stepped_in, dtype=np.float64)
    total = np.cumsum(np.concatenate([np.zeros((1, arms)), soon]), axis=0)
    risky = total[AHEAD:] > total[:-AHEAD]
    return np.array(seen)[: len(risky)].reshape(-1, seen[0].shape[1]), risky.reshape(-1)


def train(x: np.ndarray, y: np.ndarray, *, epochs: int, width: int = 32) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Layers of a network with one output, the logit of the risk."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(x.shape[1], width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    inputs, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    for _ in range(epochs):
        for index in torch.randperm(len(inputs)).split(1024):
            loss = nn.functional.binary_cross_entropy_with_logits(net(inputs[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    return tuple((m.weight.detach().double().numpy().T.copy(), m.bias.detach().double().numpy()) for m in linear)


def area(risk: np.ndarray, risky: np.ndarray) -> float:
    """Under the receiver's operating curve: how often a risky tick has the higher risk of a pair."""
    order = np.argsort(np.argsort(risk)) + 1.0
    positive = int(risky.sum())
    return float((order[risky].sum() - positive * (positive + 1) / 2) / (positive * (len(risk) - positive)))


def drive(profile: Profile, critic: RiskCritic | None, ticks: int, seed: int) -> tuple[float, float]:
    """Fraction of ticks in which a limit steps in, and the way that the joints go [rad], of one arm."""
    chain, now = SafetyChain(profile, dt=DT, risk=critic), 0.0
    chain.activate(Measured(np.array(profile.data["home"])), now)
    limits = {limit.name for limit in chain.limiter.limits}
    stepped_in, way = 0, 0.0
    for target in waypoints(profile, 1, ticks, seed):
        now += DT
        before = chain.limiter.c[0, -1]
        decision = chain.filter(target[0], Measured(before), now)
        stepped_in += bool(limits & set(decision.reasons))
        way += float(np.abs(decision.command - before).sum())
    return stepped_in / ticks, way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robot", default="panda", choices=profile_names())
    parser.add_argument("--out", type=Path, default=Path("runs/risk/panda.npz"))
    parser.add_argument("--arms", type=int, default=40)
    parser.add_argument("--ticks", type=int, default=1500)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--record", action="store_true", help="write docs/results/risk_critic.json too")
    args = parser.parse_args()
    profile = load_profile(
        args.robot, tcp_speed=0.5, planes=(Plane((0.0, 0.0, 1.0), 0.0),), reference_clip=10.0, tracking_error=10.0
    )
    x, y = collect(profile, args.arms, args.ticks, seed=0)
    critic = RiskCritic(profile, DT, train(x, y, epochs=args.epochs))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    critic.save(args.out)

    unseen, risky = collect(profile, args.arms // 4, args.ticks, seed=1)
    auc = area(critic.logits(unseen), risky)
    runs = [[drive(profile, c, args.ticks, seed) for seed in range(100, 104)] for c in (None, critic)]
    (plain, plain_way), (wary, wary_way) = (np.mean(run, axis=0) for run in runs)
    notes = f"{len(x)} ticks to learn from, {100 * y.mean():.0f}% risky; {len(unseen)} unseen, {4 * args.ticks} driven"
    rows: list[Evidence] = [
        measured(
            id="risk_critic", setting=args.robot, metric=metric, interval=round(float(value), 4), notes=notes + more
        )
        for metric, value, more in (
            ("auc", auc, ""),
            ("interventions", wary / max(plain, 1e-9), f"; in {100 * plain:.1f}% of ticks without"),
            ("speed", wary_way / plain_way, ""),
        )
    ]
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
