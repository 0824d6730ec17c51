"""Deployments become training data: what was seen, what was executed, and where the limits stepped in."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from robopolicy import sim
from robopolicy.core.errors import DataError
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.real.control.robots import Trouble
from robopolicy.real.datasets.convert import convert, frames_of
from robopolicy.real.datasets.recorded_header import seed_of
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from robopolicy.real.recording.recorder import Recorder
from robopolicy.real.recording.recording import read
from tests.real.control.test_robots import WIDE, Drive

SLOW, FAST = [0.001, 0.0005, -0.001, 0.0, -0.5], [0.02, 0.02, -0.02, 0.1, -1.0]


def simulated_arm(folder: Path, action: list[float], *, horizon: int = 10, control: str = "delta_pose", **options):
    env = sim.make("reach", 1, joint_noise=0.0, horizon=horizon, control=control)
    return SimulatedArm(env, Drive(env, action), settings=WIDE, recorder=Recorder(folder), **options)


def recorded(folder: Path, action: list[float], seeds=(3,), **options):
    it = simulated_arm(folder, action, **options)
    for seed in seeds:
        it.run(seed)
    return it, [read(p) for p in sorted(folder.glob("*.mcap"))]


def test_a_slow_policy_is_recorded_as_it_acted(tmp_path):
    """The limits have nothing to do: actions are the policy's own, bit for bit, and no frame but the first is marked.

    The first follows rest, from where even a small step may be slowed.
    """
    _, (recording,) = recorded(tmp_path / "r", SLOW)
    frames = frames_of(recording)
    free = ~frames.intervention
    assert free[1:].all() and len(free) == 10
    np.testing.assert_array_equal(frames.action[free], np.tile(np.float32(SLOW).astype(float), (free.sum(), 1)))


def test_a_fast_policy_is_recorded_as_the_arm_was_commanded(tmp_path):
    """Executed actions add up to where the arm was sent, and are smaller than what the policy asked for."""
    it, (recording,) = recorded(tmp_path / "r", FAST)
    frames, steps = frames_of(recording), recording.of("step")
    assert frames.intervention.all() and it.loop.counts["paced"]
    sent = np.array(steps[-1]["commanded"]["pos"]) - np.array(steps[0]["commanded"]["pos"])
    np.testing.assert_allclose(frames.action[:, :3].sum(axis=0), sent, atol=1e-12)
    assert (np.abs(frames.action[1:4, :3]).sum(axis=1) < np.abs(frames.policy_action[1:4, :3]).sum(axis=1)).all()
    np.testing.assert_allclose(frames.policy_action, np.tile(np.float32(FAST), (len(frames.action), 1)), rtol=1e-6)
    np.testing.assert_array_equal(frames.obs["observation.state"][3], np.float32(steps[3]["obs"]["observation.state"]))


def test_where_the_arm_was_held_frames_are_marked(tmp_path):
    it, recorder_horizon = simulated_arm(tmp_path / "r", SLOW, horizon=14), 5
    sense, seen = it._observe, [0]

    def observe(state):
        seen[0] += 1
        it.arm.trouble = Trouble(nan=seen[0] == recorder_horizon)
        return sense(state)

    it.loop.observation_history.observe = observe
    advance, bad = it.arm.advance, [0]

    def heal():
        advance()
        bad[0] += it.arm.trouble.nan
        if bad[0] > 3:
            it.arm.trouble = Trouble()

    it.arm.advance = heal
    it.run(3)
    frames = frames_of(read(tmp_path / "r" / "episode_000000.mcap"))
    assert np.flatnonzero(frames.intervention[1:]).tolist() == [3, 4, 5], "held until 0.1 s after the cause"
    np.testing.assert_allclose(frames.action[5, :3], 0.0, atol=1e-9)
    assert np.abs(frames.action[4, :3]).max() > 1e-4, "it braked"


def test_joint_actions_are_absolute(tmp_path):
    home = [0.0, -0.3, 0.0, -2.0, 0.0, 2.0, 0.8]
    _, (recording,) = recorded(tmp_path / "r", [*home, 1.0], control="joint_position", horizon=6)
    frames, steps = frames_of(recording), recording.of("step")
    assert frames.intervention.any()
    np.testing.assert_allclose(frames.action[2, :7], steps[3]["commanded"]["q"], atol=1e-12)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("data")
    it = simulated_arm(root / "r", FAST)
    it.run(3)
    sense = it.env.sense
    it.env.sense = lambda *state: (sense(*state)[0], np.array([True]))  # the second succeeds at once
    it.run(4)
    convert(recording=root / "r", out=root / "d")
    return root / "r", root / "d"


def test_training_reads_it(dataset):
    folder, path = dataset
    episodes, (first, second) = load_episodes(path), [read(p) for p in sorted(folder.glob("*.mcap"))]
    assert episodes.num_episodes == 2 and episodes.seeds.tolist() == [3, 4] and episodes.dt == 0.05
    lengths = [len(r.of("step")) - 1 for r in (first, second)]
    assert episodes.lengths.tolist() == lengths
    last = (episodes.starts[1:] - 1).tolist()
    assert episodes.success[last].tolist() == episodes.terminated[last].tolist() == [False, True]
    assert episodes.reward.tolist() == [0.0] * (sum(lengths) - 1) + [1.0]
    np.testing.assert_array_equal(episodes.action[: lengths[0]], frames_of(first).action.astype(np.float32))
    np.testing.assert_array_equal(episodes.obs["observation.state"][-1],
                                  np.float32(second.of("step")[-2]["obs"]["observation.state"]))  # fmt: skip
    assert set(episodes.observation) == {"observation.state", "task_index"}, "marks are not observed"
    table = pq.read_table(next((path / "data").glob("*/*.parquet")))
    assert all(np.ravel(table["intervention"].to_pylist())) and "policy_action" in table.column_names
    assert episodes.action_spec.names == ("dx", "dy", "dz", "dyaw", "gripper")


def test_only_successes(dataset, tmp_path, capsys):
    folder, _ = dataset
    result = convert(recording=folder, out=tmp_path / "d", only_success=True)
    assert result.episodes == 1 and result.left_out == {"episode_000000.mcap": "no success"}
    assert "converted recordings: 2/2" in "".join(capsys.readouterr())


def test_what_cannot_be_trained_on_is_left_out_or_refused(tmp_path, dataset):
    folder, _ = dataset
    recorded(tmp_path / "dry", SLOW, shadow=True, horizon=4)
    with pytest.raises(DataError, match=r"no episode to keep of 1: .*dry_run: nothing moved"):
        convert(recording=tmp_path / "dry", out=tmp_path / "d")
    assert not (tmp_path / "d").exists()
    recording = read(sorted(folder.glob("*.mcap"))[0])
    gap = [m for m in recording.messages if not (m[0] == "step" and m[1]["step"] == 3)]
    recording.messages = gap
    with pytest.raises(Exception, match="control steps are missing"):
        frames_of(recording)
    cut = tmp_path / "cut"
    shutil.copytree(folder, cut)
    first, last = sorted(cut.glob("*.mcap"))[0], sorted(cut.glob("*.mcap"))[-1]
    first.write_bytes(first.read_bytes()[: first.stat().st_size // 2])
    result = convert(recording=cut, out=tmp_path / "cut_d")
    assert list(result.left_out) == [first.name] and result.episodes == len(list(cut.glob("*.mcap"))) - 1, last.name
    assert "is cut off or damaged" in result.left_out[first.name]
    other = tmp_path / "both"
    recorded(other, [*[0.0] * 7, 1.0], control="joint_position", horizon=3)
    (other / "episode_000001.mcap").write_bytes(sorted(folder.glob("*.mcap"))[0].read_bytes())
    with pytest.raises(DataError, match="is not that of the first"):
        convert(recording=other, out=tmp_path / "e")


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "1", None])
def test_a_seed_that_is_none_is_named(seed):
    assert seed_of({"seed": 2**63 - 1}) == 2**63 - 1 and seed_of({}) == 0
    with pytest.raises(DataError, match="seed"):
        seed_of({"seed": seed})
