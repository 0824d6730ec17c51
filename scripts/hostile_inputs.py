"""Valid inputs of every kind that comes from strangers, and what the program does with each."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mcap.writer import Writer

from robopolicy import sim
from robopolicy.algos.bc import BC
from robopolicy.cli.eval import evaluate
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.instantiate import build
from robopolicy.core.errors import DataError, RobopolicyError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import BASE_ACTION, IMAGES, STATE, TASK, ActionSpec, EnvSpec, Feature
from robopolicy.core.untrusted import parse_json
from robopolicy.datasets.converted import UnusableError
from robopolicy.datasets.episodes import Episodes
from robopolicy.evaluation.episode_table import COLUMNS, EpisodeTable
from robopolicy.evaluation.policy_ref import PolicyRef, task_of
from robopolicy.policies.base import Policy
from robopolicy.policies.factory import build_policy
from robopolicy.policies.find import find_policy, policy_digest, read_spec
from robopolicy.policies.normalizer import Normalizer
from robopolicy.real.control.joints import Commanded
from robopolicy.real.datasets.convert import frames_of
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.deployment import prepare
from robopolicy.real.planning.server import PolicyServer
from robopolicy.real.planning.wire import PROTOCOL, decode
from robopolicy.real.recording.recorder import PolicyJournal, RecordedChain, Recorder
from robopolicy.real.recording.recording import read
from robopolicy.real.recording.records import describe
from robopolicy.real.recording.replay import reproduce
from robopolicy.real.ros2.urdf import check_urdf
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import load_profile
from robopolicy.real.safety.decision import Measured
from robopolicy.real.safety.profile_data import check_data
from robopolicy.real.safety.risk import RiskCritic
from robopolicy.reporting.html_report import write_report
from robopolicy.runs.checkpointer import Checkpointer, load_policy, save_policy
from robopolicy.runs.logger import Tracker
from robopolicy.runs.run_dir import check_same, dump, read_config
from robopolicy.training.offline import offline
from robopolicy.utils.storage import MANIFEST, write_manifest
from robopolicy.world_models.models.world import load_world, make_world
from scripts.hostile_mutations import Mutation, in_turns, of_bytes, of_document, of_file

Use = Callable[[Path], object]  # what the program does with a folder


@dataclass(frozen=True)
class Kind:
    """One kind of input: `make` fills a folder, `uses` are the ways in which the program reads it, in turns.

    `files`: those that are changed; None: all.
    """

    make: Callable[[Path], object]
    uses: tuple[Use, ...]
    files: tuple[str, ...] | None = None
    mutations: Callable[[Path, Path, random.Random], Iterator[Mutation]] | None = None
    signed: bool = field(default=True)  # manifests are made to fit again, as an attacker would

    def changes(self, folder: Path, outside: Path, rng: random.Random) -> Iterator[Mutation]:
        if self.mutations is not None:
            return self.mutations(folder, outside, rng)
        names = self.files or sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        return in_turns([stream for name in names for stream in of_file(name, folder, outside, rng)])


def sign(folder: Path, changed: str) -> None:
    """Make the manifests fit the files again, but for one that is the change itself."""
    for manifest in sorted(folder.rglob(MANIFEST), key=lambda p: -len(p.parts)):
        parts = [manifest, *manifest.parent.rglob("*")]
        odd = [
            p for p in parts if p.is_symlink() or not (p.is_file() or p.is_dir()) or (p.name == MANIFEST) > p.is_file()
        ]
        if not odd and manifest.is_file() and str(manifest.relative_to(folder)) != changed:
            write_manifest(manifest.parent)


# --- policies -------------------------------------------------------------------------------------------------------

ACTION = ActionSpec(
    names=("x", "y"), units=("m", "m"), low=(-0.02, -0.02), high=(0.02, 0.02), frame="base", tcp="tool",
    rotation="none", reference="commanded", gripper=None, gripper_meaning="",
)  # fmt: skip
CAMERA = f"{IMAGES}front"
SPEC = PolicySpec({STATE: Feature((3,), names=("a", "b", "c"))}, ACTION, 0.05, 1, 4, 2, ("toy",))
SEEING = replace(
    SPEC, tasks=("left", "right"),
    observation={**SPEC.observation, CAMERA: Feature((3, 16, 24), "uint8"), TASK: Feature((), "int64")},
)  # fmt: skip
MLP = {"_target_": "mlp", "_partial_": True, "width": 8, "depth": 1}
SMALL = {"_target_": "residual_mlp", "_partial_": True, "width": 16, "blocks": 1, "time_dim": 8}
UNET = {"_target_": "unet1d", "_partial_": True, "dims": [8, 16], "kernel": 3, "groups": 4, "time_dim": 8}
EXPERT = {"_target_": "action_expert", "_partial_": True, "width": 16, "depth": 1, "heads": 2}
PREFIX = {
    "_target_": "prefix", "_partial_": True, "vision": {"_target_": "conv_tokens", "_partial_": True}, "width": 16,
    "depth": 1, "heads": 2, "max_words": 4, "image_shift": 0,
}  # fmt: skip
NODES: dict[str, dict[str, Any]] = {
    "gaussian": {"_target_": "gaussian", "network": MLP},
    "mixture": {"_target_": "mixture", "network": MLP, "components": 2},
    "diffusion": {"_target_": "diffusion", "network": UNET, "denoising_steps": 4},
    "flow": {"_target_": "flow", "network": SMALL, "sampling_steps": 2, "time_distribution": "uniform"},
    "residual": {"_target_": "residual", "hidden": [8]},
    "vla": {"_target_": "vla", "prefix": PREFIX, "network": EXPERT, "sampling_steps": 2},
    "ricl": {"_target_": "ricl", "prefix": PREFIX, "network": EXPERT, "pairs": 2, "shown": 2, "sampling_steps": 2},
}


def recorded(spec: PolicySpec, *, frames: int = 60, length: int = 10) -> Episodes:
    """Random demonstrations."""
    draw, zero = torch.Generator().manual_seed(0), torch.zeros(frames)
    obs: dict[str, torch.Tensor] = {}
    for key, feature in spec.observation.items():
        if key == TASK:
            obs[key] = (torch.arange(frames // length) % len(spec.tasks)).repeat_interleave(length)
        elif feature.dtype == "uint8":
            obs[key] = torch.randint(0, 256, (frames, *feature.shape), generator=draw, dtype=torch.uint8)
        else:
            obs[key] = torch.randn(frames, *feature.shape, generator=draw)
    low, high = (torch.tensor(v).clamp(-1.0, 1.0) for v in (spec.action.low, spec.action.high))
    return Episodes(
        obs=obs, action=low + (high - low) * torch.rand(frames, spec.action.dim, generator=draw), reward=zero,
        terminated=zero.bool(), success=zero.bool(), starts=torch.arange(0, frames + 1, length),
        seeds=torch.arange(frames // length), observation=spec.observation, action_spec=spec.action, dt=spec.dt,
        tasks=spec.tasks,
    )  # fmt: skip


def policy(kind: str, spec: PolicySpec | None = None) -> Policy:
    """A small untrained policy."""
    torch.manual_seed(0)
    spec = spec or (SEEING if kind in ("vla", "ricl") else SPEC)
    data = recorded(spec)
    runtime: dict[str, Any] = {"normalizer": Normalizer(spec.observation, spec.action).fit(data)}
    if kind == "residual":
        runtime["base"] = policy("gaussian", spec)
        base_action = Feature((spec.action.dim,))
        spec = replace(spec, horizon=1, n_action_steps=1, observation={**spec.observation, BASE_ACTION: base_action})
    made = build_policy(NODES[kind], spec=spec, **runtime)
    if made.memory is not None:
        made.set_retrieval_memory(data)
    return made


def acts(loaded: Policy) -> None:
    """One chunk, as the executor asks for it."""
    spec, base = loaded.spec, loaded
    obs: dict[str, torch.Tensor] = {}
    while True:
        for key, feature in base.spec.observation.items():
            history = () if key == BASE_ACTION else (max(spec.n_obs_steps, base.spec.n_obs_steps),)
            obs[key] = torch.zeros(1, *history, *feature.shape, dtype=feature.torch_dtype)
        if base.base is None:
            break
        base = base.base
    loaded.act(obs)


def load(folder: Path) -> None:
    read_spec(folder / "policy")
    policy_digest(find_policy(folder / "policy"))
    acts(load_policy(folder / "policy"))


def save(kind: str) -> Callable[[Path], object]:
    return lambda folder: save_policy(policy(kind), folder / "policy")


def lerobot(folder: Path) -> None:
    """A small ACT, as `lerobot-train` writes it."""
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

    from robopolicy.core.types import ENV_STATE
    from robopolicy.policies.lerobot.metadata import annotate_policy

    torch.manual_seed(0)
    inputs = {STATE: PolicyFeature(FeatureType.STATE, (3,)), ENV_STATE: PolicyFeature(FeatureType.ENV, (3,))}
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (2,))}
    sizes = {"chunk_size": 6, "n_action_steps": 4, "dim_model": 16, "n_heads": 2, "dim_feedforward": 16,
             "n_encoder_layers": 1, "n_vae_encoder_layers": 1, "pretrained_backbone_weights": None}  # fmt: skip
    config = make_policy_config("act", input_features=inputs, output_features=outputs, device="cpu", push_to_hub=False,
                                **sizes)  # fmt: skip
    one = {k: {s: torch.ones(f.shape) for s in ("mean", "std", "max")} | {"min": -torch.ones(f.shape)}
           for k, f in {**inputs, **outputs}.items()}  # fmt: skip
    pre, post = make_pre_post_processors(config, dataset_stats=one)
    (folder / "policy").mkdir(parents=True)
    get_policy_class("act")(config).save_pretrained(folder / "policy")
    pre.save_pretrained(folder / "policy", config_filename="policy_preprocessor.json")
    post.save_pretrained(folder / "policy", config_filename="policy_postprocessor.json")
    annotate_policy(folder / "policy", action=ACTION, dt=0.05, tasks=("toy",))


def lerobot_saved(folder: Path) -> None:
    """The same as a policy directory of ours, whose policy.json holds LeRobot's documents."""
    lerobot(folder / "theirs")
    save_policy(load_policy(folder / "theirs" / "policy"), folder / "policy")
    shutil.rmtree(folder / "theirs")


def load_lerobot(folder: Path) -> None:
    find_policy(folder / "policy")
    acts(load_policy(folder / "policy"))


def exported(folder: Path) -> None:
    from robopolicy.policies.lerobot.export import export

    save_policy(policy("gaussian"), folder / "saved")
    export(checkpoint=folder / "saved", out=folder / "policy")
    shutil.rmtree(folder / "saved")


def load_plugin(folder: Path) -> None:
    from robopolicy.lerobot_plugin.modeling_robopolicy import RobopolicyPolicy

    RobopolicyPolicy.from_pretrained(folder / "policy")


# --- runs -----------------------------------------------------------------------------------------------------------


@cache
def env_spec() -> EnvSpec:
    return sim.make("reach", 1).spec


def run_spec() -> PolicySpec:
    env = env_spec()
    return PolicySpec(env.observation, env.action, env.dt, 1, 4, 2, env.tasks)


def config(folder: Path) -> dict[str, Any]:
    return compose(
        find_verb("train"), ["task=reach", "policy=gaussian", "algo=bc", "loop.steps=2", "tracker.wandb=disabled"],
        settings={"run_dir": "run", "dataset": "data"},
    )  # fmt: skip


def run(folder: Path) -> None:
    """A finished run with two checkpoints, evaluated episodes, metrics and an index of films."""
    place = folder / "run"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(dump(config(folder)))
    (place / "provenance.json").write_text('{"commit": "x", "command": "robopolicy train", "versions": {"a": "1"}}')
    (place / "spec.json").write_text(run_spec().to_json())
    _train(place, 2)
    values: dict[str, Any] = {"env": "reach", "digest": "x", "task": "t", "return": 1.0, "length": 5, "policy": "p",
                              "ended_by": "success", "deterministic": False, "version": "0", "wall_s": 0.1,
                              "success_once": True, "success_at_end": True}  # fmt: skip
    import pandas as pd

    rows = EpisodeTable(pd.DataFrame([{**values, "seed": (2 << 40) + i} for i in range(4)], columns=list(COLUMNS)))
    rows.save(place / "episodes.csv")
    rows.save(place / "episodes-base.parquet")
    (place / "metrics.jsonl").write_text('{"step": 1, "wall_s": 0.1, "train/loss": 0.5, "eval/success_rate": 0.5}\n')
    (place / "videos").mkdir()
    (place / "videos" / "a.mp4").write_bytes(b"film")
    (place / "videos" / "index.json").write_text(
        '[{"file": "a.mp4", "kind": "single", "label": "x", "outcome": "success", "seed": 1}]'
    )
    gate = {"step": 1, "imagined": [0.5, 0.4, 0.6], "kept": [0.5, 0.4, 0.6], "true": None, "uncertain": 0.1,
            "reason": "better", "accepted": True}  # fmt: skip
    (place / "gate.json").write_text(json.dumps([gate, gate]))


def _train(place: Path, steps: int) -> None:
    spec = run_spec()
    offline(
        algo=BC(policy("gaussian", spec), steps=2), episodes=recorded(spec), steps=steps, batch_size=8, seed=0,
        tracker=Tracker(place, wandb="disabled", quiet=True), checkpointer=Checkpointer(place), save_every=1,
    )  # fmt: skip


def resume(folder: Path) -> None:
    _train(folder / "run", 2)


def resume_config(folder: Path) -> None:
    check_same(folder / "run", config(folder))


def task_of_run(folder: Path) -> None:
    place = PolicyRef.of(folder / "run", "latest", None)
    build(task_of(None, place), "task", num_envs=1, seed=0)


def deploy(folder: Path) -> None:
    prepare(DeployConfig(checkpoint=folder / "run"), seeds=(0,))


def evaluated(folder: Path) -> None:
    task = {**(read_config(folder / "run") or {})}.get("task")
    if isinstance(task, dict):  # as it is, but short
        task = {**task, "horizon": 2} if task.get("horizon") is None else task
    evaluate(checkpoint=folder / "run", task=task, episodes=1, num_envs=1, videos=0, threads=1)


def report(folder: Path) -> None:
    write_report(folder / "run", folder / "out.html")


# --- what a world model is ------------------------------------------------------------------------------------------


def world(folder: Path) -> None:
    torch.manual_seed(0)
    spec = replace(env_spec(), observation={STATE: Feature((3,))}, action=ACTION)
    node = {"_target_": "ensemble", "heads": 2, "elites": 2, "width": 16, "depth": 1, "phases": 1, "unroll": 2}
    made = make_world(spec, {"world_model": node, "success": {"_target_": "classifier", "window": 2, "width": 16}})
    for value in made.state_dict().values():
        if value.is_floating_point():
            value.nan_to_num_(1.0, 1.0, -1.0)
    made.report = {"open_loop": {"1": {"windows": 3}}, "trust": {"flagged_episodes": 0.1}}
    (folder / "model").mkdir(parents=True)
    made.write(folder / "model")


# --- what a deployment leaves behind --------------------------------------------------------------------------------


def recording(folder: Path) -> None:
    """A short recorded episode, its messages as files, so that each can be changed."""
    recorder, profile, spec = Recorder(folder / "kept"), load_profile("panda", energy=1.0), SPEC
    chain = RecordedChain(profile, put=recorder.put)
    home = np.array(profile.data["home"])
    recorder.begin(describe(chain, observation=spec.observation, policy=spec, seed=1, task="t", task_digest="d"))
    chain.activate(Measured(home, np.zeros(7)), 0.0)
    journal = PolicyJournal(recorder.put)
    for tick in range(12):
        now = 0.004 * (tick + 1)
        if tick % 3 == 0:
            seen = {STATE: torch.zeros(1, 3)}
            before = Commanded(home, np.zeros(3), 0.0, -1.0)
            journal.step(now, tick // 3, seen, before, np.zeros(2), False)
        chain.filter(home + 0.001 * tick, Measured(home, np.zeros(7)), now)
    recorder.end(success=True)
    found = read(folder / "kept" / "episode_000000.mcap")
    for i, (topic, content) in enumerate(found.messages):
        (folder / f"{i:04d}_{topic}.json").write_text(json.dumps(content))


def packed(folder: Path) -> Path:
    """The messages in a folder as the recording that a stranger would send."""
    path = folder / "episode.mcap"
    with path.open("wb") as file:
        writer, channels = Writer(file), dict[str, int]()
        writer.start()
        for part in sorted(folder.glob("*_*.json")):
            topic = part.stem.partition("_")[2]
            if topic not in channels:
                schema = writer.register_schema(topic, "jsonschema", b"{}")
                channels[topic] = writer.register_channel(f"/{topic}", "json", schema)
            if part.is_file() and not part.is_symlink():
                writer.add_message(channels[topic], 0, part.read_bytes(), 0)
        writer.finish()
    return path


def replayed(folder: Path) -> None:
    reproduce(read(packed(folder)))


def converted(folder: Path) -> None:
    with contextlib.suppress(UnusableError):
        frames_of(read(packed(folder)))


def read_kept(folder: Path) -> None:
    reproduce(read(folder / "kept" / "episode_000000.mcap"))


def cell(folder: Path) -> None:
    """What a robot is described by: a wiring, a profile's data, a URDF and a risk critic."""
    from robopolicy import configs

    shutil.copy(Path(configs.__file__).parent / "robots" / "fr3.yaml", folder / "wiring.yaml")
    profile = load_profile("panda")
    (folder / "profile.json").write_text(json.dumps(profile.data))
    joints = "".join(
        f'<joint name="{n}" type="revolute"><parent link="l{i}"/><child link="l{i + 1}"/>'
        '<limit lower="-9" upper="9" velocity="9"/></joint>'
        for i, n in enumerate(profile.joints)
    )
    (folder / "arm.urdf").write_text(f'<robot name="arm">{joints}</robot>')
    layers = ((np.zeros((21, 4)), np.zeros(4)), (np.zeros((4, 1)), np.zeros(1)))
    RiskCritic(profile, 0.004, layers).save(folder / "critic.npz")


def read_cell(folder: Path) -> None:
    """Each part by itself: one that is refused must not hide the others."""
    profile, refused = load_profile("panda"), []
    for use in (
        lambda: load_wiring(str(folder / "wiring.yaml")),
        lambda: check_data(parse_json((folder / "profile.json").read_bytes(), "profile.json"), "profile.json")
        if (folder / "profile.json").is_file() and not (folder / "profile.json").is_symlink() else None,
        lambda: check_urdf(profile, (folder / "arm.urdf").read_text(errors="surrogateescape"))
        if (folder / "arm.urdf").is_file() and not (folder / "arm.urdf").is_symlink() else None,
        lambda: RiskCritic.load(folder / "critic.npz", profile, 0.004),
    ):  # fmt: skip
        try:
            use()
        except RobopolicyError as error:
            refused.append(error)
    if refused:
        raise refused[0]


def bag(folder: Path) -> None:
    from robopolicy.real.ros2 import messages
    from robopolicy.real.ros2.bags.writer import BagWriter

    home = np.array(load_profile("panda").data["home"])
    names = tuple(f"fr3_joint{i}" for i in range(1, 8))
    with BagWriter(folder / "bag", about={"robopolicy.task": "t"}) as writer:
        for k in range(20):
            writer.add("joint_states", k * 4_000_000, messages.joint_state(names, k * 4_000_000, home, np.zeros(7)))


def read_bag(folder: Path) -> None:
    from sensor_msgs.msg import JointState

    from robopolicy.real.ros2.bags import reader as reading

    found = reading.Bag(folder / "bag")
    for item in found.items([found.topic("joint_states") or ""]):
        reading.stamp_of(item)
        reading.decode(item, JointState)


# --- the wire -------------------------------------------------------------------------------------------------------


def frame(head: str | bytes, body: bytes = b"") -> bytes:
    data = head.encode("utf-8", "surrogatepass") if isinstance(head, str) else head
    return struct.pack("<4sII", b"RPW1", len(data), len(body)) + data + body


def talk(folder: Path) -> None:
    """hello, reset and plan, as messages of a client."""
    (folder / "hello.json").write_text(
        json.dumps({"type": "hello", "protocol": PROTOCOL, "spec": SPEC.to_json(), "arrays": []})
    )
    (folder / "reset.json").write_text('{"type": "reset", "seed": 1, "arrays": []}')
    (folder / "plan.json").write_text(
        json.dumps({"type": "plan", "step": 0, "arrays": [[STATE, "float32", [1, 1, 3]]]})
    )
    (folder / "body").write_bytes(np.zeros(3, np.float32).tobytes())
    (folder / "stream.bin").write_bytes(_stream(folder))


def _stream(folder: Path) -> bytes:
    parts = [frame((folder / f"{name}.json").read_bytes()) for name in ("hello", "reset")]
    return b"".join([*parts, frame((folder / "plan.json").read_bytes(), (folder / "body").read_bytes())])


def wire(folder: Path, outside: Path, rng: random.Random) -> Iterator[Mutation]:
    """Each message as a document, and the bytes of all."""

    def build_again(path: Path, text: str) -> None:
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        (path.parent / "stream.bin").write_bytes(_stream(path.parent))

    def nested(path: Path, text: str) -> None:  # the spec is JSON in JSON
        hello = json.loads((path.parent / "hello.json").read_text())
        build_again(path.parent / "hello.json", json.dumps({**hello, "spec": text}))

    documents = [of_document(f"{n}.json", json.loads((folder / f"{n}.json").read_text()), build_again, outside, rng)
                 for n in ("hello", "reset", "plan")]  # fmt: skip
    spec = of_document("hello.json", json.loads(SPEC.to_json()), nested, outside, rng)
    return in_turns([*documents, spec, of_bytes("stream.bin", (folder / "stream.bin").stat().st_size, rng)])


class Served:
    """A policy server in this process. Exceptions of its threads are kept."""

    def __init__(self) -> None:
        self.raised: list[BaseException] = []
        threading.excepthook = lambda args: self.raised.append(args.exc_value or RuntimeError("a thread ended"))
        self.server = PolicyServer(policy("gaussian"))
        threading.Thread(target=self.server.serve, daemon=True).start()

    def say(self, data: bytes) -> bytes:
        """What the server answers to a client that says `data`, and no more."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as line:
            with contextlib.suppress(ConnectionError):  # it may hang up early
                line.sendall(data)
                line.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := line.recv(1 << 16):
                    answer += part
            return answer


@cache
def served() -> Served:
    return Served()


def serve(folder: Path) -> None:
    it = served()
    answer = it.say((folder / "stream.bin").read_bytes())
    if it.raised:
        raise it.raised.pop()
    if b'"server: ' in answer or b'"planning failed: ' in answer:  # told to the client, and still not ours
        raise RuntimeError(repr(answer[-300:]))
    if b'"chunk"' not in answer:
        raise DataError("refused")


def decoded(folder: Path) -> None:
    """One message after the other, as either side reads them."""
    data = (folder / "stream.bin").read_bytes()
    while data:
        size = 12 + sum(struct.unpack("<4sII", data[:12].ljust(12, b"\0"))[1:])
        decode(data[:size], limit=1 << 20)
        data = data[size:]


KINDS: dict[str, Kind] = {
    **{f"policy_{name}": Kind(save(name), (load,)) for name in NODES},
    "policy_lerobot": Kind(lerobot, (load_lerobot,)),
    "policy_lerobot_saved": Kind(lerobot_saved, (load,)),
    "policy_plugin": Kind(exported, (load_plugin,)),
    "run_config": Kind(run, (task_of_run, resume_config, deploy, evaluated), ("run/config.yaml",)),
    "run_files": Kind(
        run, (report, resume, deploy),
        (
            "run/checkpoints/latest", "run/spec.json", "run/provenance.json", "run/metrics.jsonl", "run/episodes.csv",
            "run/episodes-base.parquet", "run/videos/index.json", "run/gate.json", "run/config.yaml",
        ),
    ),
    "run_state": Kind(
        run, (resume,),
        tuple(f"run/checkpoints/step_0000000002/{n}" for n in ("state.json", "state.safetensors", "checkpoint.json",
                                                               MANIFEST, "policy/policy.json")),
    ),
    "world": Kind(world, (lambda folder: load_world(folder / "model"),)),
    "recording": Kind(
        recording, (replayed, converted),
        ("0000_header.json", "0001_activate.json", "0002_step.json", "0003_tick.json", "0004_tick.json",
         "0018_footer.json"),
    ),
    "recording_bytes": Kind(recording, (read_kept,), ("kept/episode_000000.mcap",)),
    "robot": Kind(cell, (read_cell,)),
    "bag": Kind(bag, (read_bag,)),
    "wire": Kind(talk, (serve, decoded), mutations=wire),
}  # fmt: skip
