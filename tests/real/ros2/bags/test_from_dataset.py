"""Datasets as rosbag2 bags: read back, they hold the same frames; what has no place on a wiring's topics is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("rclpy")

from mcap.reader import make_reader
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64

from robopolicy.cli.main import invoke
from robopolicy.core.errors import ConfigError, DataError, SpecError
from robopolicy.core.types import STATE, Feature
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.real.datasets.bag_options import BagOptions
from robopolicy.real.datasets.convert import convert
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.bags import from_dataset
from robopolicy.real.ros2.bags.reader import Bag, bags_in, decode
from robopolicy.real.ros2.bags.to_dataset import action_of, frames_of
from robopolicy.real.ros2.bags.writer import BagWriter
from robopolicy.real.ros2.images import image
from robopolicy.sim.control import GRIPPER_MEANING
from tests.real.ros2.bags.test_to_dataset import FRONT, OPTIONS, PRESET, WIRING, recorded, streams
from tests.real.ros2.bags.test_to_dataset import write as write_bag
from tests.real.ros2.test_messages import HOME, changed

DT, T = 0.05, 24
JOINTS = WIRING.joints
NAMES = (*(f"{j}.pos" for j in JOINTS), *(f"{j}.vel" for j in JOINTS), "gripper.pos", "ball_x")
ACTION = action_of(WIRING)


def episode(number, names=NAMES, camera=True, rest=0):
    """One episode of T frames, as DatasetWriter.add_episode takes it; in the first `rest` ones nothing moves."""
    rng = np.random.default_rng(number)
    q = HOME + np.cumsum(rng.uniform(-0.02, 0.02, (T + 1, 7)), axis=0)
    q[: rest + 1] = q[0]
    columns = dict(zip(NAMES, [*q[:T].T, *np.gradient(q, DT, axis=0)[:T].T, *rng.uniform(0.01, 0.07, (2, T))],
                       strict=True))  # fmt: skip
    grip = np.repeat(rng.uniform(0.0, 0.08, T // 4), 4)
    obs = {STATE: np.stack([columns.get(n, columns["ball_x"]) for n in names], axis=1)}
    if camera:
        obs[FRONT] = np.tile(rng.integers(0, 255, (T, 1, 1, 1), dtype=np.uint8), (1, 3, 24, 32))
    done = np.arange(T) == T - 1
    return {
        "obs": obs, "action": np.concatenate([q[1:] + 0.003 * (rest == 0), grip[:, None]], axis=1),
        "reward": done.astype(np.float32),
        "success": done & (number % 2 == 0), "terminated": False, "task": "go left", "seed": number,
    }  # fmt: skip


def dataset(path, episodes=2, *, names=NAMES, camera=True, action=ACTION, human=True, change=None, dt=DT, rest=0):
    observation = {STATE: Feature((len(names),), names=tuple(names))}
    if camera:
        observation[FRONT] = Feature((3, 24, 32), "uint8")
    marks = {"intervention": Feature((), "bool")} if human else {}
    with DatasetWriter(path, observation=observation, action=action, dt=dt, tasks=("go left",), marks=marks) as writer:
        for number in range(episodes):
            made = episode(number, names, camera, rest)
            if change is not None:
                made["action"] = change(made["action"])
            writer.add_episode(**made, marks={"intervention": np.arange(T) // 8 == 1} if human else {})
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A dataset of two episodes, and its bags."""
    root = tmp_path_factory.mktemp("export")
    dataset(root / "d")
    made = invoke("convert", "bag.wiring=mujoco_panda", recording=root / "d", out=root / "bags")
    assert made.episodes == 2 and made.frames == 2 * T and made.interventions == 16
    return root / "d", root / "bags"


def test_a_bag_read_back_holds_the_same_frames(whole, tmp_path):
    """States, actions, marks, outcomes and the instruction, by the command and without being told any of it."""
    path, bags = whole
    made = convert(recording=bags, out=tmp_path / "again", bag=BagOptions(wiring="mujoco_panda"))
    assert not made.left_out and (made.episodes, made.frames, made.interventions) == (2, 2 * T, 16)
    before, after = load_episodes(path), load_episodes(tmp_path / "again")
    assert torch.equal(before.starts, after.starts) and before.tasks == after.tasks == ("go left",)
    assert torch.equal(before.success, after.success) and before.success.sum() == 1
    assert torch.equal(before.obs[STATE], after.obs[STATE])
    assert torch.equal(before.action, after.action), "names and their order are the wiring's in both"
    assert before.action_spec == after.action_spec


@pytest.mark.parametrize(("rate", "camera"), [(10, True), (30, True), (50, False)])
def test_frames_of_any_rate_are_all_found_again(tmp_path, rate, camera):
    """And those in which nothing moves yet; the bags say how many there are a second."""
    path = dataset(tmp_path / "d", camera=camera, dt=1 / rate, rest=10)
    convert(recording=path, out=tmp_path / "bags", bag=BagOptions(wiring="mujoco_panda"))
    again = convert(recording=tmp_path / "bags", out=tmp_path / "e", bag=BagOptions(wiring="mujoco_panda"))
    before, after = load_episodes(path), load_episodes(tmp_path / "e")
    assert again.frames == 2 * T and not again.left_out and after.dt == pytest.approx(1 / rate)
    assert torch.equal(before.obs[STATE], after.obs[STATE]) and torch.equal(before.action, after.action)


def test_success_is_known_on_the_way_back(whole, tmp_path):
    options = BagOptions(wiring="mujoco_panda")
    made = convert(recording=whole[1], out=tmp_path / "d", bag=options, only_success=True)
    assert made.episodes == 1 and made.left_out == {"episode_000001": "did not succeed"}
    bag = write_bag(tmp_path / "bag", recorded(1.0, camera=False))
    with pytest.raises(ConfigError, match="only_success: nothing in bag says whether it succeeded"):
        convert(recording=bag, out=tmp_path / "e", bag=BagOptions(**OPTIONS), only_success=True)


def test_few_pictures_at_a_time_make_the_same_bags(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(from_dataset, "PIXELS", 1)
    convert(recording=whole[0], out=tmp_path / "bags", bag=BagOptions(wiring="mujoco_panda"))
    for one, other in zip(bags_in(whole[1]), bags_in(tmp_path / "bags"), strict=True):
        a, b = (list(Bag(p).items(Bag(p).types)) for p in (one, other))
        assert len(a) == len(b) > 400 and all(x[:2] == y[:2] for x, y in zip(a, b, strict=True))


def test_pictures_and_the_human_are_those_of_their_frame(whole):
    path, bags = whole
    before = load_episodes(path)
    for number, folder in enumerate(bags_in(bags)):
        found = frames_of(streams(folder), WIRING, DT)
        rows = slice(*before.starts[number : number + 2].tolist())
        assert np.array_equal(found.obs[FRONT], before.obs[FRONT][rows].numpy())
        assert np.array_equal(found.intervention, np.arange(T) // 8 == 1)


def test_between_frames_joints_lie_on_a_line_at_the_rate_of_the_wiring(whole):
    found = streams(bags_in(whole[1])[0])
    t, q = found.states.arrived - found.states.arrived[0], found.states.values[:, :7]
    assert len(t) == 12 * T + 1 and np.allclose(np.diff(t), DT / 12, atol=1e-8)
    line = np.stack([np.interp(t, t[::12], column) for column in q[::12].T], axis=1)
    assert np.abs(q - line).max() < 1e-7
    told = found.commands.values
    assert np.array_equal(told[0], q[0]), "told nothing yet, an arm stands"


def test_what_a_trajectory_says_is_found_again(tmp_path, monkeypatch):
    """For drivers that do not say what they play."""
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(changed(topics__joint_commands=None)))
    path = dataset(tmp_path / "d", 1, camera=False)
    options = BagOptions(wiring=str(tmp_path / "w.yaml"))
    convert(recording=path, out=tmp_path / "bags", bag=options)
    assert "/joint_commands" not in Bag(bags_in(tmp_path / "bags")[0]).types
    convert(recording=tmp_path / "bags", out=tmp_path / "again", bag=options)
    assert torch.allclose(load_episodes(path).action, load_episodes(tmp_path / "again").action, atol=1e-6)


def test_joints_without_velocities_get_those_of_their_positions(tmp_path):
    names = tuple(n for n in NAMES if not n.endswith(".vel"))
    convert(recording=dataset(tmp_path / "d", 1, names=names, camera=False, human=False), out=tmp_path / "bags",
            bag=BagOptions(wiring="mujoco_panda"))  # fmt: skip
    states = streams(bags_in(tmp_path / "bags")[0]).states.values
    q, qd = states[::12, :7], states[::12, 7:14]
    assert np.allclose(qd[1 : T - 1], (q[2:T] - q[: T - 2]) / (2 * DT), atol=1e-6)
    assert np.allclose(qd[[0, T - 1]], (q[[1, T - 1]] - q[[0, T - 2]]) / DT, atol=1e-6)
    assert np.array_equal(qd[T], qd[T - 1])
    assert "/intervention" not in Bag(bags_in(tmp_path / "bags")[0]).types


def test_actions_of_another_order_and_the_simulators_gripper(tmp_path):
    """Elements are found by name; −1 … 1 becomes an opening."""
    turned = [7, *range(6, -1, -1)]

    def of(values):
        return tuple(values[k] for k in turned)

    spec = replace(
        ACTION, names=of(ACTION.names), units=("1", *of(ACTION.units)[1:]), low=(-1.0, *of(ACTION.low)[1:]),
        high=(1.0, *of(ACTION.high)[1:]), gripper=0, gripper_meaning=GRIPPER_MEANING,
    )  # fmt: skip

    def change(action):
        action = action[:, turned]
        action[:, 0] = action[:, 0] / 0.04 - 1.0
        return action

    plain, other = dataset(tmp_path / "a", 1, camera=False), tmp_path / "b"
    dataset(other, 1, camera=False, action=spec, change=change)
    for name, path in (("x", plain), ("y", other)):
        convert(recording=path, out=tmp_path / name, bag=BagOptions(wiring="mujoco_panda"))
    a, b = (frames_of(streams(bags_in(tmp_path / n)[0]), WIRING, DT).action for n in ("x", "y"))
    assert np.allclose(a, b, atol=1e-6)


def test_guided_by_hand_there_are_no_commands(whole, tmp_path):
    path, _ = whole
    convert(recording=path, out=tmp_path / "bags", only_success=True,
            bag=BagOptions(wiring="mujoco_panda", action="measured"))  # fmt: skip
    (bag,) = bags_in(tmp_path / "bags")
    assert not {"/joint_commands", "/trajectory", "/gripper"} & set(Bag(bag).types)
    assert len(frames_of(streams(bag, commanded=False), WIRING, DT).action)


# -- files ----------------------------------------------------------------------------------------------------------
def test_metadata_count_what_is_there(whole):
    bag = bags_in(whole[1])[0]
    about = yaml.safe_load((bag / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    with (bag / about["relative_file_paths"][0]).open("rb") as stream:
        summary = make_reader(stream).get_summary()
        counts = {summary.channels[k].topic: n for k, n in summary.statistics.channel_message_counts.items()}
    assert {t["topic_metadata"]["name"]: t["message_count"] for t in about["topics_with_message_count"]} == counts
    assert about["message_count"] == sum(counts.values()) == about["files"][0]["message_count"]
    assert (
        about["duration"]["nanoseconds"] == summary.statistics.message_end_time - summary.statistics.message_start_time
    )
    assert about["custom_data"]["robopolicy.task"] == "go left"


def test_schemas_spell_out_every_type(tmp_path):
    """As `gendeps --cat` does: the type, then all that it holds."""
    with BagWriter(tmp_path / "bag", about={}) as bag:
        bag.add("trajectory", 1, messages.trajectory(JOINTS, 1, np.ones((2, 7)), 4))
    with Bag(tmp_path / "bag").files[0].open("rb") as stream:
        (schema,) = make_reader(stream).get_summary().schemas.values()
    first, *rest = schema.data.decode().split("=" * 80 + "\n")
    assert first == "std_msgs/Header header\nstring[] joint_names\ntrajectory_msgs/JointTrajectoryPoint[] points\n"
    heads = [r.splitlines()[0] for r in rest]
    inside = ("std_msgs/Header", "builtin_interfaces/Time", "trajectory_msgs/JointTrajectoryPoint")
    assert heads == [f"MSG: {name}" for name in (*inside, "builtin_interfaces/Duration")]
    assert "int32 sec\nuint32 nanosec\n" in rest[1] and "float64[] positions\n" in rest[2]


def test_rclpy_reads_the_bytes_that_rosbags_writes(tmp_path):
    """The same message, as long as its CDR and no longer."""
    point = messages.trajectory(JOINTS, 1, np.ones((2, 7)), 4)
    made = {
        "a": (Bool(data=True), 1), "b": (Float64(data=0.1), 8), "c": (JointState(), 8 + 5 + 3 + 4 * 4),
        "d": (messages.joint_state(("a", "b"), 1, np.ones(2)), 16 + 24 + 16 + 8), "e": (point, None),
        "f": (image(np.zeros((3, 2, 5), np.uint8), 1, WIRING.cameras[FRONT]), None),
    }  # fmt: skip
    with BagWriter(tmp_path / "bag", about={}) as bag:
        for k, (topic, (message, _)) in enumerate(made.items()):
            bag.add(topic, k, message)
    for item in Bag(tmp_path / "bag").items([f"/{topic}" for topic in made]):
        message, size = made[item.topic[1:]]
        assert decode(item, type(message)) == message
        assert size is None or len(item.data) == 4 + size, item.topic
        with pytest.raises(DataError):
            decode(item._replace(data=item.data[:-1]), type(message))


def test_a_bag_that_failed_half_way_is_not_there(whole, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / "bags" / "kept").mkdir(parents=True)
    (tmp_path / "bags" / "kept" / "metadata.yaml").touch()
    monkeypatch.setattr(BagWriter, "add", full)
    with pytest.raises(Exception, match="No space left"):
        convert(recording=whole[0], out=tmp_path / "bags", overwrite=True, bag=BagOptions(wiring="mujoco_panda"))
    assert [p.name for p in tmp_path.iterdir()] == ["bags"] and (tmp_path / "bags" / "kept").exists()


# -- what has no place ------------------------------------------------------------------------------------------------
SHORT = {"names": NAMES[1:]}


@pytest.mark.parametrize(
    ("made", "options", "what"),
    [
        (SHORT, {}, r"has no 'panda_joint1\.pos'.*tasks of the simulator observe none"),
        ({"names": tuple(n for n in NAMES if n != "gripper.pos")}, {}, r"lacks 'gripper\.pos'"),
        ({}, {"wiring": {"topics__features": None}}, r"holds \['ball_x'\], and the wiring has no topics\.features"),
        ({"camera": True}, {"wiring": {"cameras": {}}}, f"'{FRONT}' is no camera of the wiring"),
        ({"action": replace(ACTION, rotation="yaw", reference="measured")}, {},
         "absolute joint targets are understood"),
        ({}, {"wiring": {"topics__joint_commands": None, "lead_ticks": 1, "topics__trajectory": "positions"}},
         "action=measured"),
        ({}, {"wiring": {"topics__gripper": None}}, r"has gripper commands, and the wiring's topics\.gripper is null"),
        ({}, {"wiring": None}, r"a LeRobotDataset\. Give bag\.wiring"),
    ],
)  # fmt: skip
def test_what_has_no_place_is_named(tmp_path, made, options, what):
    path = dataset(tmp_path / "d", 1, **{"camera": False, **made})
    wiring = options.get("wiring", {})
    if wiring is not None:
        data = changed(**{k: v for k, v in wiring.items() if v != "positions"})
        if "topics__trajectory" in wiring:
            data["topics"]["trajectory"] |= {
                "type": "positions",
                "upsampling": "bspline",
                "driver_hz": 1000,
                "timeout_s": 0.1,
            }
        (tmp_path / "w.yaml").write_text(yaml.safe_dump(data))
        wiring = str(tmp_path / "w.yaml")
    with pytest.raises((DataError, ConfigError, SpecError), match=what):
        convert(recording=path, out=tmp_path / "bags", bag=BagOptions(wiring=wiring))
    assert not (tmp_path / "bags").exists()


def test_what_is_there_stays(whole, tmp_path):
    """Unless it is a folder of bags, and may be replaced."""
    path, bags = whole
    options = {"recording": path, "bag": BagOptions(wiring="mujoco_panda")}
    with pytest.raises(DataError, match="exists already"):
        convert(out=bags, **options)
    for out in (path, path.parent):
        with pytest.raises(DataError, match="holds the dataset itself"):
            convert(out=out, overwrite=True, **options)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "last.tex").touch()
    with pytest.raises(DataError, match=r"holds 'last\.tex', which is no bag"):
        convert(out=tmp_path / "thesis", overwrite=True, **options)
    assert load_episodes(path).num_episodes == 2
    again = tmp_path / "again"
    shutil.copytree(bags, again)
    (again / "episode_000007").mkdir()
    (again / "episode_000007" / "metadata.yaml").touch()
    convert(out=again, overwrite=True, **options)
    assert [p.name for p in bags_in(again)] == ["episode_000000", "episode_000001"]


def test_what_is_left_out_is_said(tmp_path, capsys):
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(changed(topics__intervention=None)))
    path = dataset(tmp_path / "d", 1, dt=1 / 60)
    convert(recording=path, out=tmp_path / "bags", bag=BagOptions(wiring=str(tmp_path / "w.yaml"), task="go right"))
    said = "".join(capsys.readouterr())
    assert "converted episodes: 1/1" in said
    assert "who drove is left out" in said and f"{FRONT}: 60 messages a second, the wiring says 25" in said
    (bag,) = bags_in(tmp_path / "bags")
    assert Bag(bag).about["robopolicy.task"] == "go right" and "/intervention" not in Bag(bag).types


def test_bags_of_two_instructions_make_a_dataset_of_two_tasks(whole, tmp_path):
    """And one that says nothing needs to be told."""
    for name, text in (("a", "go left"), ("b", "go right"), ("c", "")):
        about = {"robopolicy.task": text} if text else {}
        source = bags_in(whole[1])[0]
        bag = Bag(source)
        with BagWriter(tmp_path / "bags" / name, about=about) as writer:
            for item in bag.items([t for t in bag.types if "camera" not in t]):
                kind = JointState if bag.types[item.topic].endswith("JointState") else None
                if kind is not None:
                    writer.add(item.topic, round(item.arrived * 1e9), decode(item, kind))
    with pytest.raises(ConfigError, match=r"bag\.task: c does not say what was done"):
        convert(recording=tmp_path / "bags", out=tmp_path / "d", bag=BagOptions(wiring="mujoco_panda"))
    (tmp_path / "bags" / "c" / "metadata.yaml").unlink()
    for file in (tmp_path / "bags" / "c").iterdir():
        file.unlink()
    (tmp_path / "bags" / "c").rmdir()
    convert(recording=tmp_path / "bags", out=tmp_path / "d", bag=BagOptions(wiring="mujoco_panda"))
    episodes = load_episodes(tmp_path / "d")
    assert episodes.tasks == ("go left", "go right")
    assert "task_index" in episodes.obs and episodes.obs["task_index"].unique().tolist() == [0, 1]


def test_a_dataset_in_degrees_becomes_a_bag_in_radians(whole, tmp_path):
    """And is found again in the units of the wiring."""
    names, scale = ACTION.names, np.array([np.degrees(1.0)] * 7 + [1.0])
    action = replace(ACTION, units=("deg",) * 7 + ("m",), low=tuple(np.array(ACTION.low) * scale),
                     high=tuple(np.array(ACTION.high) * scale))  # fmt: skip
    path = tmp_path / "d"
    with DatasetWriter(path, observation={STATE: Feature((len(NAMES),), names=NAMES)}, action=action, dt=DT,
                       tasks=("go left",)) as writer:  # fmt: skip
        for number in range(2):
            made = episode(number, camera=False)
            made["obs"][STATE][:, :14] = np.degrees(made["obs"][STATE][:, :14])
            made["action"] = made["action"] * scale
            writer.add_episode(**made)
    convert(recording=path, out=tmp_path / "bags", bag=BagOptions(wiring="mujoco_panda"))
    convert(recording=tmp_path / "bags", out=tmp_path / "again", bag=BagOptions(wiring="mujoco_panda"))
    before, after = load_episodes(whole[0]), load_episodes(tmp_path / "again")
    assert after.action_spec.units == ACTION.units and after.action_spec.names == names
    torch.testing.assert_close(after.obs[STATE], before.obs[STATE], atol=1e-5, rtol=0)
    torch.testing.assert_close(after.action, before.action, atol=1e-5, rtol=0)


def test_a_gripper_in_percent_becomes_no_bag(tmp_path):
    percent = replace(ACTION, units=(*ACTION.units[:-1], "%"), high=(*ACTION.high[:-1], 100.0))
    path = dataset(tmp_path / "d", camera=False, human=False, action=percent)
    for action in ("commanded", "measured"):
        with pytest.raises(DataError, match="its gripper is in %, expected m"):
            convert(recording=path, out=tmp_path / "bags", bag=BagOptions(wiring="mujoco_panda", action=action))


def test_a_gripper_apart_and_late_pictures_are_found_again(whole, tmp_path):
    data = json.loads(json.dumps(PRESET))
    data["topics"]["gripper_states"] = {"name": "/fingers", "rate_hz": 30.0}
    data["watchdogs"]["gripper_states"] = {"hold": 0.2, "fault": 1.0}
    data["cameras"][FRONT]["latency_s"] = 0.08
    (tmp_path / "apart.yaml").write_text(yaml.safe_dump(data))
    options = BagOptions(wiring=str(tmp_path / "apart.yaml"))
    convert(recording=whole[0], out=tmp_path / "bags", bag=options)
    convert(recording=tmp_path / "bags", out=tmp_path / "again", bag=options)
    before, after = load_episodes(whole[0]), load_episodes(tmp_path / "again")
    assert torch.equal(before.obs[STATE], after.obs[STATE]) and torch.equal(before.action, after.action)
    far = (before.obs[FRONT].float() - after.obs[FRONT].float()).abs().mean()
    assert far < 2.0, "pictures are those of their frame, but for the film's compression"
