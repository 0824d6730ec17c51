"""Files of robomimic, Minari and ManiSkill come in whole, and what they lack or what is broken in them is named."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

h5py = pytest.importorskip("h5py")

from robopolicy.core.errors import ConfigError, DataError  # noqa: E402
from robopolicy.core.specs import ActionSpec  # noqa: E402
from robopolicy.datasets.hdf5 import contents  # noqa: E402
from robopolicy.datasets.hdf5.actions import known_actions  # noqa: E402
from robopolicy.datasets.hdf5.convert import find_hdf5  # noqa: E402
from robopolicy.datasets.hdf5.options import ActionFacts, Hdf5Options  # noqa: E402
from robopolicy.datasets.lerobot_reader import load_episodes  # noqa: E402
from robopolicy.real.datasets.convert import convert  # noqa: E402
from robopolicy.sim.suites import maniskill_meaning  # noqa: E402
from robopolicy.sim.suites.base import unit_action  # noqa: E402
from tests.datasets import hdf5_files as files  # noqa: E402

LIFT = Hdf5Options(task="lift the cube")
MAZE = Hdf5Options(
    task="go there", rate_hz=10.0,
    action=ActionFacts(names=("fx", "fy"), units=("N",), frame="world", tcp="ball", rotation="none",
                       reference="absolute", gripper="none"),
)  # fmt: skip
CUBE = Hdf5Options(task="pick", rate_hz=20.0)


def broken(path: Path, key: str, value: Any) -> Path:
    """`path` with dataset `key` replaced (None: removed)."""
    with h5py.File(path, "r+") as file:
        del file[key]
        if value is not None:
            file[key] = value
    return path


def test_robomimic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = files.robomimic(tmp_path / "low_dim.hdf5"), tmp_path / "out"
    assert convert(recording=file, out=out, hdf5=LIFT)[1:] == (2, 7, 0, {})
    captured = capsys.readouterr()
    assert "not taken: robot0_vel" in captured.out and "converted episodes: 2/2" in captured.out + captured.err
    found = load_episodes(out)
    assert found.lengths.tolist() == [3, 4] and found.dt == 0.05 and found.tasks == ("lift the cube",)
    state = found.obs["observation.state"]
    assert state.shape == (7, 19) and state[:, 0].tolist() == [0, 1, 2, 10, 11, 12, 13]
    names = found.observation["observation.state"].names
    assert names[:2] == ("robot0_eef_pos_0", "robot0_eef_pos_1") and names[18] == "object_9"
    assert found.action[:, 6].tolist() == pytest.approx([0.1, 0.11, 0.12, 0.2, 0.21, 0.22, 0.23])
    assert found.success.tolist() == [False, False, True] + [False] * 4
    assert found.terminated.tolist() == found.success.tolist(), "the one that fails was cut off"
    spec = found.action_spec
    assert (spec.names[3], spec.rotation, spec.reference, spec.gripper) == ("drx", "rotvec", "measured", 6)
    assert spec.low == (-1.0,) * 7 and spec.frame == "world"
    meta = json.loads((out / "meta" / "robopolicy.json").read_text())
    assert meta["provenance"]["env"] == "Lift" and meta["provenance"]["source"] == "robomimic" and meta["complete"]


def test_robomimic_pictures_filter_keys_and_instructions(tmp_path: Path) -> None:
    file, out = files.robomimic(tmp_path / "image.hdf5", images=True), tmp_path / "out"
    with h5py.File(file, "r+") as f:
        f["data"].attrs["problem_info"] = json.dumps({"language_instruction": "lift it"})
    options = Hdf5Options(filter="train", state=("object", "robot0_vel"), names=False)
    assert convert(recording=file, out=out, hdf5=options)[1:] == (1, 4, 0, {})
    found = load_episodes(out)
    assert found.tasks == ("lift it",) and found.obs["observation.state"].shape == (4, 17)
    assert found.observation["observation.state"].names is None
    picture = found.obs["observation.images.agentview"]
    assert picture.shape == (4, 3, 16, 24) and (picture.float() - 80).abs().max() < 4, "coded as video"
    with pytest.raises(ConfigError, match=r"hdf5.filter=tran: no such filter key.*Did you mean 'train'"):
        convert(recording=file, out=tmp_path / "x", hdf5=Hdf5Options(filter="tran"))
    with pytest.raises(ConfigError, match=r"hdf5.cameras: no camera 'agent'. Did you mean 'agentview'"):
        convert(recording=file, out=tmp_path / "x", hdf5=Hdf5Options(cameras=("agent",)))
    with pytest.raises(ConfigError, match=r"hdf5.state: no vector 'objct' over time.*Did you mean 'object'"):
        convert(recording=file, out=tmp_path / "x", hdf5=Hdf5Options(state=("objct",)))


def test_minari_dictionaries(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(recording=files.minari(tmp_path / "maze"), out=out, hdf5=MAZE)
    found = load_episodes(out)
    assert found.lengths.tolist() == [3, 4] and found.dt == pytest.approx(0.1) and found.seeds.tolist() == [100, 101]
    assert found.observation["observation.state"].names == (
        "deep.achieved_0", "desired_goal_0", "observation_0", "observation_1",
    )  # fmt: skip
    assert found.obs["observation.state"][4].tolist() == [11.5, -11.0, 11.0, 11.0]
    assert found.action_spec.high == (1.0, 2.0) and found.action_spec.units == ("N", "N")
    assert found.action_spec.gripper is None
    assert found.reward.tolist() == [0, 0, 1.5, 0, 0, 0, 1.5], "rewards are the file's, not the success"
    assert found.success.tolist() == [False, False, True, False, False, True, True]
    assert found.terminated.tolist() == [False, False, True] + [False] * 4


def test_minari_flat_observations_and_infos_as_text(tmp_path: Path) -> None:
    folder = files.minari(tmp_path / "maze", nested=False, success="json")
    convert(recording=folder / "data" / "main_data.hdf5", out=tmp_path / "out", only_success=True, hdf5=MAZE)
    found = load_episodes(tmp_path / "out")
    assert found.observation["observation.state"].names == ("main_0", "main_1"), "as the Gymnasium adapter calls them"
    assert found.success.tolist() == [False, False, True, False, False, True, True]


def test_maniskill(tmp_path: Path) -> None:
    file, out = files.maniskill(tmp_path / "trajectory.h5"), tmp_path / "out"
    assert convert(recording=file, out=out, only_success=True, hdf5=CUBE).left_out == {"traj_2": "no success"}
    found = load_episodes(out)
    assert found.obs["observation.state"][:, 0].tolist() == [0, 1, 2] and found.seeds.tolist() == [7]
    assert found.success.tolist() == found.terminated.tolist() == found.reward.bool().tolist() == [False, False, True]
    assert found.action_spec.names[5] == "minus_drz" and found.action_spec.tcp == "panda_hand_tcp"


def test_maniskill_pictures_states_and_rates(tmp_path: Path) -> None:
    file = files.maniskill(tmp_path / "a.h5", obs="dict", sim={"control_freq": 50})
    convert(recording=file, out=tmp_path / "a", hdf5=Hdf5Options(task="pick"))
    found = load_episodes(tmp_path / "a")
    assert found.observation["observation.state"].names[-2:] == ("agent.qpos_4", "extra.is_grasped_0")
    assert found.obs["observation.state"][:3, -1].tolist() == [0, 0, 1] and found.dt == 0.02
    assert found.obs["observation.images.base_camera"].shape == (6, 3, 16, 24)
    with pytest.raises(ConfigError, match=r"hdf5.rate_hz=20: .* says that it was recorded at 50 Hz"):
        convert(recording=file, out=tmp_path / "x", hdf5=CUBE)
    bare = files.maniskill(tmp_path / "b.h5", obs="none")
    convert(recording=bare, out=tmp_path / "b", hdf5=CUBE)
    assert load_episodes(tmp_path / "b").observation["observation.state"].names[0] == "env_states.actors.cube_0"


def test_what_files_do_not_say_is_asked_for_by_key(tmp_path: Path) -> None:
    folder = files.minari(tmp_path / "maze", success="", space={**SPACE_WITHOUT_END})
    with pytest.raises(ConfigError) as error:
        convert(recording=folder, out=tmp_path / "x", hdf5=Hdf5Options())
    asked = {line.split("=")[0].strip() for line in str(error.value).splitlines()[1:]}
    kinds = {f"hdf5.action.{k}" for k in ("names", "units", "low", "high", "frame", "tcp", "rotation", "reference",
                                          "gripper", "gripper_meaning")}  # fmt: skip
    assert asked == {"hdf5.rate_hz", "hdf5.task", "hdf5.success", *kinds}
    cube = files.maniskill(tmp_path / "a.h5", mode="pd_joint_pos", dim=8)
    with pytest.raises(ConfigError, match=r"hdf5.rate_hz=.*ManiSkill's default is 20(?s:.*)hdf5.action.low") as error:
        convert(recording=cube, out=tmp_path / "x", hdf5=Hdf5Options(task="pick"))
    assert "action.names" not in str(error.value) and "success" not in str(error.value)
    dense = files.robomimic(tmp_path / "dense.hdf5", reward_shaping=True)
    with pytest.raises(ConfigError, match=r"hdf5.success=true or false"):
        convert(recording=dense, out=tmp_path / "x", hdf5=LIFT)


SPACE_WITHOUT_END = {**files.SPACE, "low": [-np.inf, -np.inf], "high": [np.inf, np.inf]}


def test_unknown_control(tmp_path: Path) -> None:
    file = files.maniskill(tmp_path / "a.h5", mode="pd_ee_delta_poze")
    with pytest.raises(ConfigError, match=r"(?s)control 'pd_ee_delta_poze' is not known here. Did you.*action.names="):
        convert(recording=file, out=tmp_path / "x", hdf5=CUBE)
    other = files.maniskill(tmp_path / "b.h5", dim=12)  # a known mode of another robot
    with pytest.raises(ConfigError, match=r"hdf5.action.names=\[dx,dy,…\], one for each of the 12 channels"):
        convert(recording=other, out=tmp_path / "x", hdf5=CUBE)
    ik = files.robomimic(tmp_path / "c.hdf5", controller_configs={**files.OSC, "type": "IK_POSE"})
    with pytest.raises(ConfigError, match=r"control 'IK_POSE \(deltas\)' is not known here"):
        convert(recording=ik, out=tmp_path / "x", hdf5=LIFT)
    absolute = files.robomimic(tmp_path / "d.hdf5", controller_configs={**files.OSC, "control_delta": False})
    with pytest.raises(ConfigError, match=r"hdf5\.action\.low") as error:
        convert(recording=absolute, out=tmp_path / "x", hdf5=LIFT)
    assert "action.names" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("data/demo_1/actions", np.zeros((3, 7)), r"demo_1: has 3 actions, the file says 4"),
        ("data/demo_1/rewards", np.zeros(5), r"demo_1/rewards: expected shape \(4,\), found \(5,\)"),
        ("data/demo_0/obs/object", np.zeros((2, 10)), r"demo_0/object: expected shape \(3, 10\), found \(2, 10\)"),
        ("data/demo_1/obs/object", np.zeros((4, 9)), r"demo_1/object: expected shape \(4, 10\), found \(4, 9\)"),
        ("data/demo_1/obs/object", None, r"demo_1/object: is missing"),
        ("data/demo_1/actions", None, r"/data/demo_1/actions: "),
        ("data/demo_1/obs", None, r"/data/demo_1/obs: "),
        (
            "data/demo_1/obs/robot0_eef_pos", np.where(np.arange(12).reshape(4, 3) == 7, np.nan, 0.0),
            r"demo_1/robot0_eef_pos, frame 2: is nan at \[1\]",
        ),
        ("data/demo_0/actions", np.full((3, 7), 1.5), r"demo_0/actions, frame 0: 'dx' is 1.5, limits are \[-1, 1\]"),
    ],
)  # fmt: skip
def test_defects_are_found_before_anything_is_written(tmp_path: Path, key: str, value: Any, message: str) -> None:
    file = broken(files.robomimic(tmp_path / "a.hdf5"), key, value)
    with pytest.raises(DataError, match=message):
        convert(recording=file, out=tmp_path / "out", hdf5=LIFT)
    assert not (tmp_path / "out").exists() and len(list(tmp_path.iterdir())) == 1


def test_all_defects_are_listed_at_once(tmp_path: Path) -> None:
    file = broken(files.robomimic(tmp_path / "a.hdf5"), "data/demo_0/actions", np.full((3, 7), np.nan))
    broken(file, "data/demo_1/obs/object", None)
    with pytest.raises(DataError, match=r"(?s)a.hdf5: 2 defects.*demo_0/actions, frame 0: is nan.*demo_1/object"):
        convert(recording=file, out=tmp_path / "out", hdf5=LIFT)


def test_actions_that_the_simulator_clamped(tmp_path: Path) -> None:
    file = broken(files.robomimic(tmp_path / "a.hdf5"), "data/demo_0/actions", np.full((3, 7), 1.5))
    convert(recording=file, out=tmp_path / "out", hdf5=Hdf5Options(task="lift", clip=True))
    assert load_episodes(tmp_path / "out").action[:3].eq(torch.ones(3, 7)).all()


def test_files_that_are_cut_off_or_of_no_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = files.robomimic(tmp_path / "a.hdf5")
    half = tmp_path / "half" / "a.hdf5"
    half.parent.mkdir()
    half.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataError, match=r"cannot be read as HDF5 \(.*truncated.*Is it whole"):
        convert(recording=half, out=tmp_path / "x", hdf5=LIFT)
    half.write_bytes(b"")
    with pytest.raises(DataError, match="cannot be read as HDF5"):
        convert(recording=half.parent, out=tmp_path / "x", hdf5=LIFT)
    with h5py.File(tmp_path / "half" / "a.hdf5", "w") as other:
        other["weights"] = np.zeros(3)
    with pytest.raises(DataError, match=r"of no format that is known \(robomimic, Minari, ManiSkill\).*'weights'"):
        convert(recording=half, out=tmp_path / "x", hdf5=LIFT)
    with pytest.raises(ConfigError, match=r"holds 2 HDF5 files\. Give one"):
        find_hdf5(tmp_path)
    assert find_hdf5(tmp_path / "nothing") is None
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"needs h5py.*setup.sh suites.*robopolicy\[hdf5\]"), contents.opened(file):
        pass


def test_what_belongs_to_a_file_is_there(tmp_path: Path) -> None:
    cube = files.maniskill(tmp_path / "a.h5")
    facts = json.loads(cube.with_suffix(".json").read_text())
    facts["episodes"][1]["episode_id"] = 1
    cube.with_suffix(".json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"(?s)/traj_2: .*a\.json.*/traj_1: "):
        convert(recording=cube, out=tmp_path / "x", hdf5=CUBE)
    facts["episodes"][1] |= {"episode_id": 2, "control_mode": "pd_joint_pos"}
    cube.with_suffix(".json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"control_mode: .*\['pd_ee_delta_pose', 'pd_joint_pos'\]"):
        convert(recording=cube, out=tmp_path / "x", hdf5=CUBE)
    cube.with_suffix(".json").write_text("{")
    with pytest.raises(DataError, match=r"a\.json"):
        convert(recording=cube, out=tmp_path / "x", hdf5=CUBE)
    cube.with_suffix(".json").unlink()
    with pytest.raises(DataError, match=r"a.json is missing, which belongs to it"):
        convert(recording=cube, out=tmp_path / "x", hdf5=CUBE)
    maze = files.minari(tmp_path / "maze")
    broken(maze / "data" / "main_data.hdf5", "episode_1", None)
    with pytest.raises(DataError, match=r"total_episodes: .*1 .* 2"):
        convert(recording=maze, out=tmp_path / "x", hdf5=MAZE)
    (maze / "data" / "metadata.json").unlink()
    with pytest.raises(
        ConfigError, match=r"hdf5.filter=train: only robomimic's files have filter keys, this is Minari"
    ):
        convert(recording=maze, out=tmp_path / "x", hdf5=Hdf5Options(filter="train"))


def _robosuite() -> ActionSpec:
    """Read from the suite's source, as it need not be installed."""
    module = ast.parse((Path(__file__).parents[2] / "sim" / "suites" / "robosuite.py").read_text())
    (call,) = [n.value for n in module.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "ACTION"]
    assert isinstance(call, ast.Call)
    meaning = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    return unit_action(*map(ast.literal_eval, call.args), **meaning)


def _maniskill() -> ActionSpec:
    space = SimpleNamespace(low=-np.ones(7, dtype=np.float32), high=np.ones(7, dtype=np.float32))
    return maniskill_meaning.action(SimpleNamespace(single_action_space=space), "panda", "pd_ee_delta_pose")


@pytest.mark.parametrize(("there", "facts"), [
    (_robosuite, {**known_actions("robomimic")["OSC_POSE (deltas)"], "frame": "world"}),
    (_maniskill, known_actions("ManiSkill")["pd_ee_delta_pose"]),
])  # fmt: skip
def test_actions_mean_what_the_suite_of_the_same_name_says(
    there: Callable[[], ActionSpec], facts: dict[str, Any]
) -> None:
    """So that a policy trained on a file runs in the suite."""
    spec = there()
    for key, fact in facts.items():
        assert getattr(spec, key) == (fact * 7 if key in ("units", "low", "high") else fact), key
    assert spec == ActionSpec(**{k: v * 7 if k in ("units", "low", "high") else v for k, v in facts.items()})
