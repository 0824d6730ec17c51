"""Tiny HDF5 files in the layouts of robomimic, Minari and ManiSkill, with known numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

OSC = {"type": "OSC_POSE", "input_max": 1, "input_min": -1, "output_max": [0.05] * 3 + [0.5] * 3, "control_delta": True}
KWARGS = {"control_freq": 20, "reward_shaping": False, "robots": ["Panda"], "controller_configs": OSC}


def robomimic(path: Path, *, lengths: tuple[int, ...] = (3, 4), images: bool = False, **kwargs: Any) -> Path:
    """Demonstration i: action t is filled with (i + 1) / 10 + t / 100, observations with 10·i + t."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        args = {"env_name": "Lift", "env_version": "1.4.1", "type": 1, "env_kwargs": {**KWARGS, **kwargs}}
        data.attrs["env_args"], data.attrs["total"] = json.dumps(args), sum(lengths)
        for i, n in enumerate(lengths):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"], demo.attrs["model_file"] = n, "<mujoco/>"
            time = np.arange(n)
            demo["actions"] = (np.full((n, 7), (i + 1) / 10) + time[:, None] / 100).astype(np.float64)
            demo["rewards"] = (time == n - 1).astype(float) * (i != 1)  # the second one fails
            demo["dones"], demo["states"] = (time == n - 1).astype(int), np.zeros((n, 32))
            widths = {
                "object": 10,
                "robot0_eef_pos": 3,
                "robot0_eef_quat": 4,
                "robot0_gripper_qpos": 2,
                "robot0_vel": 7,
            }
            for kind in ("obs", "next_obs"):
                for key, width in widths.items():
                    demo[f"{kind}/{key}"] = np.full((n, width), 10.0 * i) + time[:, None]
                if images:
                    demo[f"{kind}/agentview_image"] = np.full((n, 16, 24, 3), 40 * (i + 1), dtype=np.uint8)
        file["mask/train"] = np.array([b"demo_1"])
    return path


SPACE = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1.0, -2.0], "high": [1.0, 2.0]}


def minari(folder: Path, *, nested: bool = True, success: str = "infos", space: dict[str, Any] = SPACE) -> Path:
    """Episode i of 3 + i steps: observations 10·i + t, with the successor; terminated where i is even.

    `success`: "infos" a group, "json" one text a step, "" none.
    """
    data = folder / "data"
    data.mkdir(parents=True)
    meta = {
        "dataset_id": "maze/umaze-v2", "total_episodes": 2, "total_steps": 7, "data_format": "hdf5",
        "env_spec": json.dumps({"id": "Maze-v3"}), "action_space": json.dumps(space), "minari_version": "0.5.4",
    }  # fmt: skip
    (data / "metadata.json").write_text(json.dumps(meta))
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for i in range(2):
            n = 3 + i
            group = file.create_group(f"episode_{i}")
            group.attrs["id"], group.attrs["total_steps"], group.attrs["seed"] = i, n, 100 + i
            seen = np.full((n + 1, 2), 10.0 * i) + np.arange(n + 1)[:, None]
            if nested:
                group["observations/observation"], group["observations/desired_goal"] = seen, -seen[:, :1]
                group["observations/deep/achieved"] = seen[:, 0] + 0.5
            else:
                group["observations"] = seen
            group["actions"] = np.full((n, 2), 0.25 * (i + 1), dtype=np.float32)
            last = np.arange(n) == n - 1
            group["rewards"] = last * 1.5
            group["terminations"], group["truncations"] = last & (i == 0), last & (i == 1)
            reached = np.arange(n + 1) >= n - i  # the first succeeds at its end, the second a step earlier, too
            if success == "infos":
                group["infos/success"] = reached
            elif success == "json":
                texts = [json.dumps({"success": bool(s)}) for s in reached]
                group.create_dataset("infos", data=texts, dtype=h5py.string_dtype())
    return folder


def maniskill(
    path: Path, *, mode: str = "pd_ee_delta_pose", dim: int = 7, obs: str = "flat", sim: dict[str, Any] | None = None,
    success: bool = True,
) -> Path:  # fmt: skip
    """Trajectories 0 and 2 of three steps; `obs`: flat, dict or none."""
    kwargs = {"obs_mode": "state", "control_mode": mode, **({"sim_config": sim} if sim else {})}
    episodes: list[dict[str, Any]] = []
    with h5py.File(path, "w") as file:
        for i in (0, 2):
            group = file.create_group(f"traj_{i}", track_order=True)
            seen = np.full((4, 5), 10.0 * i, dtype=np.float32) + np.arange(4, dtype=np.float32)[:, None]
            if obs == "flat":
                group["obs"] = seen
            elif obs == "dict":
                group["obs/agent/qpos"], group["obs/extra/is_grasped"] = seen, np.array([False, False, True, True])
                for part, depth in (("rgb", 3), ("depth", 1)):
                    kind = np.uint8 if part == "rgb" else np.uint16
                    group[f"obs/sensor_data/base_camera/{part}"] = np.full((4, 16, 24, depth), 7, dtype=kind)
            else:
                group.create_group("obs")
            group["env_states/actors/cube"] = np.zeros((4, 13), dtype=np.float32)
            group["actions"] = np.full((3, dim), 0.5, dtype=np.float32)
            group["terminated"], group["truncated"] = np.array([False, False, i == 0]), np.array([False] * 3)
            if success:
                group["success"] = np.array([False, False, i == 0])
            listed = {"episode_id": i, "episode_seed": 7 + i, "control_mode": mode, "elapsed_steps": 3}
            episodes.append({**listed, **({"success": i == 0} if success else {}), "reset_kwargs": {}})
    env = {"env_id": "PickCube-v1", "env_kwargs": kwargs, "max_episode_steps": 50}
    path.with_suffix(".json").write_text(json.dumps({"env_info": env, "episodes": episodes, "source_type": "rl"}))
    return path
