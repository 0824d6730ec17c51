"""Bring arrays: write them as a LeRobot dataset, check it, train a policy on it and ask it for actions."""

from __future__ import annotations

import sys

import numpy as np
import torch

import robopolicy as rp
from robopolicy.core.types import ActionSpec, Feature
from robopolicy.datasets.lerobot_writer import DatasetWriter

SMALL = "--small" in sys.argv  # shows that it runs, and learns nothing
DT = 0.1  # s from one frame to the next
action = ActionSpec(  # its exact meaning, without which no policy is deployed
    names=("dx", "dy", "dz", "gripper"), units=("m", "m", "m", "1"), low=(-0.02, -0.02, -0.02, -1.0),
    high=(0.02, 0.02, 0.02, 1.0), frame="base", tcp="tool0", rotation="none", reference="commanded", gripper=3,
    gripper_meaning="absolute: -1 closed, +1 open",
)  # fmt: skip
observation = {
    "observation.state": Feature((6,), names=("x", "y", "z", "cube_x", "cube_y", "cube_z")),
    "observation.images.front": Feature((3, 64, 64), "uint8"),  # channels first
}
rng = np.random.default_rng(0)  # stands in for your files

with DatasetWriter("data/mine", observation=observation, action=action, dt=DT, tasks=("go to the cube",)) as writer:
    for episode in range(3 if SMALL else 20):
        tool, cube = rng.uniform(0.3, 0.5, 3), rng.uniform(0.3, 0.5, 3)
        states, actions = [], []
        for _ in range(20):
            move = np.clip(cube - tool, -0.02, 0.02)
            states.append([*tool, *cube])
            actions.append([*move, 1.0])
            tool = tool + move
        success = np.arange(20) == 19  # [T] the goal condition held after action t
        pictures = rng.integers(0, 255, size=(20, 3, 64, 64), dtype=np.uint8)
        writer.add_episode(
            obs={"observation.state": np.array(states), "observation.images.front": pictures},  # [T …], before action t
            action=np.array(actions),  # [T Da]
            reward=success, success=success, terminated=True, task="go to the cube", seed=episode,
        )  # fmt: skip

rp.run("data check", dataset="data/mine")
rp.train(
    "runs/mine", policy="diffusion", dataset="data/mine", cameras=[], tracker="local",
    loop={"steps": 10 if SMALL else 1_000},
)  # fmt: skip
policy = rp.load_policy("runs/mine")
seen = {"observation.state": torch.tensor([[[0.4, 0.3, 0.4, 0.5, 0.4, 0.4]]], dtype=torch.float32)}  # [B To 6]
chunk = policy.act(seen, noise=torch.zeros(1, *policy.noise_shape))  # [B H Da], in m
print("the next moves in m:", chunk[0, : policy.spec.n_action_steps, :3])
