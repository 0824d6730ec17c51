"""A human at the simulated arm: demonstrations, taking over, going back, and every way of stopping. Nothing sleeps."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import ConfigError, DataError
from robopolicy.datasets.demonstrations import record_demos
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.real.datasets.convert import convert, frames_of
from robopolicy.real.deploy.deploy import in_process
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.deployment import Deployment, limits_of
from robopolicy.real.deploy.summary import report
from robopolicy.real.recording.recorder import Recorder
from robopolicy.real.recording.recording import read
from robopolicy.real.recording.replay import reproduce
from robopolicy.real.teleoperation import devices, teleoperated_sim
from robopolicy.real.teleoperation.keys import InputLostError
from robopolicy.real.teleoperation.teleop import TeleopSummary, record
from robopolicy.real.teleoperation.teleoperated_sim import TeleoperatedSim, first_interrupt
from robopolicy.real.teleoperation.teleoperator import Drive, Teleoperator
from tests.real.control.test_robots import WIDE
from tests.real.control.test_robots import Drive as Policy

SLOW = [0.004, 0.002, -0.002, 0.0, 1.0]


class Script:
    """Keys by the time of the cell's own clock; `then`: in the next episodes. In the last, input ends at `until`."""

    def __init__(self, *pressed: tuple[float, str], then=(), until: float = np.inf) -> None:
        self.episodes, self.until = [pressed, *then], until
        self.simulated_arm: TeleoperatedSim | None = None
        self.begun, self.left = -1.0, []

    def __call__(self) -> str | None:
        if self.simulated_arm is None or self.simulated_arm.loop.origin < 0:
            return None
        if self.begun != self.simulated_arm.loop.origin:
            self.begun, self.left = self.simulated_arm.loop.origin, sorted(self.episodes.pop(0), key=lambda p: p[0])
        now = self.simulated_arm.time - self.begun
        if now >= self.until and not self.episodes:
            raise InputLostError("gone")
        return self.left.pop(0)[1] if self.left and self.left[0][0] <= now + 1e-9 else None

    def make(self, *args, **options) -> TeleoperatedSim:
        self.simulated_arm = TeleoperatedSim(*args, **options)
        self.simulated_arm.loop.origin = -1.0
        return self.simulated_arm


def held(key: str, begin: float, end: float) -> list[tuple[float, str]]:
    return [(t, key) for t in np.arange(begin, end, 0.05)]


def with_policy(keys: Script, *, seconds: float = 1.5, action=SLOW, steps: int = 4, first="policy", **options):
    """A cell whose policy goes one way, and the actions that were planned."""
    env = sim.make("reach", 1, joint_noise=0.0)
    teleoperator = Teleoperator(
        keys, env.spec.action, env.dt, Drive(episode_s=seconds, rewind_s=0.3), policy=True, first=first
    )
    simulated_arm = keys.make(
        env, Policy(env, action, steps=steps), teleoperator=teleoperator, settings=WIDE, **options
    )
    commands = []
    advance = simulated_arm.arm.advance

    def note() -> None:
        advance()
        commands.append(simulated_arm.arm.points[-1].copy())

    simulated_arm.arm.advance = note
    return simulated_arm, commands


# -- taking over ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The policy, then a human to the left, then back along the path, then the policy again; recorded."""
    folder = tmp_path_factory.mktemp("shared")
    keys = Script((0.3, "t"), *held("a", 0.35, 0.6), (0.8, "b"), (1.3, "p"))
    simulated_arm, _ = with_policy(keys, seconds=1.6, recorder=Recorder(folder / "r"))
    planned = []
    runner = simulated_arm.loop.plans.runner
    plan = runner.planner.plan
    runner.planner.plan = lambda obs, step, ahead=None: (
        planned.append((simulated_arm.loop.driver, step)) or plan(obs, step)
    )
    episode = simulated_arm.run(3)
    return folder, episode, read(folder / "r" / "episode_000000.mcap"), planned


def test_who_drives_is_recorded_and_what_the_human_did_is_marked(shared):
    _, episode, recording, _ = shared
    frames = frames_of(recording)
    t = np.arange(len(frames.action)) * 0.05
    driver = np.array(["policy", "human", "rewind"])[frames.driver]
    assert set(driver[t < 0.29]) == {"policy"} and set(driver[(t > 0.31) & (t < 0.79)]) == {"human"}
    assert driver[t > 0.81][0] == "rewind" and set(driver[t > 1.31]) == {"policy"}
    assert (
        frames.intervention[frames.driver != 0].all() and episode.aborted == "" and not frames.intervention[2:6].any()
    )
    human = frames.action[(t > 0.49) & (t < 0.59)]
    np.testing.assert_allclose(human[:, 1], 0.15 * 0.05, rtol=1e-6)
    np.testing.assert_allclose(human[:, [0, 2, 3]], 0.0, atol=1e-3)
    assert 0.3 < episode.helped < 0.8 and "a human drove in 1 episodes" in report([episode])


def test_the_policy_computes_in_the_shadow_while_the_human_drives(shared):
    """`policy_action` is the policy's own in every frame, also where it did not drive."""
    frames = frames_of(shared[2])
    np.testing.assert_allclose(frames.policy_action, np.tile(np.float32(SLOW), (len(frames.action), 1)), rtol=1e-6)


def test_at_every_hand_over_the_policy_plans_anew(shared):
    """Chunks are of four steps and asked for when one ran out; a hand-over does not wait for that."""
    _, _, recording, planned = shared
    steps = recording.of("step")
    switches = [
        k for k in range(1, len(steps)) if (steps[k]["driver"] == "policy") != (steps[k - 1]["driver"] == "policy")
    ]
    assert len(switches) == 2 and set(switches) <= {step for _, step in planned}
    back = switches[-1]
    assert ("policy", back) in planned and {s for _, s in planned if s >= back} == set(range(back, len(steps), 4))


def test_a_human_goes_through_the_same_chain_and_it_is_reproduced(shared):
    result = reproduce(shared[2])
    assert result.difference == "" and result.ticks > 350


def test_rewind_goes_back_along_the_commanded_path(shared):
    steps = shared[2].of("step")
    drivers = [s["driver"] for s in steps]
    q = np.array([s["commanded"]["q"] for s in steps])
    begin, end = drivers.index("rewind"), len(drivers) - drivers[::-1].index("rewind")
    before, after = q[:begin], q[begin : end + 1]
    away = [np.abs(before - x).max(axis=1).min() for x in after]
    assert max(away) < 5e-3, "rad from the path"
    on_path = np.abs(before - after[-1]).max(axis=1).argmin()
    moved = [k for k in range(1, begin) if np.abs(q[k] - q[k - 1]).max() > 1e-4]
    assert 4 <= sum(k > on_path for k in moved) <= 8, "0.3 s of moving are six steps; standing does not count"


def test_recordings_with_a_human_become_training_data(shared, tmp_path):
    convert(recording=shared[0] / "r", out=tmp_path / "d")
    table = pq.read_table(next((tmp_path / "d" / "data").glob("*/*.parquet")))
    assert set(np.ravel(table["driver"].to_pylist())) == {0, 1, 2}
    assert set(load_episodes(tmp_path / "d").observation) == {"observation.state", "task_index"}, "nobody observes it"


def test_a_plan_on_its_way_is_dropped_at_a_hand_over():
    """A slow planner's chunk that was asked for before the human took over, or by the shadow, is never executed."""
    simulated_arm, _ = with_policy(Script((0.3, "t"), (0.6, "p")), seconds=1.5, latency=0.1)
    taken, add = [], simulated_arm.loop.buffer.add
    simulated_arm.loop.buffer.add = lambda chunk, observed, now, first: (
        taken.append((observed, now)) or add(chunk, observed, now, first)
    )
    resets, reset = [], simulated_arm.loop.plans.runner.planner.reset
    simulated_arm.loop.plans.runner.planner.reset = lambda seed: resets.append(seed) or reset(seed)
    simulated_arm.run(3)
    assert simulated_arm.loop.counts["handed_over"] == 2 and len(taken) > 4
    assert resets == [3] * 4, "once at its end too: a residual's base forgets its chunk; noise is keyed by the episode"
    for switch in (0.3, 0.6):
        assert not [t for t in taken if t[0] < switch - 1e-6 and t[1] > switch + 1e-6], "asked before, taken after"


def test_any_key_stops_a_rewind():
    keys = Script((0.5, "b"), (0.6, "other"))
    simulated_arm, _ = with_policy(keys, seconds=0.9)
    simulated_arm.run(3)
    assert simulated_arm.loop.counts["rewind"] == 2 and simulated_arm.loop.driver == "human"


def test_in_shadow_mode_the_policy_moves_nothing():
    simulated_arm, commands = with_policy(Script(), seconds=0.5, first="human")
    episode = simulated_arm.run(3)
    assert np.ptp(commands, axis=0).max() < 1e-5 and episode.helped == 1.0


@pytest.mark.parametrize("keys", [[(0.1, "t")], [(0.1, "x")]])
def test_deploy_lets_an_operator_in_and_ends_when_told(keys, monkeypatch, capsys, tmp_path):
    script, env = Script(*keys, then=[[], []]), sim.make("reach", 1, joint_noise=0.0)

    class Keyboard(Script):
        __enter__ = lambda self: script  # noqa: E731
        __exit__ = lambda self, *error: None  # noqa: E731

    monkeypatch.setattr(devices, "Terminal", Keyboard)
    monkeypatch.setattr(teleoperated_sim, "RealTime", lambda: teleoperated_sim.nothing)
    monkeypatch.setattr(teleoperated_sim, "TeleoperatedSim", script.make)
    config = DeployConfig(checkpoint=tmp_path, safety=WIDE, operator="keyboard", drive=Drive(episode_s=0.3),
                          record=tmp_path / "r")  # fmt: skip
    done = list(in_process(Deployment(config, env, Policy(env, SLOW), "", (3, 4, 5), limits_of(config)[0], "")))
    ended = keys[0][1] == "x"
    assert len(done) == (1 if ended else 3) == len(list((tmp_path / "r").glob("*.mcap")))
    assert [e.helped > 0 for e in done][:2] == ([True] if ended else [True, False])
    said = capsys.readouterr().out
    assert "take over from the policy" in said and ("stopped by the operator" in said) == ended


# -- stopping ---------------------------------------------------------------------------------------------------------
def test_an_arm_nobody_tells_anything_stands():
    """The dead man: one press, and the arm stands a bounded time after it, whatever comes of the keyboard."""
    simulated_arm, commands = with_policy(Script((0.2, "w")), seconds=1.2, first="human")
    simulated_arm.run(3)
    moved = np.abs(np.diff(commands, axis=0)).max(axis=1)
    last = np.flatnonzero(moved > 1e-7)[-1] * simulated_arm.dt
    assert moved.max() > 1e-5 and last < 0.2 + 0.15 + 0.4, "0.15 s of motion, then braking and the reference's lag"


@pytest.mark.parametrize("first", ["human", "policy"])
def test_a_keyboard_that_is_gone_stops_the_arm(first):
    keys = Script(*held("w", 0.1, 9.0), until=0.5)
    simulated_arm, commands = with_policy(keys, seconds=3.0, first=first)
    episode = simulated_arm.run(3)
    assert (
        episode.mode == "HOLD"
        and "input_lost" in episode.reasons
        and episode.aborted == ""
        and simulated_arm.teleoperator.over
    )
    assert np.abs(np.diff(commands[:-2], axis=0)).max() > 1e-5 and np.array_equal(commands[-1], commands[-2])
    assert len(commands) * simulated_arm.dt < 1.5, "the episode ends where the arm stands"


def test_ctrl_c_brakes_first_and_keeps_the_recording(tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell begin with it ignored
    simulated_arm, commands = with_policy(Script(), seconds=3.0, recorder=Recorder(tmp_path / "r"))
    simulated_arm.redraw = lambda: signal.raise_signal(signal.SIGINT) if simulated_arm.loop.step == 6 else None
    with first_interrupt(simulated_arm.interrupt):
        episode = simulated_arm.run(3)
    assert "interrupted" in episode.reasons and episode.aborted == "" and np.array_equal(commands[-1], commands[-2])
    recording = read(tmp_path / "r" / "episode_000000.mcap")
    assert len(frames_of(recording).action) >= 6 and reproduce(recording).difference == ""
    with first_interrupt(lambda: None):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):  # the second is not to be argued with
            signal.raise_signal(signal.SIGINT)


# -- demonstrations ---------------------------------------------------------------------------------------------------
class Pilot:
    """Presses the keys that lead to reach's target, and gives a verdict on each episode; then ends."""

    def __init__(self, *verdicts: str) -> None:
        self.verdicts, self.simulated_arm, self.done, self.queue, self.seeds, self.calls = (
            [*verdicts, "x"],
            None,
            -1,
            [],
            [],
            0,
        )

    def make(self, *args, **options) -> TeleoperatedSim:
        self.simulated_arm = TeleoperatedSim(*args, **options)
        run = self.simulated_arm.run
        self.simulated_arm.run = lambda seed: self.seeds.append(seed) or run(seed)
        return self.simulated_arm

    def __call__(self) -> str | None:
        self.calls += 1
        assert self.calls < 5000, "it does not get there"
        if not self.verdicts or self.simulated_arm is None or not self.simulated_arm.loop.observation_history.frames:
            return None
        step = self.simulated_arm.loop.step
        if self.simulated_arm.held >= self.simulated_arm.env.task.hold or (self.verdicts[0] != "enter" and step > 4):
            self.simulated_arm.loop.observation_history.frames.clear()
            return self.verdicts.pop(0)
        if self.done != step:
            self.done = step
            seen = self.simulated_arm.env.layout.unpack(
                self.simulated_arm.loop.observation_history.newest["observation.state"].numpy()
            )
            gap = seen["target"][0] - self.simulated_arm.loop.decoder.commanded.pos
            self.queue = [keys[int(g < 0)] for g, keys in zip(gap, ("ws", "ad", "rf"), strict=True) if abs(g) > 0.004]
        return self.queue.pop() if self.queue else None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[Path, TeleopSummary, Pilot, list[str]]:
    out, lines = tmp_path_factory.mktemp("teleop") / "d", []
    pilot = Pilot("backspace", "enter", "enter")
    shown = record(sim.make("reach", 1), pilot, out, episodes=9, safety=WIDE, make=pilot.make, show=lines.append,
                   drive=Drive(speed=0.08, key_s=0.05))  # fmt: skip
    return out, shown, pilot, lines


def test_what_was_kept_was_successful_by_the_tasks_own_measure(recorded):
    out, shown, pilot, lines = recorded
    assert (shown.episodes, shown.successes, shown.discarded) == (2, 2, 1)
    episodes = load_episodes(out)
    ends = (episodes.starts[1:] - 1).tolist()
    assert episodes.success[ends].all() and episodes.terminated[ends].all() and episodes.reward.sum() == 2
    assert pilot.seeds[0] == pilot.seeds[1] != pilot.seeds[2], "a discarded scene begins again"
    assert episodes.seeds.tolist() == pilot.seeds[1:3]
    assert bool((episodes.action[episodes.starts[:-1]][:, :3] != 0).any()), "frames begin where the motion does"
    meta = json.loads((out / "meta" / "robopolicy.json").read_text())
    assert meta["complete"] and meta["provenance"]["discarded"] == 1
    assert any("human" in line and "target_rel" in line for line in lines)


def test_it_is_the_dataset_that_demos_writes(recorded, tmp_path):
    env = sim.make("reach", 2)
    record_demos(env=env, expert=sim.make_expert(env), episodes=2, out=tmp_path / "d")
    mine, theirs = load_episodes(recorded[0]), load_episodes(tmp_path / "d")
    assert mine.observation == theirs.observation and mine.action_spec == theirs.action_spec
    assert (mine.dt, mine.tasks, mine.outcomes) == (theirs.dt, theirs.tasks, theirs.outcomes)
    assert mine.seeds[0] == theirs.seeds[0], "the same scenes"
    columns = [json.loads((p / "meta" / "info.json").read_text())["features"] for p in (recorded[0], tmp_path / "d")]
    assert columns[0] == columns[1]


def test_a_demonstration_moves_the_simulators_arm_alike(recorded):
    """The actions that were written, played in the env that policies are trained in, reach the goal as well."""
    episodes, env = load_episodes(recorded[0]), sim.make("reach", 1, horizon=200)
    for k, seed in enumerate(episodes.seeds):
        env.reset(seed[None])
        done = [bool(env.step(a[None]).success) for a in episodes.action[episodes.starts[k] : episodes.starts[k + 1]]]
        assert any(done[-3:])


def test_an_episode_is_kept_by_a_key_without_success_and_nothing_is_none(tmp_path):
    keys = Script(*held("w", 0.1, 0.6), (0.5, "enter"))
    shown = record(sim.make("reach", 1), keys, tmp_path / "d", episodes=1, make=keys.make)
    episodes = load_episodes(tmp_path / "d")
    assert (shown.episodes, shown.successes) == (1, 0) and not episodes.success.any() and not episodes.terminated.any()
    assert not np.isclose(episodes.action[-1, 0], 0.0) and (episodes.action[:, 0] > -1e-6).all(), "braking is left out"
    keys = Script((0.1, "enter"), then=[[(0.1, "x")]])
    with pytest.raises(DataError, match="no episode was recorded"):
        record(sim.make("reach", 1), keys, tmp_path / "e", episodes=1, make=keys.make)
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("how", ["interrupt", "lost"])
def test_whatever_ends_a_session_keeps_what_was_kept(tmp_path, how):
    """The first episode is kept, the second one cut by Ctrl-C, or by a keyboard that goes."""
    keys = Script(*held("w", 0.1, 0.3), (0.4, "enter"), then=[held("w", 0.1, 9.0)],
                  until=0.4 if how == "lost" else np.inf)  # fmt: skip

    def make(*args, **options):
        simulated_arm, raised = keys.make(*args, **options), []

        def ticked() -> None:
            if how == "interrupt" and not keys.episodes and simulated_arm.loop.step == 6 and not raised:
                raised.append(signal.raise_signal(signal.SIGINT))

        simulated_arm.ticked = ticked
        return simulated_arm

    shown = record(sim.make("reach", 1), keys, tmp_path / how, episodes=5, make=make)
    assert shown.episodes == 1 and load_episodes(tmp_path / how).num_episodes == 1
    assert json.loads((tmp_path / how / "meta" / "robopolicy.json").read_text())["complete"]


def test_what_cannot_be_driven_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="delta_pose"):
        record(sim.make("reach", 1, control="joint_position"), Script(), tmp_path / "d", episodes=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_training_takes_it_without_change(recorded, tmp_path):
    from robopolicy.cli.main import invoke

    invoke("train", "algo=bc", "task=reach", "loop.steps=4", "num_envs=2", "validation_episodes=2", "tracker=quiet",
           dataset=recorded[0], run_dir=tmp_path / "run")  # fmt: skip
    assert torch.is_tensor(load_episodes(recorded[0]).action) and (tmp_path / "run" / "spec.json").is_file()
