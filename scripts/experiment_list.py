"""What scripts/experiments.py runs: bases, refinements of them, and their overrides of `robopolicy train`.

What has results was chosen on validation episodes and training seeds of its own; test episodes are run for the record
alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Base:
    """An imitation policy: `demos` successful demonstrations of an expert with the given expert noise, then BC."""

    task: str
    demos: int
    expert_noise: float
    overrides: tuple[str, ...] = ("loop.steps=3000",)
    kind: str = ""  # tells bases of the same demonstrations apart
    lerobot: tuple[str, ...] = ()  # options of the stock `lerobot-train`, which then takes the place of BC
    options: tuple[str, ...] = ()  # of the task, for every stage: "task.name=Can"
    num_envs: int | None = None  # where demonstrations and evaluations cannot have the usual many
    episodes: int = 500  # of every evaluation on test episodes

    @property
    def label(self) -> str:
        """The task, with its name inside a suite: "metaworld-door-open-v3"."""
        names = [o.partition("=")[2] for o in self.options if o.startswith("task.name=")]
        return "-".join([self.task, *names])

    @property
    def name(self) -> str:
        return f"{self.label}-{self.demos}x{self.expert_noise:g}" + (f"-{self.kind}" if self.kind else "")


@dataclass(frozen=True)
class Setting:
    """One kind of refinement of a base. `prefix` leads its settings' names: "" or "<task>/"."""

    base: Base
    refine: dict[str, tuple[str, ...]]  # setting -> overrides of `robopolicy train`, or of `eval`: see `trains`
    prefix: str = ""
    seeds: tuple[int, ...] = ()  # training seeds; (): the experiment's
    task: tuple[str, ...] = ()  # changes of the base's task: what it is evaluated and refined on
    student: tuple[str, ...] = ()  # of a `train` on the base's data that makes what is refined in place of the base


def trains(overrides: tuple[str, ...]) -> bool:
    """Whether a setting is a training; else the base or its student is evaluated: by another sampler, or elsewhere."""
    return any(o.startswith("algo=") for o in overrides)


@dataclass(frozen=True)
class Experiment:
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    extra: tuple[str, ...] = field(default=())  # what else is derived: "curve", "dip", "worse", "mean"
    runs: str = ""  # the experiment whose runs these are; "": its own
    kept: str | tuple[str, ...] = ""  # begins settings in the same file that other commands recorded, and that stay


PICK = Base("pick", 60, 1.0)
PEG_EASY = Base("peg_easy", 32, 1.0)
PEG = Base("peg", 40, 0.7)
PUSHT = Base("pusht", 200, 0.25, ("loop.steps=8000", "network.width=512"))
WATCH = ("validation_episodes=200", "threads=1")
SUITE = (
    Base("reach", 40, 0.6),
    Base("push", 20, 0.4),
    PICK,
    Base("stack", 20, 0.7),
    Base("drawer", 15, 1.0),
    PUSHT,
    PEG_EASY,
    PEG,
)
RESIDUAL_STEPS = (60_000, 100_000, 30_000, 150_000, 60_000, 150_000, 60_000, 150_000)  # env steps, by task
PICK_FLOW = Base("pick", 60, 1.0, ("loop.steps=3000", "policy=flow"), "flow")
PICK_GAUSSIAN = Base("pick", 60, 1.0, ("loop.steps=3000", "policy=gaussian"), "gaussian")
PICK_ACT = Base(
    "pick",
    40,
    1.0,
    (),
    "act",
    lerobot=(
        "--policy.type=act",
        "--policy.chunk_size=8",
        "--policy.n_action_steps=4",
        "--policy.dim_model=128",
        "--policy.n_heads=4",
        "--policy.dim_feedforward=256",
        "--policy.n_encoder_layers=2",
        "--policy.n_vae_encoder_layers=2",
        "--policy.optimizer_lr=3e-4",
        "--batch_size=32",
        "--steps=3000",
    ),
)
PICK_PIXELS = Base(
    "pick",
    50,
    0.7,
    (
        "loop.steps=3000",
        "loop.batch_size=64",
        "policy.image_encoder={_target_: conv, _partial_: true, dims: [16,32,32,32]}",
    ),
    "pixels",
    options=("task.objects=false", "task.cameras=[front,wrist]", "task.image_size=[64,64]"),
    num_envs=8,
    episodes=200,
)
VLA = Base(  # seven goals in one scene, told apart by the instruction alone
    "tabletop",
    250,
    0.5,
    (
        "policy=vla",
        "horizon=8",
        "n_action_steps=4",
        "policy.prefix.width=96",
        "policy.network.width=96",
        "policy.network.depth=3",
        "policy.noise_samples=1",
        "policy.precision=bfloat16",
        "loop.batch_size=256",
        "loop.steps=2500",
    ),
    "vla",
)
VLA_ENTITIES = replace(
    VLA,
    overrides=(*VLA.overrides, "policy.prefix.entities={cube: [red_,green_,blue_], button: [button]}"),
    kind="vla-entities",
)
VLA_ROUGH = replace(  # knows where things are, and does what rough demonstrations do
    VLA_ENTITIES,
    demos=200,
    expert_noise=1.0,
    overrides=(*(o for o in VLA_ENTITIES.overrides if not o.startswith("loop.steps")), "loop.steps=2000"),
)
VLA_PIXELS = Base(  # the same seven goals through two small cameras, nothing in the state but the arm
    "tabletop",
    700,
    0.5,
    (
        "policy=vla",
        "horizon=8",
        "n_action_steps=4",
        "policy.prefix.vision._target_=keypoint_tokens",
        "policy.prefix.image_shift=2",
        "policy.prefix.width=96",
        "policy.network.width=96",
        "policy.network.depth=3",
        "policy.noise_samples=2",
        "policy.precision=bfloat16",
        "loop.batch_size=128",
        "loop.steps=2500",
    ),
    "vla-pixels",
    options=("task.objects=false", "task.cameras=[front,wrist]", "task.image_size=[64,64]"),
    num_envs=32,
    episodes=210,
)
VLA_PIXELS_ROUGH = replace(
    VLA_PIXELS,
    expert_noise=1.0,
    overrides=(*(o for o in VLA_PIXELS.overrides if not o.startswith("loop.steps")), "loop.steps=4500"),
)
LIMITS_DT, LIMITS_SPEED = 0.05, 1.0  # s, m/s; scripts/limits_compared.py plays under the same ones
LIMITED = (
    f"task.joint_filter={{_target_: safety, dt: {LIMITS_DT}, "
    f"profile: {{_target_: robot, robot: panda, tcp_speed: {LIMITS_SPEED}}}}}"
)
CURVE = ("loop.eval_every=50000", *WATCH)
SOLVED = "loop.stop_success=1"
EARLIER = (
    "algo=residual",
    "algo.confidence=0",
    "algo.average=1",
    "algo.actor_warmup=0",
)  # before it watched the critics
EARLIER_LONG = (*EARLIER, "algo.penalty_steps=30000", "loop.total_steps=150000")
EARLIER_FAST = (*EARLIER, "algo.exploration_std=0.15", "algo.warmup_std=0.3", "algo.penalty_steps=8000")
EARLIER_PEG = (*EARLIER, "algo.penalty_steps=40000", "loop.total_steps=125000", "loop.warmup_steps=10000")
EARLIER_CAREFUL = (*EARLIER, "algo.penalty=30", "algo.penalty_steps=40000", "loop.total_steps=60000")
ABLATION = {  # one change each of algo=dppo
    "as_is": (),
    "floor_0.05": ("algo.noise.floor=0.05",),
    "floor_0.2": ("algo.noise.floor=0.2",),
    "tuned_steps_2": ("policy.finetuned_steps=2",),
    "tuned_steps_10": ("policy.finetuned_steps=10",),
    "denoising_gamma_0.9": ("algo.denoising_gamma=0.9",),
    "clip_0.01": ("algo.clip=0.01", "algo.clip_first=0.01"),
    "clip_0.2": ("algo.clip=0.2", "algo.clip_first=0.2"),
    "anchor_0.1": ("algo.anchor=0.1",),
    "critic_warmup_0": ("algo.critic_warmup=0",),
    "critic_warmup_5": ("algo.critic_warmup=5",),
    "progressive_0.5": ("algo.progressive=0.5",),
}
SUITE_DPPO = (  # one config for all tasks; chosen on training seed 100 of stack, peg and pick, docs/dppo.md
    "algo=dppo_large",
    "loop.eval_every=500000",
    "validation_episodes=100",
    "threads=1",
    SOLVED,
)
SUITE_BC = ("loop.steps=3000",)
SUITE_BC_STEPWISE = (*SUITE_BC, "n_action_steps=1")
MANISKILL_PICK = Base(
    "maniskill", 50, 0.7, SUITE_BC_STEPWISE, options=("task.name=PickCube-v1",), num_envs=16, episodes=200
)
ROBOSUITE_CAN = Base(
    "robosuite",
    25,
    1.0,
    SUITE_BC_STEPWISE,
    "relative",
    options=("task.name=Can", "task.relative=true"),
    num_envs=8,
    episodes=200,
)
GRASP_RESIDUAL = (  # chosen on training seed 100 of ManiSkill's PickCube, docs/suites.md
    *EARLIER[:-1],
    "loop.demo_fraction=0.25",
    "loop.replay.gamma=0.99",
    "algo.exploration_std=0.1",
    "algo.warmup_std=0.15",
    "algo.penalty_steps=10000",
    "threads=1",
)
METAWORLD = tuple(  # pushing, grasping, inserting, hammering, by a hand; levers, taps, handles, plates
    Base("metaworld", 10, expert_noise, SUITE_BC, options=(f"task.name={name}-v3",), num_envs=20, episodes=200)
    for name, expert_noise in {
        "push": 0.5,
        "pick-place": 0.5,
        "peg-insert-side": 0.5,
        "hammer": 0.5,
        "hand-insert": 0.5,
        "lever-pull": 0.5,
        "faucet-open": 1.0,
        "handle-pull": 1.0,
        "plate-slide": 1.0,
    }.items()
)
METAWORLD_RELATIVE = tuple(  # without faucet-open, whose base succeeds in 92%
    replace(base, options=(*base.options, "task.relative=true"), kind="relative")
    for base in METAWORLD
    if "faucet" not in base.label
)
SLOW_ENV = ("num_envs=4", "loop.warmup_steps=3000", "loop.updates_per_step=1")
MANISKILL_PUSH = Base("maniskill", 4, 1.0, SUITE_BC, options=("task.name=PushCube-v1",), num_envs=16, episodes=200)
SUITES_DPPO = ("validation_episodes=50", "threads=1")
ONE_STEP = ("sampling={sampling_steps: 1}",)  # the base, not refined: its flow in one step
VLA_TUNED = ("policy.sampling={sampling_steps: 1}", "policy.finetuned_steps=1")  # the flow's only step
VLA_DPPO = (  # smaller steps than algo=dppo's: seven goals share the episodes of a rollout
    "algo=dppo",
    *VLA_TUNED,
    "algo.noise.floor=0.15",
    "algo.clip=0.01",
    "algo.clip_first=0.01",
    "algo.epochs=4",
    "algo.minibatches=5",
    "algo.critic_warmup=4",
    "algo.actor_lr=5e-5",
    "loop.total_steps=800000",
    "loop.eval_every=400000",  # the first one, before any training, is of the sampler alone
    *WATCH,
)
VLA_CHAIN = (  # rollouts of 20k by 256 envs, of some four hundred episodes
    *VLA_TUNED,
    "num_envs=256",
    "algo.noise.floor=0.15",
    "algo.clip=0.03",
    "algo.clip_first=0.03",
    "algo.target_kl=0.05",
    "algo.epochs=6",
    "algo.minibatches=8",
    "algo.actor_lr=2e-4",
    "loop.total_steps=500000",
    "threads=1",
)
VLA_CHUNKS = (  # off-policy, by a critic of whole chunks
    *VLA_TUNED,
    "loop.total_steps=40000",
    "loop.warmup_steps=8000",
    "loop.critic_only_updates=800",
    "loop.updates_per_step=0.15",
    "algo.noise_samples=1",
    "algo.critic.width=256",
    "threads=1",
)
VLA_CRITIC = ("loop.rollout_steps=80", "algo.critic_warmup=2")
VLA_PIXELS_RESIDUAL = (
    *EARLIER,
    "algo.penalty_steps=30000",
    "policy.pictures=true",
    "loop.total_steps=100000",
    "threads=1",
)
VLA_PIXELS_PPO = (
    "algo=ppo",
    "num_envs=256",
    "algo.clip=0.03",
    "algo.actor_lr=3e-4",
    "loop.total_steps=330000",
    "threads=1",
)
LANGUAGE = {  # the variants of configs/variants/language.yaml, under the names of the recorded rows
    "words": ("task.wording=unseen",),
    "places": ("task.positions=unseen",),
    "company": ("task.distractors=2",),
    "told_wrong": ("task.instruction_goal=other",),
    "as_told": ("task.instruction_goal=other", "task.success_goal=instructed"),
}
RPD_STUDENT = ("algo=rpd", "n_action_steps=4", "loop.total_steps=800000", "threads=1")
EXPERIMENTS = {
    "maniskill_pickcube_residual": Experiment(
        (
            Setting(
                MANISKILL_PICK,
                {
                    "refined": (
                        *GRASP_RESIDUAL,
                        *SLOW_ENV,
                        "algo.penalty_final=0.03",
                        "policy.state=[qvel_*,qpos_7,qpos_8,held,tcp_to_cube_*,cube_to_goal_*]",
                        "loop.total_steps=25000",
                    )
                },
            ),
        )
    ),
    "metaworld_residual": Experiment(  # one config for all tasks
        tuple(
            Setting(
                base,
                {
                    "refined": (
                        *EARLIER,
                        "algo.exploration_std=0.15",
                        "algo.warmup_std=0.3",
                        "num_envs=8",
                        "loop.total_steps=50000",
                        "loop.warmup_steps=5000",
                        "algo.penalty_steps=10000",
                        "loop.updates_per_step=0.5",
                        SOLVED,
                    )
                },
                prefix=f"{base.label}/",
            )
            for base in METAWORLD
        ),
        extra=("mean",),
    ),
    "metaworld_relative_residual": Experiment(  # one config for all tasks; chosen on training seed 100 of pick-place
        tuple(
            Setting(
                base,
                {
                    "refined": (
                        *GRASP_RESIDUAL,
                        "algo.penalty_final=0.03",
                        "policy.state=[gripper,hand_z,hand_to_object_?,object_to_goal_?,hand_step_?,object_step_?,object_q?]",
                        "num_envs=8",
                        "loop.total_steps=50000",
                        "loop.warmup_steps=5000",
                        "loop.updates_per_step=0.5",
                    )
                },
                prefix=f"{base.label}/",
            )
            for base in METAWORLD_RELATIVE
        ),
        extra=("mean",),
    ),
    "robosuite_can_residual": Experiment(
        (
            Setting(
                ROBOSUITE_CAN,
                {
                    "refined": (
                        *GRASP_RESIDUAL,
                        *SLOW_ENV,
                        "algo.penalty_final=0.1",
                        "algo.gripper_rate=0.01",
                        "loop.replay.n_step=10",  # episodes are four times as long as PickCube's
                        "policy.state=[fingers_*,tool_to_object_?,tool_?,object_?,*_step_?]",  # the bin stands still
                        "loop.total_steps=40000",
                    )
                },
            ),
        ),
        seeds=(0, 1),  # 55 steps a second
        kept="first_try/",
    ),
    "suites_dppo": Experiment(  # chosen on training seed 100 of each
        tuple(
            Setting(base, {"refined": (*SUITES_DPPO, *sizes)}, prefix=f"{base.label.lower()}/", seeds=seeds)
            for base, seeds, sizes in (
                (
                    next(base for base in METAWORLD if base.label == "metaworld-handle-pull-v3"),
                    (0, 1, 2),
                    (
                        "algo=dppo_large",
                        "num_envs=64",
                        "loop.rollout_steps=200",
                        "loop.total_steps=600000",
                        "loop.eval_every=100000",
                    ),
                ),
                (
                    MANISKILL_PUSH,
                    (0, 1),  # 80 steps a second
                    (  # a slow simulator: small rollouts, many gradient steps; four demonstrations leave much to find
                        "algo=dppo",
                        "algo.target_kl=0.4",
                        "algo.noise.floor=0.2",
                        "algo.critic_warmup=2",
                        "num_envs=64",
                        "loop.rollout_steps=50",
                        "loop.total_steps=200000",
                        "loop.eval_every=50000",
                    ),
                ),
            )
        ),
        extra=("curve",),
    ),
    "pick_residual_fast": Experiment(
        (
            Setting(
                PICK,
                {
                    "refined": ("algo=residual",),
                    "scratch": ("algo=residual_scratch", "loop.demo_fraction=0"),
                    "scratch_with_demos": ("algo=residual_scratch",),
                },
            ),
        ),
        seeds=(0, 1, 2, 3, 4),
    ),
    "residual_no_dip": Experiment(
        (Setting(PICK, {"refined": (*EARLIER_FAST, "loop.eval_every=1000", *WATCH)}),),
        seeds=(0, 1, 2, 3, 4),
        extra=("dip",),
    ),
    "pick_residual_sample_efficient": Experiment(
        (Setting(PICK, {"refined": ("algo=residual_sample_efficient", *EARLIER[1:])}),), seeds=(0, 1, 2, 3, 4)
    ),
    "strong_base_residual": Experiment(
        (
            Setting(
                Base("peg_easy", 80, 0.65),
                {"refined": (*EARLIER_CAREFUL, "loop.eval_every=5000", *WATCH)},
            ),
        ),
        extra=("worse",),
    ),
    "peg_residual": Experiment(
        (
            Setting(PEG_EASY, {"refined": EARLIER_FAST}, "easy/"),
            Setting(PEG, {"refined": EARLIER_PEG}, "hard/"),
        )
    ),
    "native_suite_residual": Experiment(
        tuple(Setting(base, {"refined": EARLIER_LONG}, prefix=f"{base.task}/") for base in SUITE), extra=("mean",)
    ),
    "never_worse": Experiment(  # one preset; a task chooses the budget alone
        tuple(
            Setting(
                base,
                {"refined": ("algo=residual", f"loop.total_steps={steps}", "loop.eval_every=2000", *WATCH)},
                prefix=f"{base.task}/",
            )
            for base, steps in zip(SUITE, RESIDUAL_STEPS, strict=True)
        ),
        extra=("dip", "worse", "mean"),
    ),
    "base_without_noise": Experiment(  # the mode of the base in place of a sample: what refinement has to beat
        tuple(Setting(base, {"mode": ("deterministic=true",)}, prefix=f"{base.task}/") for base in SUITE)
    ),
    "one_step": Experiment(  # ten steps of a diffusion policy in one step of a flow
        tuple(
            Setting(
                base,
                {"one_step": ()},
                prefix=f"{base.task}/",
                student=(
                    "algo=distill",
                    *(o for o in base.overrides if "network" in o),
                    "loop.steps=6000",
                    "threads=1",
                ),
            )
            for base in SUITE
            if base.task in ("push", "pick", "stack", "pusht")
        ),
        kept=("inference/", "refined/"),
    ),
    "pick_pixels_residual": Experiment(
        (
            Setting(
                PICK_PIXELS,
                {
                    "refined": (
                        *EARLIER,
                        "algo.penalty_steps=30000",
                        "policy.pictures=true",
                        "num_envs=8",
                        "loop.total_steps=40000",
                    )
                },
            ),
        )
    ),
    "lerobot_base_residual": Experiment((Setting(PICK_ACT, {"refined": EARLIER_FAST}),)),
    "trained_under_limits": Experiment((Setting(PICK, {"free": EARLIER_FAST, "limited": (*EARLIER_FAST, LIMITED)}),)),
    "pick_dppo": Experiment((Setting(PICK, {"refined": ("algo=dppo", SOLVED)}),), seeds=(0, 1, 2, 3, 4)),
    "peg_dppo": Experiment(
        (Setting(PEG, {"refined": SUITE_DPPO}, prefix="peg/"),), extra=("curve",), runs="native_suite_dppo"
    ),
    "native_suite_dppo": Experiment(
        tuple(Setting(base, {"refined": SUITE_DPPO}, prefix=f"{base.task}/") for base in SUITE), extra=("mean",)
    ),
    "pusht_dppo": Experiment(
        (Setting(PUSHT, {"refined": SUITE_DPPO}, prefix="pusht/"),), extra=("curve",), runs="native_suite_dppo"
    ),
    "pick_flow_ppo": Experiment(
        (
            Setting(
                PICK_FLOW,
                {
                    "k4": (
                        "algo=dppo",
                        "policy.sampling={sampling_steps: 4, noise_level: 0.7}",
                        "policy.finetuned_steps=4",
                        "algo.actor_lr=4e-4",
                        SOLVED,
                    ),
                    "k1": (
                        "algo=dppo",
                        "policy.sampling={sampling_steps: 1}",
                        "policy.finetuned_steps=1",
                        "algo.noise.floor=0.15",
                        "algo.minibatch=350",
                        "algo.actor_lr=1e-4",
                        SOLVED,
                    ),
                },
            ),
        )
    ),
    "vla_routes": Experiment(  # chosen on training seed 100
        (
            Setting(
                VLA,
                {
                    "residual": (*EARLIER_LONG, "threads=1"),
                    "rpd": RPD_STUDENT,
                    "one_step": ONE_STEP,
                    "dppo": VLA_DPPO,
                },
            ),
            Setting(
                VLA_ROUGH,
                {
                    "one_step": ONE_STEP,
                    "dppo": ("algo=dppo", *VLA_CHAIN, *VLA_CRITIC),
                    "grpo": ("algo=grpo", *VLA_CHAIN),
                    "co_dppo": ("algo=co_dppo", *VLA_CHAIN, *VLA_CRITIC),
                    "pa_rl": ("algo=pa_rl", *VLA_CHUNKS, "algo.samples=4", "algo.keep=2"),
                    "aloe": ("algo=aloe", *VLA_CHUNKS),
                },
                prefix="rough/",
            ),
        ),
        extra=("curve",),
        kept="first_try/",
    ),
    "vla_base": Experiment(
        (
            Setting(
                VLA_PIXELS_ROUGH,
                {
                    **{k: LANGUAGE[k] for k in ("told_wrong", "as_told")},
                    "one_step": ONE_STEP,
                    **{f"one_step_{k}": (*ONE_STEP, *v) for k, v in LANGUAGE.items()},
                },
                prefix="rough/",
            ),
        ),
        kept=("pixels", "state"),
    ),
    "vla_entities": Experiment((Setting(VLA_ENTITIES, {"one_step": ONE_STEP}),)),
    "vla_routes_pixels": Experiment(
        (
            Setting(
                VLA_PIXELS,
                {"residual": VLA_PIXELS_RESIDUAL},
            ),
            Setting(  # where it was trained one step of its flow leaves nothing to refine
                VLA_PIXELS_ROUGH,
                {
                    "one_step": ONE_STEP,
                    "dppo": ("algo=dppo", *VLA_CHAIN, *VLA_CRITIC, "loop.total_steps=330000"),
                    "residual": VLA_PIXELS_RESIDUAL,
                },
                prefix="places/",
                task=("task.positions=unseen",),
            ),
            Setting(
                VLA_PIXELS_ROUGH,
                {"student": (), "ppo": VLA_PIXELS_PPO},
                prefix="places/",
                task=("task.positions=unseen",),
                student=(
                    "algo=bc",
                    "policy=frozen_encoder_student",
                    "policy.initial_std=0.3",
                    "loop.steps=4000",
                    "threads=1",
                ),
            ),
        ),
    ),
    "vla_rpd": Experiment(
        (Setting(VLA, {"rpd": RPD_STUDENT, "scratch": (*RPD_STUDENT, "algo.anchor=0", "algo.anchor_final=0")}),),
        runs="vla_routes",
        kept="inference/",
    ),
    "dppo_ablation": Experiment(
        (Setting(PICK, {k: ("algo=dppo", "loop.total_steps=300000", *v) for k, v in ABLATION.items()}),), seeds=(0, 1)
    ),
    "routes_compared": Experiment(
        (
            Setting(
                PICK,
                {
                    "dppo": ("algo=dppo", *CURVE),
                    "residual": (*EARLIER_FAST, "loop.eval_every=3000", *WATCH),
                },
            ),
            Setting(PICK_GAUSSIAN, {"ppo": ("algo=ppo", *CURVE)}, prefix="gaussian/"),
        ),
        extra=("curve",),
    ),
}
