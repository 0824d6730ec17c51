"""A hostile client against the real policy node over DDS: does anything move unasked, break a limit, or stay broken?

    python scripts/hostile_ros.py [--only NAME …] [--seed 0] [--record]

The client (scripts/hostile) plays the arm and its driver, the camera, the operator and bystanders, and attacks; each
scenario gets a node of its own. A checker that shares no code with the limits judges what was played and published.
`unasked_motions`: stretches of motion half a second after the last moment at which motion was permitted. A trial in
which this machine was late is done again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from robopolicy.reporting.result_rows import Evidence, measured, write
from scripts.hostile import checker
from scripts.hostile.checker import Verdict
from scripts.hostile.client import Client
from scripts.hostile.scenarios import CAMERA, COMMANDS, STATE, Scenario, honest, scenarios

ROOT = Path(__file__).resolve().parents[1]
KNOWN = (*STATE, *COMMANDS, *CAMERA, "enable", "trajectory", "gripper", "qos", "still braking", "robot_description",
         "planner", "tracking_error")  # fmt: skip
AGAIN, LATE = 3, 0.008  # s: a machine that is later than this makes the arm play a stop, and says nothing of the node
ON_TIME = 0.1  # s: a plan that begins later after now, or earlier before it, is not for now
METRICS = {"unasked_motions": "unasked", "dry_run_commands": "dry", "limit_violations": "limits",
           "unnamed_refusals": "unnamed", "not_recovered": "stuck"}  # fmt: skip


@contextmanager
def zygote(presets: Iterable[str], verbose: bool = False) -> Iterator[subprocess.Popen[str]]:
    """The process that forks nodes of these presets; it and all of them are ended."""
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"  # the client's own participants too
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "ROBOPOLICY_END_WITH_PARENT": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "scripts.hostile.target", *presets]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None if verbose else subprocess.DEVNULL,
        text=True, env=environment, cwd=ROOT, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline().strip() == "ready"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, signal.SIGKILL)


def fork(parent: subprocess.Popen[str], **line: object) -> int:
    """A new node's process id."""
    assert parent.stdin is not None and parent.stdout is not None
    parent.stdin.write(json.dumps(line) + "\n")
    parent.stdin.flush()
    return int(parent.stdout.readline())


def end(pid: int) -> None:
    """End a node; one that leaves its domain properly is not counted by those that come after it."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
        for _ in range(300):
            os.kill(pid, 0)
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)


def tried(parent: subprocess.Popen[str], scenario: Scenario, seed: int, number: int) -> tuple[Verdict, Client, int]:
    """One attack, done again where this machine was late and something was found; how often it was."""
    for again in range(AGAIN + 1):
        verdict, client = trial(parent, scenario, seed, number + 1000 * again)
        if verdict.fine or not client.lateness > LATE or again == AGAIN:
            break
    return verdict, client, again


def trial(parent: subprocess.Popen[str], scenario: Scenario, seed: int, number: int) -> tuple[Verdict, Client]:
    """One attack on a fresh node."""
    name, domain = f"policy_node_{number}", 1 + (os.getpid() + number % 2 * 50) % 100
    pid = fork(
        parent, name=name, domain=domain, wiring=scenario.robot.preset, dry_run=scenario.dry, process=scenario.process
    )
    try:
        with Client(scenario.robot, name, pid, domain) as client:
            if not client.call("configure").ok:
                raise SystemExit(f"{scenario.name}: the node cannot be configured: {client.report.get('message')}")
            client.until(lambda: client.out["enable"].get_subscription_count() > 0, 5.0)
            time.sleep(0.3)
            begin = time.monotonic()
            scenario.run(client, np.random.default_rng([seed, number]))
            client.log.attack = begin, time.monotonic()
            honest(client)
            time.sleep(1.0)
            stuck = recovered(client, scenario)
    finally:
        end(pid)
    return judge(client, scenario, stuck), client


def recovered(client: Client, scenario: Scenario) -> list[str]:
    """Why it does not go on as before once everything is sane."""
    if scenario.dry:
        ok = client.call("activate").ok and client.until(lambda: client.report.get("mode") == "RUN", 2.0)
        return [] if ok else [f"dry run: {client.report.get('message')}"]
    moving = client.report.get("mode") == "RUN" and client.moves(1.5)
    if not moving and not client.begin():
        return [f"{client.log.calls[-1].text or client.report.get('message', '')}"]
    late = []
    client.until(lambda: bool(late.append(client.lead)), 0.2)
    if not abs(np.median(late)) < ON_TIME:
        return [f"its plans begin {np.median(late):.2f} s after now"]
    return []


def judge(client: Client, scenario: Scenario, stuck: list[str]) -> Verdict:
    log, robot = client.log, scenario.robot
    sheet = checker.PANDA if robot.splines else checker.FR3
    return Verdict(
        unasked=checker.unasked(log), dry=checker.dry(log) if scenario.dry else [],
        limits=checker.limits(log, sheet, splines=robot.splines),
        unnamed=checker.unnamed(log, scenario.names, must=scenario.must, known=KNOWN),
        stuck=[*log.stopped, *stuck],
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="scenarios whose names begin so")
    parser.add_argument("--verbose", action="store_true", help="show what the nodes log")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="write docs/results/hostile_ros.json too")
    args = parser.parse_args(arguments)
    chosen = [s for s in scenarios() if not args.only or any(s.name.startswith(n) for n in args.only)]
    if not chosen:
        parser.error(f"--only: no scenario begins with {args.only}; there are {[s.name for s in scenarios()]}")
    found: dict[str, Verdict] = {}
    repeated = 0
    begin = time.monotonic()
    with zygote({s.robot.preset for s in chosen}, args.verbose) as parent:
        for number, scenario in enumerate(chosen):
            start = time.monotonic()
            verdict, client, again = tried(parent, scenario, args.seed, number)
            found[scenario.name] = verdict
            repeated += again
            show(scenario, verdict, client, again, time.monotonic() - start)
    note = f"{time.monotonic() - begin:.0f} s; {repeated} trials done again as this machine was late"
    rows = evidence(found, note)
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows, keep=False), file=sys.stderr)
    return int(not all(v.fine for v in found.values()))


def show(scenario: Scenario, verdict: Verdict, client: Client, again: int, seconds: float) -> None:
    """Print what came of a trial."""
    told: dict[str, object] = {"scenario": scenario.name, "s": round(seconds, 1)}
    for kind, found in asdict(verdict).items():
        told |= {kind: [*found[:4], *([f"… {len(found)}"] if len(found) > 4 else [])]} if found else {}
    told |= {"refused": client.refused, "late_ms": round(1e3 * client.lateness), "again": again}
    print(json.dumps(told, ensure_ascii=False), file=sys.stderr, flush=True)


def evidence(found: dict[str, Verdict], note: str) -> list[Evidence]:
    """Rows: how many scenarios ran, and of each kind of fault how many there were."""
    rows = [measured(id="hostile_ros", setting="all", metric="scenarios", interval=float(len(found)),
                     notes=note)]  # fmt: skip
    for metric, name in METRICS.items():
        counted = {s: len(getattr(v, name)) for s, v in found.items()}
        bad = "; ".join(f"{s}: {n}" for s, n in counted.items() if n)
        rows.append(measured(id="hostile_ros", setting="all", metric=metric, interval=float(sum(counted.values())),
                             episodes=len(found), notes=bad))  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main())
