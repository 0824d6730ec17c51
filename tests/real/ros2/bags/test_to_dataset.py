"""rosbag2 bags as datasets: what a frame holds, by brute force; bags that must be left out or refused. No DDS."""

from __future__ import annotations

import json
import sqlite3
from functools import partial

import numpy as np
import pytest
import yaml

pytest.importorskip("rclpy")

from mcap.writer import Writer
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64

from robopolicy.cli.main import invoke
from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, Feature
from robopolicy.datasets.converted import UnusableError
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.metadata import RecordingMeta
from robopolicy.real.datasets.bag_options import BagOptions
from robopolicy.real.datasets.convert import convert
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.bags.checks import Stream, check_stream
from robopolicy.real.ros2.bags.reader import Bag, bags_in
from robopolicy.real.ros2.bags.streams import Streams
from robopolicy.real.ros2.bags.to_dataset import frames_of
from robopolicy.real.ros2.images import image
from robopolicy.real.ros2.joint_state_adapter import JointStateObserver, NamedJoints
from robopolicy.real.ros2.wiring import FOLDER, WiringError, load_wiring, parse
from tests.real.ros2.test_messages import HOME, changed

WIRING = load_wiring("mujoco_panda")
PRESET = yaml.safe_load((FOLDER / "mujoco_panda.yaml").read_text())
FRONT = "observation.images.front"
NS, WAY = 1_000_000_000, 3_000_000  # ns; what a message's way takes
START, BOOT = 1_700_000_000 * NS, 5_000 * NS  # of the recorder's clock, and of the arm's
LONG, DT = 3.0, 0.05  # s


def joints(t):
    """[n] rad of the arm, `t` s after the beginning: it begins to move after 0.5 s."""
    return HOME + 0.2 * np.sin(np.maximum(t - 0.5, 0.0)) * np.arange(1, 8) / 7


def recorded(t_end=LONG, camera=True):
    """[(topic, arrival ns, message)] of a drive in which a human took over from 1 to 2 s."""
    w, names, out = WIRING, (*WIRING.joints, *WIRING.gripper), []
    for k in range(round(t_end * 250)):
        t, ns = k / 250, BOOT + k * 4_000_000
        at = START + k * 4_000_000 + WAY
        q = joints(t)
        state = messages.joint_state(names, ns, np.array([*q, 0.03, 0.03]), np.full(9, t))
        out += [("joint_states", at, state), ("joint_commands", at, messages.joint_state(w.joints, ns, q + 0.01))]
        if k % 2 == 0:
            out.append(("features", at, messages.joint_state(("ball_x", "ball_y"), ns, np.array([t, -t]))))
        if camera and k % 10 == 0:
            picture = np.full((3, 24, 32), k // 10, np.uint8)
            out.append(("camera/front/image_raw", at, image(picture, ns, w.cameras[FRONT])))
    out.append(("gripper", START + round(1.5 * NS), Float64(data=0.02)))
    out += [("intervention", START + k * NS // 20, Bool(data=20 <= k < 40)) for k in range(round(t_end * 20))]
    return sorted(out, key=lambda m: m[1])


def kind_of(message) -> str:
    return f"{type(message).__module__.split('.')[0]}/msg/{type(message).__name__}"


def write(folder, found, *, storage="mcap", prefix="/", files=1):
    """A bag as rosbag2 lays it out."""
    folder.mkdir(parents=True)
    size, names = -(-len(found) // files), []
    for k in range(files):
        part = found[k * size : (k + 1) * size]
        names.append(f"{folder.name}_{k}{'.mcap' if storage == 'mcap' else '.db3'}")
        (_mcap if storage == "mcap" else _sqlite)(folder / names[-1], part, prefix)
    about = {"version": 9, "storage_identifier": storage, "relative_file_paths": names, "compression_format": ""}
    (folder / "metadata.yaml").write_text(yaml.safe_dump({"rosbag2_bagfile_information": about}))
    return folder


def _mcap(path, found, prefix):
    with path.open("wb") as file:
        writer, channels = Writer(file), {}
        writer.start(profile="ros2", library="test")
        for topic, at, message in found:
            if topic not in channels:
                schema = writer.register_schema(kind_of(message), "ros2msg", b"")
                channels[topic] = writer.register_channel(prefix + topic, "cdr", schema)
            writer.add_message(channels[topic], at, serialize_message(message), at)
        writer.finish()


def _sqlite(path, found, prefix):
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT)")
    base.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB)")
    topics = {}
    for topic, at, message in found:
        if topic not in topics:
            topics[topic] = len(topics) + 1
            base.execute(
                "INSERT INTO topics VALUES (?, ?, ?, 'cdr')", (topics[topic], prefix + topic, kind_of(message))
            )
        base.execute("INSERT INTO messages VALUES (NULL, ?, ?, ?)", (topics[topic], at, serialize_message(message)))
    base.commit()
    base.close()


@pytest.fixture(scope="module")
def drive():
    return recorded()


@pytest.fixture(scope="module")
def bag(drive, tmp_path_factory):
    return write(tmp_path_factory.mktemp("bags") / "drive", drive)


OPTIONS = {"wiring": "mujoco_panda", "task": "go left"}


def streams(path, wiring=WIRING, *, commanded=True, image_size=None):
    return Streams(Bag(path), wiring, commanded=commanded, image_size=image_size)


def brute(drive, begin, topic, t):
    """The newest message on `topic` that had arrived `t` s after `begin` ns."""
    return [m for name, at, m in drive if name == topic and at <= begin + round(t * NS)][-1]


# -- what a frame holds -----------------------------------------------------------------------------------------------
def test_a_frame_holds_what_had_arrived_and_where_the_arm_was_told_to_be(bag, drive):
    found = frames_of(streams(bag), WIRING, DT)
    begin = START + WAY  # when all had come once
    first = next(k for k in range(60) if np.abs(joints(k * DT) - HOME).max() > 2e-3) - 1
    steps = int((LONG - 0.04) / DT)  # until the camera's last picture
    assert len(found.action) == steps - first == len(found.obs[STATE]) == len(found.obs[FRONT])
    for k in range(len(found.action)):
        now, later = (first + k) * DT, (first + k + 1) * DT
        state = brute(drive, begin, "joint_states", now)
        ball = brute(drive, begin, "features", now)
        want = [*state.position[:7], *state.velocity[:7], 0.06, *ball.position]
        assert np.allclose(found.obs[STATE][k], np.array(want, np.float32), atol=0)
        picture = brute(drive, begin, "camera/front/image_raw", now)
        assert int(found.obs[FRONT][k].min()) == int(found.obs[FRONT][k].max()) == picture.data[0]
        told = brute(drive, begin, "joint_commands", later)
        grip = 0.02 if begin + later * NS >= START + 1.5 * NS else 0.06
        assert np.allclose(found.action[k], [*told.position, grip], atol=0)
        assert found.intervention[k] == (begin + now * NS >= START + NS and begin + now * NS < START + 2 * NS), k
    assert found.intervention.sum() == 20


def test_guided_by_hand_the_action_is_where_the_arm_was_a_step_later(bag, drive):
    found = frames_of(streams(bag, commanded=False), WIRING, DT)
    assert np.allclose(found.action[:-1, :7], found.obs[STATE][1:, :7], atol=1e-6)
    assert set(found.action[:, 7]) == {0.06}, "measured, the gripper too"


@pytest.mark.parametrize("stamped", [True, False])
def test_what_was_told_is_read_of_trajectories_too(drive, tmp_path, stamped):
    """A point that is due, in the arm's time, of the newest trajectory that had arrived; between points a line.

    One without a stamp begins when it comes, as ROS has it.
    """
    wiring = parse(changed(topics__joint_commands=None))
    found = [m for m in drive if m[0] != "joint_commands"]
    for k in range(750):
        ahead = np.array([joints(k / 250 + 0.004 * i) + 0.01 for i in range(30)])
        sent = messages.trajectory(WIRING.joints, (BOOT + k * 4_000_000) * stamped, ahead, 4_000_000)
        found.append(("trajectory", START + k * 4_000_000 + WAY, sent))
    bag = write(tmp_path / "bag", sorted(found, key=lambda m: m[1]))
    frames = frames_of(streams(bag, wiring), wiring, DT)
    first = next(k for k in range(60) if np.abs(joints(k * DT) - HOME).max() > 2e-3) - 1
    want = [joints((first + k + 1) * DT) + 0.01 for k in range(len(frames.action))]
    assert np.abs(frames.action[:, :7] - want).max() < 1e-6


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_dataset_that_trains_and_deploys(drive, tmp_path, storage):
    """Two bags, one of them in parts and under a namespace; names and action are those that `plain` understands."""
    found = recorded(camera=False)
    write(tmp_path / "bags" / "a", found, storage=storage)
    write(tmp_path / "bags" / "b", found, storage=storage, prefix="/cell/", files=3)
    made = convert(recording=tmp_path / "bags", out=tmp_path / "d", bag=BagOptions(**OPTIONS, success=True))
    assert made.episodes == 2 and made.interventions == 40 and not made.left_out
    episodes = load_episodes(tmp_path / "d")
    assert episodes.num_episodes == 2 and len(episodes.action) == made.frames
    meta = RecordingMeta.load(tmp_path / "d")
    assert meta.complete and meta.tasks == ("go left",) and meta.dt == DT
    names = json.loads((tmp_path / "d" / "meta" / "info.json").read_text())["features"][STATE]["names"]
    spec = PolicySpec({STATE: Feature((len(names),), names=tuple(names))}, meta.action, DT, 1, 4, 2, meta.tasks)
    assert JointStateObserver(spec, WIRING).names == ("ball_x", "ball_y")
    assert NamedJoints(spec.action, WIRING, dt=DT) is not None


def test_pictures_become_video(bag, tmp_path):
    """By the command that people type."""
    made = invoke("convert", "bag.wiring=mujoco_panda", "bag.task='go left'", "bag.image_size=[12,16]",
                  recording=bag, out=tmp_path / "d")  # fmt: skip
    episodes = load_episodes(tmp_path / "d")
    assert episodes.obs[FRONT].shape == (made.frames, 3, 12, 16)
    mean = episodes.obs[FRONT].float().mean(dim=(1, 2, 3))
    assert mean[-1] - mean[0] == pytest.approx((made.frames - 1) * DT * 25, abs=3.0), "a number brighter each picture"


# -- what is left out, or refused -------------------------------------------------------------------------------------
def without(topic, a, b, found):
    return [m for m in found if m[0] != topic or not START + a * NS < m[1] < START + b * NS]


def stamped(topic, shift, a, found):
    """The messages of a topic after `a` s with stamps that are `shift` s later."""
    out = []
    for name, at, m in found:
        if name == topic and at > START + a * NS:
            ns = messages.to_ns(m.header.stamp) + round(shift * NS)
            m = messages.joint_state(tuple(m.name), ns, np.array(m.position), np.array(m.velocity))
        out.append((name, at, m))
    return out


def late(found):
    """For half a second everything arrives at once, at its end."""
    return sorted(((n, max(at, START + round(1.5 * NS)) if at > START + NS else at, m) for n, at, m in found),
                  key=lambda m: m[1])  # fmt: skip


def thinned(found):
    kept, count = [], 0
    for m in found:
        count += m[0] == "joint_states"
        if m[0] != "joint_states" or count % 2:
            kept.append(m)
    return kept


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (partial(without, "joint_states", 1.0, 1.2), r"joint_states: a gap of 0.20\d s after 0.99\d s; .*waits 0.05 s"),
        (partial(without, "features", 1.0, 1.2), "features: a gap of"),
        (partial(without, "camera/front/image_raw", 1.0, 1.5), "observation.images.front: a gap of"),
        (partial(without, "joint_commands", 1.0, 1.2), "joint_commands: a gap of"),
        (partial(stamped, "joint_states", -0.5, 1.0), "joint_states: 1 of 750 messages are stamped out of order"),
        (partial(stamped, "joint_states", 3600.0, 1.0), "joint_states: a gap of 3600.004 s"),
        (partial(stamped, "joint_states", 0.04, 1.0), None),
        (thinned, "joint_states: 125.0 messages a second, the wiring says 250"),
        (late, "a gap of 0.5"),
        (lambda found: [m for m in found if m[1] < START + 0.4 * NS], "nothing moved"),
        (lambda found: [m for m in found if m[1] < START + 0.6 * NS], "only [0-3] control steps after the first"),
    ],
)
def test_times_that_are_wrong_are_named(drive, tmp_path, change, what):
    found = streams(write(tmp_path / "bag", change(drive)))
    if what is None:
        frames_of(found, WIRING, DT)
        return
    with pytest.raises(UnusableError, match=what):
        frames_of(found, WIRING, DT)


def test_an_episode_that_cannot_be_used_is_left_out_and_said(drive, tmp_path, capsys):
    short = [m for m in drive if m[0] != "camera/front/image_raw"]
    write(tmp_path / "bags" / "a", without("joint_states", 1.0, 1.2, short))
    write(tmp_path / "bags" / "b", short)
    made = convert(recording=tmp_path / "bags", out=tmp_path / "d", bag=BagOptions(**OPTIONS))
    assert made.episodes == 1 and list(made.left_out) == ["a"] and "a gap of" in made.left_out["a"]
    said = "".join(capsys.readouterr())
    assert "gripper:" not in said and "converted bags: 2/2" in said
    write(tmp_path / "silent", [m for m in short if m[0] != "gripper"])
    convert(recording=tmp_path / "silent", out=tmp_path / "s", bag=BagOptions(**OPTIONS))
    assert "gripper: no opening that was asked for is in ['silent']" in capsys.readouterr().out
    (tmp_path / "bags" / "b").rename(tmp_path / "b")
    with pytest.raises(DataError, match=r"no episode to keep of 1: .*a gap of"):
        convert(recording=tmp_path / "bags", out=tmp_path / "e", bag=BagOptions(**OPTIONS))


def test_a_clock_that_creeps_is_noticed():
    """0.3 s within the bag, too slowly for a gap."""
    t = np.arange(0.0, 3.0, 0.004)
    check_stream("states", Stream(t, t, t), 250.0, 0.05)
    with pytest.raises(UnusableError, match="later than the others"):
        check_stream("states", Stream(t, t * 1.2, t), 250.0, 0.05)
    with pytest.raises(UnusableError, match="1 messages"):
        check_stream("states", Stream(t[:1], t[:1], t[:1]), 250.0, 0.05)


def test_a_gripper_apart_and_joints_of_others_are_read_as_the_node_reads_them(drive, tmp_path):
    """On one topic: the arm, a base, an empty message, and fingers at 31 Hz, whose newest opening counts."""
    wiring = parse(changed(topics__gripper_states={"name": "joint_states", "rate_hz": 30.0},
                           watchdogs__gripper_states={"hold": 0.2, "fault": 1.0}))  # fmt: skip
    found, k = [("joint_states", START, JointState())], 0
    for name, at, m in drive:
        if name != "joint_states":
            found.append((name, at, m))
            continue
        ns = messages.to_ns(m.header.stamp)
        if k % 8 == 0:
            found.append((name, at, messages.joint_state(tuple(WIRING.gripper), ns, np.full(2, 2e-5 * k))))
        found.append((name, at, messages.joint_state(("wheel",), ns, np.ones(1))))
        found.append((name, at, messages.joint_state(WIRING.joints, ns, np.array(m.position[:7]), np.zeros(7))))
        k += 1
    read = streams(write(tmp_path / "bag", found), wiring).states
    assert len(read.arrived) == k
    np.testing.assert_allclose(read.values[:, 14], 4e-5 * (np.arange(k) // 8 * 8))


def degrees(found):
    return [(n, at, messages.joint_state(tuple(m.name), 1, np.rad2deg(m.position), np.zeros(9)) if n == "joint_states"
             else m) for n, at, m in found]  # fmt: skip


def foreign(found):
    return [(n, at, messages.joint_state(("fr3_joint1", *m.name[1:]), 1, np.array(m.position), np.zeros(9))
             if n == "joint_states" else m) for n, at, m in found]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "options", "what"),
    [
        (degrees, {}, "look like degrees"),
        (foreign, {}, "'panda_joint1' is missing; beside them came"),
        (lambda f: [m for m in f if m[0] != "joint_commands"], {}, "no topic 'joint_commands'.*action=measured"),
        (lambda f: [m for m in f if m[0] != "joint_states"], {}, r"no topic 'joint_states' \(topics.joint_states"),
        (lambda f: [(n, at, Bool() if n == "joint_states" else m) for n, at, m in f], {},
         "'/joint_states' holds std_msgs/msg/Bool, the wiring expects sensor_msgs/msg/JointState"),
        (lambda f: f, {"task": ""}, "bag.task: bag does not say what was done"),
        (lambda f: f, {"rate_hz": 300.0}, "bag.rate_hz: expected up to 125"),
        (lambda f: f, {"rate_hz": 7.3}, "whole frames per second"),
        (lambda f: f, {"wiring": "pandas"}, "no such file, or preset of an arm over ROS 2"),
        (lambda f: f, {"wiring": None}, "a rosbag2 bag. Give bag.wiring"),
        (lambda f: f, {"image_size": (48, 32)}, "fewer than the"),
    ],
)  # fmt: skip
def test_a_bag_of_another_kind_is_refused(tmp_path, change, options, what):
    write(tmp_path / "bag", change(recorded(1.0)))
    with pytest.raises((DataError, ConfigError, WiringError), match=what):
        convert(recording=tmp_path / "bag", out=tmp_path / "d", bag=BagOptions(**{**OPTIONS, **options}))
    assert not (tmp_path / "d").exists()


def about(folder, **custom):
    """Let the metadata of a bag hold `robopolicy.<key>`."""
    file = folder / "metadata.yaml"
    found = yaml.safe_load(file.read_text())
    found["rosbag2_bagfile_information"]["custom_data"] = {f"robopolicy.{key}": v for key, v in custom.items()}
    file.write_text(yaml.safe_dump(found))


@pytest.mark.parametrize("rate", ["fast", "0", -20, "nan", ".inf", None])
def test_a_rate_in_a_bag_that_is_none_is_named(tmp_path, rate):
    about(write(tmp_path / "bag", recorded(1.0, camera=False)), rate_hz=rate)
    with pytest.raises(DataError, match=r"metadata\.yaml: custom_data\.robopolicy\.rate_hz.*bag\.rate_hz"):
        convert(recording=tmp_path / "bag", out=tmp_path / "d", bag=BagOptions(**OPTIONS))


@pytest.mark.parametrize(("said", "success"), [("true", True), (True, True), ("false", False), (False, False)])
def test_a_success_in_a_bag_counts_with_and_without_quotes(tmp_path, said, success):
    """YAML that another tool wrote may hold a boolean."""
    about(write(tmp_path / "bag", recorded(1.5, camera=False)), success=said)
    convert(recording=tmp_path / "bag", out=tmp_path / "d", bag=BagOptions(**OPTIONS))
    assert bool(load_episodes(tmp_path / "d").success.any()) == success


def test_damage_is_named(tmp_path):
    folder = write(tmp_path / "bag", recorded(1.0, camera=False))
    file = folder / "bag_0.mcap"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"bag_0.mcap: damaged or cut off .*mcap recover"):
        Bag(folder)
    torn = bytearray(whole)
    torn[len(whole) // 3] ^= 0xFF
    file.write_bytes(bytes(torn))
    with pytest.raises(DataError, match="damaged"):
        streams(folder)
    file.rename(folder / "bag_0.mcap.zstd")
    with pytest.raises(DataError, match=r"no such file, though bag/metadata\.yaml names it"):
        Bag(folder)
    text = (folder / "metadata.yaml").read_text()
    (folder / "metadata.yaml").write_text(text.replace("bag_0.mcap", "bag_0.mcap.zstd"))
    with pytest.raises(DataError, match=r"bag_0\.mcap\.zstd: expected .*\.mcap"):
        Bag(folder)
    file = (folder / "bag_0.mcap.zstd").rename(folder / "bag_0.mcap")
    (folder / "metadata.yaml").write_text(text.replace("storage_identifier: mcap", "storage_identifier: tape"))
    with pytest.raises(DataError, match=r"storage_identifier: .*'tape'"):
        Bag(folder)
    file = file.rename(folder / "bag_0.tape")
    for path in (folder, file):  # named by its metadata, and by the user
        (folder / "metadata.yaml").write_text(text.replace("bag_0.mcap", "bag_0.tape"))
        with pytest.raises(DataError, match=r"bag_0\.tape: expected"):
            Bag(path)
    (folder / "metadata.yaml").write_text("[")
    with pytest.raises(DataError, match=r"metadata\.yaml"):
        Bag(folder)
    with pytest.raises(DataError, match="no rosbag2 bag"):
        bags_in(tmp_path / "nowhere")


def test_a_topic_in_two_namespaces_must_be_named(tmp_path):
    found = recorded(0.2)
    folder = write(tmp_path / "bag", found + [(f"left/{n}", at, m) for n, at, m in found])
    with pytest.raises(DataError, match=r"'joint_states' may be any of \['/joint_states', '/left/joint_states'\]"):
        streams(folder)


def test_messages_that_are_compressed_each_are_named_so(tmp_path):
    folder = write(tmp_path / "bag", recorded(0.2, camera=False), storage="sqlite3")
    about = yaml.safe_load((folder / "metadata.yaml").read_text())
    for mode in ("MESSAGE", "message"):
        about["rosbag2_bagfile_information"]["compression_mode"] = mode
        (folder / "metadata.yaml").write_text(yaml.safe_dump(about))
        with pytest.raises(DataError, match="compression_mode"):
            Bag(folder)
    (folder / "metadata.yaml").unlink()  # nothing says so but the messages
    base = sqlite3.connect(next(folder.glob("*.db3")))
    base.execute("UPDATE messages SET data = ?", (b"\x28\xb5\x2f\xfd rest",))
    base.commit()
    base.close()
    bag = Bag(folder)
    with pytest.raises(DataError, match="compressed message by message"):
        next(bag.items(list(bag.types)))


def test_copies_that_macos_leaves_are_no_bags(tmp_path):
    folder = write(tmp_path / "bag", recorded(0.2, camera=False))
    (folder / "metadata.yaml").unlink()
    (folder / "._bag_0.mcap").write_bytes(b"\x00\x05\x16\x07")
    assert [f.name for f in Bag(folder).files] == ["bag_0.mcap"]
    (folder / "bag_0.mcap").unlink()
    with pytest.raises(DataError, match="found none"):
        Bag(folder)


@pytest.mark.parametrize("k", [0, 10, 249])
def test_a_time_that_is_no_number_fails(k):
    t = np.arange(250) / 250
    for column in (0, 1):
        times = [t.copy(), t.copy()]
        times[column][k] = np.nan
        with pytest.raises(UnusableError):
            check_stream("states", Stream(times[0], times[1], t), 250.0, 0.05)


def test_a_gripper_that_falls_silent_leaves_its_episode_out(drive, tmp_path):
    wiring = parse(changed(topics__gripper_states={"name": "fingers", "rate_hz": 50.0},
                           watchdogs__gripper_states={"hold": 0.2, "fault": 1.0}))  # fmt: skip
    whole, dead = list(drive), list(drive)
    for k in range(round(LONG * 50)):
        m = messages.joint_state(tuple(WIRING.gripper), BOOT + k * 20_000_000, np.full(2, 0.03))
        whole.append(("fingers", START + k * 20_000_000 + WAY, m))
        if not 30 <= k < 60:
            dead.append(whole[-1])
    frames_of(streams(write(tmp_path / "whole", whole), wiring), wiring, DT)
    with pytest.raises(UnusableError, match=r"gripper_states: a gap of 0\.620 s after 0\.580 s"):
        frames_of(streams(write(tmp_path / "dead", dead), wiring), wiring, DT)


def test_old_pictures_are_paired_with_the_state_of_then(drive, tmp_path):
    """As the node shows them: `latency_s` before they come."""
    late = 0.1
    wiring = parse(changed(cameras={FRONT: dict(PRESET["cameras"][FRONT], latency_s=late)}))
    moved = [(n, at + round(late * NS) * (n.startswith(("camera", "features"))), m) for n, at, m in drive]
    before = frames_of(streams(write(tmp_path / "a", drive)), WIRING, DT)
    after = frames_of(streams(write(tmp_path / "b", moved), wiring), wiring, DT)
    assert len(after.action) == len(before.action)
    for key, values in before.obs.items():
        assert np.array_equal(values, after.obs[key]), key
