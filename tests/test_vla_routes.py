"""A VLA through the command line: demonstrations with language and pictures, imitation, and every route over it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from robopolicy.cli.main import main
from robopolicy.core.types import IMAGES, STATE, TASK
from robopolicy.policies.frozen_encoder_student import FrozenEncoderStudent
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.io import load_policy
from robopolicy.policies.vla import VLAPolicy
from robopolicy.sim.tasks.tabletop import Tabletop

pytestmark = pytest.mark.slow
TASK_ARGS = ["task=tabletop", "task.cameras=[front]", "task.image_size=[64,64]"]
SMALL = [
    "policy.prefix.width=32", "policy.prefix.depth=1", "policy.prefix.vision.dims=[8,16,16]", "policy.network.width=32",
    "policy.network.depth=1", "policy.prefix.proprioception=[tcp_x,tcp_y,tcp_z,yaw,gripper]", "policy.sampling_steps=3",
]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vla")
    assert main(["demos", *TASK_ARGS, f"out={folder / 'demos'}", "episodes=5", "num_envs=5"]) == 0
    arguments = ["algo=bc", "policy=vla", "tracker=quiet", f"dataset={folder / 'demos'}", f"run_dir={folder / 'base'}"]
    sizes = ["loop.steps=2", "loop.batch_size=8", "horizon=4", "n_action_steps=2"]
    assert main(["train", *arguments, *SMALL, *sizes]) == 0
    return folder / "base"


def test_imitation_reads_pictures_words_and_the_arm(base: Path):
    policy = load_policy(base)
    assert isinstance(policy, VLAPolicy)
    assert policy.spec.observation.keys() == {STATE, TASK, IMAGES + "front"}
    assert policy.spec.tasks == Tabletop().instructions
    assert len(policy.encoder.columns) == 5, "cubes are seen, not told"


def test_language_evaluation(base: Path):
    arguments = [f"checkpoint={base}", *TASK_ARGS, "task.horizon=3", "episodes=3", "videos=0", "variants=language"]
    assert main(["eval", *arguments]) == 0
    found = {p.stem.removeprefix("episodes-"): pd.read_csv(p) for p in base.glob("episodes-*.csv")}
    assert found.keys() == {"seen", "paraphrases", "unseen_positions", "distractors", "wrong_goal", "instructed_goal"}
    assert found["wrong_goal"]["task"].tolist() == found["instructed_goal"]["task"].tolist()
    assert found["wrong_goal"]["task"].tolist() != found["seen"]["task"].tolist()


def test_fewer_steps_of_the_flow_are_an_evaluation_of_their_own(base: Path, capsys: pytest.CaptureFixture[str]):
    shown = ["eval", f"checkpoint={base}", *TASK_ARGS, "task.horizon=3", "episodes=3", "videos=0"]
    assert main(shown) == 0
    assert main([*shown, "sampling={sampling_steps: 1}"]) == 0
    usual, few = (pd.read_csv(base / f"episodes{name}.csv") for name in ("", "-sampling_steps-1"))
    assert few["policy"].str.endswith("+sampling_steps-1").all()
    assert not usual["policy"].str.contains("sampling").any()
    assert few["seed"].tolist() == usual["seed"].tolist()
    assert "base+sampling_steps-1 on tabletop" in capsys.readouterr().out
    assert main([*shown, "sampling={steps: 1}"]) == 1
    assert "sampling: ['steps'] change more than the sampler" in capsys.readouterr().err


def test_ppo_through_the_flow(base: Path, tmp_path: Path):
    run = tmp_path / "dppo"
    sizes = ["num_envs=3", "loop.total_steps=12", "loop.rollout_steps=2", "algo.minibatch=6", "algo.epochs=1"]
    finetuned = ["policy.finetuned_steps=2", "policy.lora_rank=2", "validation_episodes=0", "algo.critic_warmup=0"]
    assert (
        main(["train", "algo=dppo", "tracker=quiet", f"base={base}", f"run_dir={run}", *TASK_ARGS, *sizes, *finetuned])
        == 0
    )
    refined, before = load_policy(run), load_policy(base)
    assert isinstance(refined, VLAPolicy) and refined.finetuned_steps == 2
    assert torch.equal(refined.network.out.weight, before.network.out.weight)
    factors = [p for n, p in refined.finetuned.named_parameters() if n.endswith(".b")]
    assert factors and any(bool(p.any()) for p in factors), "nothing was learned"


ROUTES = {
    "grpo": ["group_size=2", "policy.finetuned_steps=2"],
    "co_dppo": ["task.only=[press]", "policy.finetuned_steps=2", "algo.critic_warmup=0", "algo.data_batch=8"],
    "rpd": ["n_action_steps=2", "policy.network.width=16"],
}


@pytest.mark.parametrize("route", ROUTES)
def test_the_other_routes(base: Path, tmp_path: Path, route: str):
    run = tmp_path / route
    sizes = ["num_envs=4", "task.horizon=3", "loop.rollout_steps=3", "loop.total_steps=24", "algo.minibatch=6"]
    source = f"teacher={base}" if route == "rpd" else f"base={base}"
    sizes += [f"dataset={base.parent / 'demos'}"] if route == "co_dppo" else []
    arguments = [f"algo={route}", source, f"run_dir={run}", "tracker=quiet", "validation_episodes=0", "algo.epochs=1"]
    assert main(["train", *arguments, *TASK_ARGS, *sizes, *ROUTES[route]]) == 0
    refined = load_policy(run)
    if route == "rpd":
        assert isinstance(refined, GaussianPolicy) and refined.spec.observation.keys() == {STATE, TASK}
        return
    assert isinstance(refined, VLAPolicy) and len(refined.spec.tasks) == (1 if route == "co_dppo" else 7)
    same = [
        torch.equal(a, b) for a, b in zip(refined.finetuned.parameters(), refined.network.parameters(), strict=True)
    ]
    assert all(same) == (route == "grpo"), "so short a time is enough for nobody, so groups have nothing to compare"


def test_a_student_on_the_base_s_prefix_is_imitated_and_refined(base: Path, tmp_path: Path, capsys):
    student, run = tmp_path / "student", tmp_path / "rpd"
    shown = [f"base={base}", f"dataset={base.parent / 'demos'}", "loop.steps=2", "loop.batch_size=8"]
    imitate = [
        "train",
        "algo=bc",
        "policy=frozen_encoder_student",
        "tracker=quiet",
        f"run_dir={student}",
        *TASK_ARGS,
        *shown,
    ]
    assert main(imitate) == 0
    once = load_policy(student).state_dict()
    assert main(imitate) == 0, "a run that is over goes on from itself, and its base is the student by then"
    assert all(torch.equal(v, once[k]) for k, v in load_policy(student).state_dict().items())
    sizes = ["num_envs=4", "task.horizon=3", "loop.rollout_steps=3", "loop.total_steps=24", "algo.minibatch=6"]
    refine = ["train", "algo=rpd", "policy=finetuned", f"base={student}", f"teacher={base}", "tracker=quiet",
              *TASK_ARGS, *sizes, "validation_episodes=0", "algo.epochs=1"]  # fmt: skip
    assert main([*refine, f"run_dir={run}", "teacher_sampling={sampling_steps: 1}"]) == 0
    before, after = load_policy(student), load_policy(run)
    assert isinstance(after, FrozenEncoderStudent) and after.spec.observation.keys() == {STATE, TASK, IMAGES + "front"}
    changed = {k.split(".")[0] for k, v in after.state_dict().items() if not torch.equal(v, before.state_dict()[k])}
    assert changed == {"network", "log_std"}
    capsys.readouterr()
    assert main([*refine, f"run_dir={tmp_path / 'other'}", "teacher_sampling={steps: 1}"]) == 1
    assert "teacher_sampling: ['steps'] change more than the sampler" in capsys.readouterr().err
    alone = [a.replace("rpd", "ppo") for a in refine if not a.startswith("teacher")]
    assert main([*alone, f"run_dir={tmp_path / 'alone'}", "teacher_sampling={sampling_steps: 1}"]) == 1
    assert "there is none. Add teacher=<run directory>" in capsys.readouterr().err


@pytest.mark.parametrize("route", ["pa_rl", "aloe", "ogpo"])
def test_off_policy_over_whole_chunks(base: Path, tmp_path: Path, route: str):
    run = tmp_path / route
    sizes = ["num_envs=3", "loop.total_steps=60", "loop.warmup_steps=30", "loop.batch_size=8",
             "policy.finetuned_steps=2", "loop.critic_only_updates=2", "validation_episodes=0",
             "algo.noise_samples=2", "algo.average=1.0", "algo.actor_warmup=0", "algo.policy_delay=1"]  # fmt: skip
    sizes += ["algo.agreement=false"] if route == "ogpo" else []  # so young a critic agrees about hardly a chain
    source = [f"base={base}", f"dataset={base.parent / 'demos'}", "task.only=[press]"]
    assert main(["train", f"algo={route}", "tracker=quiet", *source, f"run_dir={run}", *TASK_ARGS, *sizes]) == 0
    refined, before = load_policy(run), load_policy(base)
    assert isinstance(refined, VLAPolicy) and refined.finetuned_steps == 2 and len(refined.spec.tasks) == 1
    assert torch.equal(refined.network.out.weight, before.network.out.weight)
    assert not torch.equal(refined.finetuned.out.weight, before.network.out.weight), "it learned"


def test_a_residual_on_all_tasks(base: Path, tmp_path: Path):
    run = tmp_path / "residual"
    sizes = ["num_envs=3", "loop.total_steps=60", "loop.warmup_steps=30", "loop.batch_size=16", "validation_episodes=0",
             "loop.eval_every=0", "loop.critic_only_updates=2"]  # fmt: skip
    assert main(["train", "algo=residual", "tracker=quiet", f"base={base}", f"run_dir={run}", *TASK_ARGS, *sizes]) == 0
    refined = load_policy(run)
    assert TASK in refined.spec.observation and isinstance(refined.base, VLAPolicy)
    evaluation = ["task.horizon=3", "episodes=3", "videos=0", "variants=language"]
    assert main(["eval", f"checkpoint={run}", *TASK_ARGS, *evaluation]) == 0
    assert [*run.glob("episodes-horizon_3-*-paraphrases.csv")], "sentences that the residual has no number for"


def test_new_demonstrations_take_the_place_of_those_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    task, run = ["task=tabletop", "task.only=[press,pick_red]"], tmp_path / "run"
    assert main(["demos", *task, f"out={tmp_path / 'old'}", "episodes=6", "num_envs=6"]) == 0
    assert main(["demos", *task, "task.wording=unseen", f"out={tmp_path / 'new'}", "episodes=6", "num_envs=6"]) == 0
    sizes = [*SMALL, "loop.steps=2", "loop.batch_size=8", "horizon=4", "policy.pairs=2"]
    arguments = ["algo=bc", "policy=ricl", "tracker=quiet", f"dataset={tmp_path / 'old'}", f"run_dir={run}"]
    assert main(["train", *arguments, *sizes]) == 0
    shown = ["eval", f"checkpoint={run}", *task, "task.wording=unseen", "task.horizon=3", "episodes=3", "videos=0"]
    digests = set()
    for memory in (tmp_path / "new", "none"):
        assert main([*shown, f"memory={memory}"]) == 0
        rows = pd.read_csv(run / f"episodes-memory-{Path(memory).name}.csv")
        digests |= set(rows["policy"])
    assert len(digests) == 2 and all(f"+{name}@" in "".join(digests) for name in ("new", "none"))
    assert load_policy(run).memory.tasks == Tabletop(only=("press", "pick_red")).instructions, "the run keeps its own"
    capsys.readouterr()
    assert main([*shown, f"memory={tmp_path / 'old'}"]) == 1
    assert "the instructions must be the same to the letter" in capsys.readouterr().err
    assert main(["demos", "task=reach", f"out={tmp_path / 'reach'}", "episodes=2", "num_envs=2"]) == 0
    assert main([*shown, f"memory={tmp_path / 'reach'}"]) == 1
    assert "observation.state" in capsys.readouterr().err


def test_a_policy_without_memory_says_so(base: Path, capsys: pytest.CaptureFixture[str]):
    shown = ["eval", f"checkpoint={base}", *TASK_ARGS, "task.horizon=3", "episodes=3", "videos=0", "memory=none"]
    assert main(shown) == 1
    assert "VLAPolicy acts from its weights alone" in capsys.readouterr().err
