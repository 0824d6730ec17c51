"""Run SmolVLA, π0 and π0.5 of LeRobot as flow policies whose denoising chain can be fine-tuned.

The vision-language prefix is frozen and encoded once per observation. The action expert is the denoiser; the fine-tuned
steps use a copy. LeRobot's processors stay outside, as in policy.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Natural, NonNegative
from robopolicy.core.errors import CheckpointError, RobopolicyError, SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Metrics, Obs
from robopolicy.networks.lora import merged_state
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.factory import build_policy
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.lerobot.config import Document, check_inputs, decode, prepared
from robopolicy.policies.lerobot.kinds import kind_of, seeds_of
from robopolicy.policies.lerobot.layout import NetworkLayout
from robopolicy.policies.lerobot.policy import LeRobotPolicy, Reader, pipeline
from robopolicy.policies.normalizer import ACTION, Normalizer

if TYPE_CHECKING:
    from robopolicy.policies.lerobot.flow_network import FlowPrefix

STEPS = {"smolvla": "num_steps", "pi0": "num_inference_steps", "pi05": "num_inference_steps"}  # S, by type


@dataclass(frozen=True)
class ExpertOptions:
    """How the weights of a large policy are stored and learned.

    precision: "bfloat16" halves the memory of frozen weights and stored prefixes, and computes in bfloat16; learned
        weights stay in float32.
    checkpointing: recompute activations of the expert's layers for the gradient instead of storing them.
    """

    precision: Literal["float32", "bfloat16"] = "float32"
    checkpointing: bool = False


class LeRobotFlow(Reader, FlowPolicy):
    """A FlowPolicy around a VLA of LeRobot.

    Latents [R Da] hold the chunk in their first H rows, then the numbers that LeRobot pads actions with (layout.py).
    The padding is sampled and denoised like the chunk, but not scored. `pack` converts LeRobot's noise to ours.

    Args:
        spec, config, preprocessor, postprocessor, inputs, network: see LeRobotPolicy.
        sampling_steps: S; None: as LeRobot's config says. noise_level: see FlowPolicy.
        finetuned_steps, lora_rank: see ChunkDenoiser. precision, checkpointing: see ExpertOptions.

    Raises:
        SpecError: a type without a flow. CheckpointError: actions that LeRobot changes in other ways than by a scale.
    """

    encoder: FlowPrefix

    def __init__(
        self,
        spec: PolicySpec,
        *,
        config: Document,
        preprocessor: Document,
        postprocessor: Document,
        inputs: dict[str, str],
        network: nn.Module | None = None,
        sampling_steps: Count | None = None,
        noise_level: NonNegative = 0.0,
        finetuned_steps: Natural = 0,
        lora_rank: Natural = 0,
        precision: Literal["float32", "bfloat16"] = "float32",
        checkpointing: bool = False,
    ) -> None:
        from lerobot.policies.factory import get_policy_class

        config = prepared(config)
        settings = decode(config)
        check_flow(settings)
        check_inputs(settings, preprocessor, spec, inputs)
        from robopolicy.policies.lerobot.flow_network import split_network

        layout = NetworkLayout(spec.horizon, spec.action.dim, settings.max_action_dim)
        steps = sampling_steps or int(getattr(settings, STEPS[settings.type]))
        whole = get_policy_class(settings.type)(settings) if network is None else network
        whole.requires_grad_(False)
        expert: Any
        prefix, expert = split_network(whole, layout, steps=steps, compact=precision == "bfloat16")
        super().__init__(
            spec, ChunkScale.of(pipeline(postprocessor, action=True), spec), sampling_steps=steps,
            noise_level=noise_level, finetuned_steps=finetuned_steps, lora_rank=lora_rank, encoder=lambda _: prefix,
            network=lambda **_: expert,
        )  # fmt: skip
        for weight in self.finetuned_parameters():
            weight.data = weight.data.float()
        finetuned: Any = self.finetuned
        if checkpointing and finetuned is not None:
            finetuned.checkpointed()
        self.whole = (whole,)  # for `changed`; not a module of this one: its weights are those above
        self.layout, self.inputs, self.kind = layout, dict(inputs), kind_of(settings)
        self.pre = pipeline(preprocessor, action=False)
        self.noise_shape = (*self.noise_shape[:-2], layout.rows, spec.action.dim)
        self.chain_noise_shape = (steps + 1, layout.rows, spec.action.dim)
        self.config: Document = {
            "_target_": "lerobot_flow", "config": config, "preprocessor": preprocessor,
            "postprocessor": postprocessor, "inputs": self.inputs, "sampling_steps": steps, "noise_level": noise_level,
            "finetuned_steps": finetuned_steps, "lora_rank": lora_rank, "precision": precision,
            "checkpointing": checkpointing,
        }  # fmt: skip
        self.eval()

    def pack(self, noise: Tensor) -> Tensor:
        """Convert LeRobot's noise [B H Dl] to [B R Da], with which `act` reproduces LeRobot."""
        return self.layout.pack(noise)

    @torch.no_grad()
    def encode(self, obs: Obs) -> Tensor:
        """Encode obs [B To ...] in physical units as cond [B C]."""
        return self.encoder(self.batch(obs))

    def prediction(self, cond: Tensor, x: Tensor, k: Tensor, *, frozen: bool = False) -> Tensor:
        """See ChunkDenoiser."""
        network: Any = self.network if frozen else self.finetuned
        assert network is not None
        time = network.embed_time(self.times[k + len(self.times) - self.finetuned_steps])
        return network.denoise(x, network.embed_cond(cond) + time)

    def finetuned_loss(
        self, cond: Tensor, action: Tensor, keep: Tensor, *, k: Tensor, noise: Tensor, of_chunk: bool = False
    ) -> Tensor:
        """See ChunkDenoiser; LeRobot pads actions with zeros, whose noise is a function of `noise` here."""
        below = (len(action), self.layout.rows - action.shape[1], action.shape[2])
        generator = torch.Generator().manual_seed(seeds_of(noise.flatten()[None])[0])
        noise = torch.cat([noise, torch.randn(below, generator=generator).to(noise)], dim=1)
        action = torch.cat([action, action.new_zeros(below)], dim=1)
        return super().finetuned_loss(cond, action, keep, k=k, noise=noise, of_chunk=of_chunk)

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Not here.

        Raises:
            RobopolicyError: always.
        """
        raise RobopolicyError("a policy of LeRobot is trained by imitation by lerobot-train; see docs/lerobot.md")

    def changed(self, **options: Any) -> ChunkDenoiser:
        """See ChunkDenoiser; the weights are shared, there is room for them but once."""
        policy = build_policy({**self.config, **options}, spec=self.spec, network=self.whole[0]).to(self.times.device)
        assert isinstance(policy, ChunkDenoiser)
        return policy

    def lerobot_state(self) -> dict[str, Tensor]:
        """Return the weights under LeRobot's names, with the fine-tuned expert.

        Raises:
            CheckpointError: LeRobot cannot run this policy, since it needs two experts, or noise.
        """
        steps, why = len(self.times), ""
        if self.finetuned_steps not in (0, steps):
            why = f"its last {self.finetuned_steps} of {steps} denoising steps have an expert of their own"
        elif len(self.noise_shape) > 2:
            why = f"noise_level={self.config['noise_level']} makes its flow stochastic"
        if why:
            raise CheckpointError(
                f"{why}, and LeRobot runs one expert for all of an ordinary flow. Fine-tune it with "
                f"policy.finetuned_steps={steps} and no noise_level (algo.noise explores without), or export it with "
                "format=robopolicy."
            )
        return {k.removeprefix("policy."): v for k, v in self.encoder.state_dict().items()} | self.lerobot_expert()

    def lerobot_expert(self) -> dict[str, Tensor]:
        """Return the weights of the expert of the last steps, under LeRobot's names."""
        return merged_state(self.network if self.finetuned is None else self.finetuned)


class ChunkScale(Normalizer):
    """The scale of LeRobot's actions, which maps the first rows of latents [B R Da] to the chunk [B H Da]."""

    horizon: int

    @classmethod
    def of(cls, post: Any, spec: PolicySpec) -> ChunkScale:
        """Measure the scale and shift of LeRobot's postprocessor.

        Raises:
            CheckpointError: the postprocessor does more than scale and shift each element.
        """
        self = cls({}, spec.action)
        self.horizon = spec.horizon
        zero, one, two = (post(torch.full((1, 1, spec.action.dim), x))[0, 0].double() for x in (0.0, 1.0, -2.0))
        if not torch.allclose(two, zero - 2.0 * (one - zero), rtol=1e-4, atol=1e-5):
            raise CheckpointError(
                "policy_postprocessor.json: does more than scale and shift actions, and a chain can only be fine-tuned "
                "where that is all. Refine the policy by a residual (algo=residual)."
            )
        self._affine(ACTION).set(zero.float(), ((one - two) / 3.0).float())
        return self

    def unnormalize(self, key: str, y: Tensor) -> Tensor:
        """See Normalizer."""
        return super().unnormalize(key, y[..., : self.horizon, :] if y.ndim > 2 else y)


def check_flow(settings: Any) -> None:
    """Raise SpecError unless LeRobot's config is of a policy whose chain can be run here."""
    if settings.type not in STEPS:
        raise SpecError(
            f"base: LeRobot's {settings.type!r} has no chain that is fine-tuned here; expected {', '.join(STEPS)}. "
            "Refine it by a residual (algo=residual)."
        )
    for name in ("adapt_to_pi_aloha", "use_relative_actions"):
        if getattr(settings, name, False):
            raise SpecError(f"config.json: {name}=true changes actions in a way that a chain is not fine-tuned through")
    if settings.rtc_config is not None and settings.rtc_config.enabled:
        raise SpecError("config.json: rtc_config.enabled=true: the executor continues chunks here; set it to null")


def opened(base: LeRobotPolicy) -> LeRobotFlow:
    """`base` as a flow policy, nothing fine-tuned yet; they share their weights.

    Raises: see LeRobotFlow.
    """
    node: Document = {**base.config, "_target_": "lerobot_flow"}
    policy = build_policy(node, spec=base.spec, network=base.network).to(next(base.parameters()).device)
    assert isinstance(policy, LeRobotFlow)
    return policy
