"""Recordings: every decision of a deployment is reproduced bit for bit, and what cannot be is said."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import DataError
from robopolicy.core.types import Feature
from robopolicy.real.control.joints import Commanded
from robopolicy.real.control.robots import Trouble
from robopolicy.real.datasets.convert import value_of
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from robopolicy.real.recording.recorder import PolicyJournal, RecordedChain, Recorder
from robopolicy.real.recording.recording import Recording, read
from robopolicy.real.recording.records import describe, dumps
from robopolicy.real.recording.replay import rebuild, replay, reproduce
from robopolicy.real.safety import Mode, SafetyChain, load_profile
from robopolicy.real.safety.decision import Measured, Patience
from robopolicy.real.safety.risk import RiskCritic
from robopolicy.real.safety.settings import Box, Plane, settings_of
from tests import toy
from tests.real.adversary import targets
from tests.real.control.test_robots import WIDE, Drive


def simulated_arm(folder: Path, action: list[float], *, horizon: int = 12, **options) -> SimulatedArm:
    env = sim.make("reach", 1, joint_noise=0.0, horizon=horizon)
    return SimulatedArm(env, Drive(env, action), settings=WIDE, recorder=Recorder(folder), **options)


@pytest.fixture(scope="module")
def lossy(tmp_path_factory) -> Path:
    """Two episodes of one chain, a tenth of the commands lost, limits at work."""
    folder = tmp_path_factory.mktemp("lossy")
    it = simulated_arm(folder, [0.02, 0.02, -0.02, 0.0, -1.0], trouble=Trouble(drop=0.1))
    for seed in (3, 4):
        it.run(seed)
    assert it.loop.counts["lost"] > 0
    return folder


def test_a_deployment_is_reproduced_bit_for_bit(lossy, capsys):
    done = replay(recording=lossy)
    assert [r.reproduced == r.ticks > 100 for r in done] == [True, True]
    assert "all" in capsys.readouterr().out
    second = read(lossy / "episode_000001.mcap")
    assert second.lost == {} and second.footer["messages"]["tick"] == done[1].ticks
    assert any(e[0] == "heard" for t in second.of("tick") for e in t["events"]), "lost commands are part of it"
    assert second.header["policy"]["n_action_steps"] == 4 and second.header["digest"]
    steps = second.of("step")
    assert [s["step"] for s in steps] == list(range(len(steps)))
    assert all(len(s["obs"]["observation.state"]) == len(second.header["observation"]["observation.state"]["names"])
               for s in steps)  # fmt: skip


def altered(recording: Recording, change) -> Recording:
    messages = [(topic, json.loads(json.dumps(content))) for topic, content in recording.messages]
    change([content for topic, content in messages if topic == "tick"])
    return Recording(recording.path, messages)


@pytest.mark.parametrize(
    "what",
    ["command", "target", "q", "mode", "reasons", "stop", "heard", "silence"],
)
def test_what_is_not_as_it_was_is_found(lossy, what):
    whole = read(lossy / "episode_000000.mcap")

    def change(ticks):
        at = ticks[57]
        if what == "command":
            at["command"][2] = float(np.nextafter(at["command"][2], 9.0))
        elif what == "target":
            moving = next(t for t in ticks[30:] if not t["reasons"])
            moving["target"] = [x + 1e-12 for x in moving["target"]]
        elif what == "q":
            at["q"][0] += 1.0
        elif what == "mode":
            at["mode"] = "SLOW"
        elif what == "reasons":
            at["reasons"] = [*at["reasons"], "velocity"]
        elif what == "stop":
            at["stop"] = "0" * 16
        elif what == "heard":
            next(t for t in ticks if t["events"])["events"] = []
        elif what == "silence":
            at["q"] = None
            at["now"] += 1.0

    result = reproduce(altered(whole, change))
    assert result.difference and result.reproduced < result.ticks
    if what == "command":
        assert result.reproduced == 57 and "tick 57 at" in result.difference and "joint3" in result.difference


def run_chain(folder: Path, drive, *, settings=None, profile=None, backlog=4096, **options) -> Recording:
    recorder = Recorder(folder, backlog=backlog)
    profile = profile or load_profile("panda", **(settings or {}))
    chain = RecordedChain(profile, put=recorder.put, **options)
    spec = toy.spec()
    path = recorder.begin(describe(chain, observation=spec.observation, policy=spec))
    drive(chain, np.array(profile.data["home"]), recorder)
    recorder.end(success=None)
    return read(path)


def test_everything_that_a_chain_can_be_told(tmp_path):
    """Garbage, silence, e-stop, live limits, faults, resets, an energy tank, a critic, late ticks."""
    rng = np.random.default_rng(0)
    spikes = [0.0]

    def clock():
        spikes[0] += 0.01 if rng.random() < 0.02 else 0.0
        return spikes[0]

    plane, box = Plane((0.0, 0.0, 1.0), -0.5), Box((1.0, 1.0, 1.0), (1.2, 1.2, 1.2))
    profile = load_profile("panda", energy=2.0, planes=(plane,), keep_out=(box,),
                           workspace=Box((-1.0, -1.0, -0.4), (1.0, 1.0, 1.5)))  # fmt: skip
    layers = ((rng.normal(size=(21, 4)), rng.normal(size=4)), (rng.normal(size=(4, 1)), np.zeros(1)))

    def drive(chain, home, recorder):
        chain.enable(0.0)
        chain.activate(Measured(home, np.zeros(7)), 0.0)
        wanted, now, modes = targets(profile, 1, 500, seed=1), 0.0, set()
        for tick in range(500):
            now = 1000.0 + tick * 0.0041
            if tick == 0 or (chain.mode is Mode.FAULT and tick % 40 == 0 and chain.limiter.at_rest.all()):
                chain.enable(now - 0.001)
                chain.activate(Measured(chain.limiter.c[0, -1].copy(), np.zeros(7)), now)
            if tick % 20:
                chain.enable(now)
            if tick == 100:
                chain.tighten(velocity=0.3)
            if tick == 300:
                chain.fault("operator")
            target = next(wanted)[0] if tick % 7 else home + 0.001
            target = {11: np.full(7, np.nan), 12: None, 13: np.zeros(3), 14: np.array([np.inf, *home[1:]])}.get(
                tick % 50, target
            )
            q = chain.limiter.c[0, -1] + 1e-4 * rng.normal(size=7)
            measured = {17: None, 18: Measured(np.full(7, np.nan)), 19: Measured(q)}.get(
                tick % 60, Measured(q, rng.normal(size=7))
            )
            modes.add(chain.filter(target, measured, now, reason="planner").mode)
        assert modes >= {Mode.RUN, Mode.HOLD, Mode.FAULT}
        assert chain.counts["late"] and chain.counts["risk"] and chain.counts["input"], chain.counts

    recording = run_chain(
        tmp_path / "r", drive, profile=profile, clock=clock, enable=Patience(hold=0.05, fault=0.1),
        risk=RiskCritic(profile, 0.004, layers),
    )  # fmt: skip
    result = reproduce(recording)
    assert result.difference == "" and result.reproduced == 500
    no_critic = dataclasses.replace(recording, messages=[
        ("header", {**recording.header, "risk": None}), *recording.messages[1:]
    ])  # fmt: skip
    assert reproduce(no_critic).difference, "the critic's say is part of what is compared"


def test_a_full_queue_drops_counts_and_says_so(tmp_path):
    """Whoever records must not wait for a slow disk."""

    def drive(chain, home, recorder):
        chain.activate(Measured(home), 0.0)
        for tick in range(60):
            if tick == 20:
                queue, recorder._queue = recorder._queue, FullQueue()
            if tick == 25:
                recorder._queue = queue
            chain.filter(home, Measured(home), tick * 0.004)

    recording = run_chain(tmp_path / "r", drive)
    assert recording.lost == {"tick": 5} and recording.footer["messages"]["tick"] == 60
    result = reproduce(recording)
    assert result.reproduced == 20 and "5 tick messages are missing" in result.difference
    with pytest.raises(DataError, match="1 of 1 recordings were not reproduced"):
        replay(recording=recording.path)


class FullQueue:
    def put_nowait(self, item):
        import queue

        raise queue.Full


@pytest.mark.parametrize("how", ["cut", "one bit", "empty", "text", "no footer"])
def test_damage_is_told_with_what_could_be_read(lossy, tmp_path, how):
    data = (lossy / "episode_000000.mcap").read_bytes()
    path = tmp_path / "x.mcap"
    if how == "no footer":  # the process was killed after a flush
        from mcap.writer import Writer

        with path.open("wb") as file:
            writer = Writer(file)
            writer.start()
            channels = {}
            for topic, content in read(lossy / "episode_000000.mcap").messages[:50]:
                if topic not in channels:
                    schema = writer.register_schema(topic, "jsonschema", b"{}")
                    channels[topic] = writer.register_channel(f"/{topic}", "json", schema)
                writer.add_message(channels[topic], 0, dumps(content), 0)
            writer.finish()
    else:
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 4
        path.write_bytes({"cut": data[: len(data) * 2 // 3], "one bit": bytes(flipped), "empty": b"",
                          "text": b"hello " * 99}[how])  # fmt: skip
    expected = "not a recording" if how in ("empty", "text") else r"cut off or damaged .*\d+ ticks and \d+ control"
    with pytest.raises(DataError, match=expected):
        read(path)
    if how in ("cut", "no footer"):
        assert len(read(path, whole=False).of("tick")) > 20


def test_a_second_recording_goes_elsewhere(tmp_path):
    for name in ("episode_000000.mcap", "episode_000001.mcap"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match="holds 2 recordings already"):
        Recorder(tmp_path)


def test_recording_says_when_the_disk_refuses(tmp_path):
    recorder = Recorder(tmp_path / "r")
    (tmp_path / "r" / "episode_000000.mcap").mkdir()
    chain = SafetyChain(load_profile("panda"))
    spec = toy.spec()
    recorder.begin(describe(chain, observation=spec.observation, policy=spec))
    for _ in range(10):
        recorder.put("tick", 0.0, {})
    with pytest.raises(DataError, match="could not be written"):
        recorder.end()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("ticks", [0, 5000])
def test_a_disk_that_is_full_ends_the_recording_whenever_that_shows(tmp_path, ticks):
    """Of a short episode nothing is written before its end: `end` must not wait for a thread that waits for it."""
    recorder, said = Recorder(tmp_path / "r"), []
    (tmp_path / "r" / "episode_000000.mcap").symlink_to("/dev/full")

    def end():
        try:
            recorder.end()
        except DataError as error:
            said.append(str(error))

    recorder.begin({"text": "x"})
    for _ in range(ticks):
        recorder.put("tick", 0.0, {"text": "x" * 100})
    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    ending.join(20.0)
    assert not ending.is_alive()
    assert len(said) == 1 and "could not be written: [Errno 28]" in said[0]


def test_a_header_that_was_tampered_with_is_refused(lossy):
    header = read(lossy / "episode_000000.mcap").header
    loose = {**header, "profile": {**header["profile"], "settings": {**header["profile"]["settings"], "velocity": 1.0}}}
    with pytest.raises(DataError, match="digest"):
        rebuild(loose)
    with pytest.raises(DataError, match="does not describe"):
        rebuild({k: v for k, v in header.items() if k != "watchdogs"})


def test_numbers_survive_exactly():
    values = np.random.default_rng(0).integers(0, 2**63, 2000).view(np.float64)
    values = np.concatenate([values, -values, [-0.0, 5e-324, np.inf, -np.inf, np.nan]])
    back = np.array(json.loads(dumps({"x": values.tolist()}))["x"], dtype=np.float64)
    same = back.view(np.int64) == values.view(np.int64)
    assert (same | (np.isnan(back) & np.isnan(values))).all()
    settings = load_profile("panda", workspace=Box((0.0, 0, 0), (1.0, 1, 1)), keep_out=(Box((2.0, 2, 2), (3.0, 3, 3)),))
    data = json.loads(dumps(dataclasses.asdict(settings.settings)))
    assert settings_of(data) == settings.settings


def test_pictures_survive():
    picture = np.random.default_rng(0).integers(0, 256, (3, 4, 5), dtype=np.uint8)
    seen = {"observation.images.front": torch.from_numpy(picture)[None], "observation.state": torch.ones(1, 2)}
    got = []
    journal = PolicyJournal(lambda topic, now, content: got.append(json.loads(dumps(content))))
    journal.step(0.0, 0, seen, Commanded(np.zeros(7), np.zeros(3), 0.0, 1.0), None, False)
    back = value_of(got[0]["obs"]["observation.images.front"], Feature((3, 4, 5), "uint8"))
    assert back.dtype == np.uint8 and np.array_equal(back, picture)
    assert value_of(got[0]["obs"]["observation.state"], Feature((2,))).tolist() == [1.0, 1.0]


def test_recording_changes_nothing_of_the_motion(tmp_path):
    def commands(**options):
        env = sim.make("reach", 1, joint_noise=0.0, horizon=6)
        it = SimulatedArm(env, Drive(env, [0.01, 0.0, 0.0, 0.0, 1.0]), settings=WIDE, **options)
        it.env.reset(torch.tensor([1]))
        it.arm.place(it.env.physics.qpos[0], it.env.task_state())
        it.run(1)
        return it.arm.data.qpos.copy()

    assert np.array_equal(commands(), commands(recorder=Recorder(tmp_path / "r")))
