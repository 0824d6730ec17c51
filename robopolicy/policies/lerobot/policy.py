"""Run a policy of LeRobot, with its processors, behind our interface."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.core.errors import CheckpointError, SpecError, closest
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import TASK, Obs
from robopolicy.core.untrusted import refusing
from robopolicy.policies.base import Policy
from robopolicy.policies.lerobot.config import Document, check_inputs, decode, prepared
from robopolicy.policies.lerobot.kinds import Kind, kind_of
from robopolicy.policies.lerobot.names import check_name, refuse_remote_code

_NEEDED = {  # statistics that a normalisation mode reads
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}
# Audited steps of LeRobot: they compute, or load a tokenizer without remote code.
STEPS = {
    "absolute_actions_processor", "device_processor", "image_crop_resize_processor", "map_delta_action_to_robot_action",
    "map_tensor_to_delta_action_dict", "normalizer_processor", "observation_processor",
    "pi05_prepare_state_tokenizer_processor_step", "pi0_new_line_processor", "relative_actions_processor",
    "rename_observations_processor", "smolvla_new_line_processor", "to_batch_processor", "to_batch_processor_action",
    "to_batch_processor_complementary_data", "to_batch_processor_observation", "tokenizer_processor",
    "unnormalizer_processor",
}  # fmt: skip
_NORMALIZERS = ("normalizer_processor", "unnormalizer_processor")


class Reader(Policy):
    """A policy that reads observations through LeRobot's preprocessor.

    `inputs`: {key of LeRobot: our feature}. `pre`, `kind`: LeRobot's preprocessor, and the policy's type.
    """

    inputs: dict[str, str]
    pre: Any
    kind: Kind

    def batch(self, obs: Obs) -> dict[str, Any]:
        """Build the batch for LeRobot's policy from obs [B To ...] in physical units."""
        count = len(next(iter(obs.values())))
        batch: dict[str, Any] = {key: self._input(obs[ours]) for key, ours in self.inputs.items()}
        index = obs[TASK][:, -1].tolist() if TASK in self.spec.observation else [0] * count
        batch["task"] = [self.spec.tasks[i] for i in index]
        with refusing("policy_preprocessor.json"):  # its numbers are LeRobot's to check, which it does not
            return {k: v for k, v in self.pre(batch).items() if isinstance(v, Tensor | list)}

    def set_tasks(self, tasks: tuple[str, ...]) -> None:
        """See Policy: any instructions are accepted.

        Raises:
            SpecError: there are several, and the policy reads no task index.
        """
        if len(tasks) > 1 and TASK not in self.spec.observation:
            raise SpecError(f"tasks: the env has {len(tasks)}, and the policy reads no {TASK!r} that tells them apart")
        self.spec = replace(self.spec, tasks=tuple(tasks))

    def _input(self, x: Tensor) -> Tensor:
        """Convert [B To ...] to LeRobot's layout: images in 0 … 1, no To axis where it reads one frame."""
        x = x if self.spec.n_obs_steps > 1 or self.kind.stacked else x[:, -1]
        return x.float() / 255.0 if x.dtype == torch.uint8 else x


class LeRobotPolicy(Reader):
    """`post(network(pre(obs)))`: LeRobot's own classes, whose queues are not used.

    The weights are the network's. The processors' statistics are part of the config node, so our checkpoints can hold
    such a policy like any other, alone or under a residual.

    Args:
        spec: of observations and actions, from robopolicy.policies.lerobot.load.
        config: LeRobot's config.json; `prepared` overrides some of its keys.
        preprocessor, postprocessor: LeRobot's JSON of either, with the tensors of its state files under "state".
        inputs: {key of LeRobot: our feature}, e.g.
            {"observation.environment_state": "observation.state"}.
        network: the loaded policy; None builds it from the config, for weights that follow.

    Raises:
        CheckpointError: a type, step or statistic that cannot be used. SpecError: chunk lengths other than the spec's.
    """

    def __init__(
        self,
        spec: PolicySpec,
        *,
        config: Document,
        preprocessor: Document,
        postprocessor: Document,
        inputs: dict[str, str],
        network: nn.Module | None = None,
    ) -> None:
        super().__init__()
        from lerobot.policies.factory import get_policy_class

        config = prepared(config)
        settings = decode(config)
        self.spec, self.inputs = spec, dict(inputs)
        self.kind = kind_of(settings)
        steps = self.kind.steps(settings)
        if steps != (spec.n_obs_steps, spec.horizon, spec.n_action_steps):
            raise SpecError(
                f"config.json says n_obs_steps, horizon, n_action_steps = {steps}, the spec "
                f"{(spec.n_obs_steps, spec.horizon, spec.n_action_steps)}"
            )
        check_inputs(settings, preprocessor, spec, self.inputs)
        self.noise_shape = self.kind.noise(settings)
        self.pre, self.post = pipeline(preprocessor, action=False), pipeline(postprocessor, action=True)
        self.network = get_policy_class(settings.type)(settings) if network is None else network
        self.config = {
            "_target_": "lerobot", "config": config, "preprocessor": preprocessor,
            "postprocessor": postprocessor, "inputs": self.inputs,
        }  # fmt: skip

    @torch.no_grad()
    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """[B H Da] physical units. A pure function of `obs` and `noise`.

        deterministic: all noise zero; policies that draw from a generator (DDPM, VQ-BeT) are seeded alike instead.
        """
        sample = next(iter(obs.values()))
        if self.noise_shape and deterministic:
            noise = torch.zeros(len(sample), *self.noise_shape, device=sample.device)
        elif self.noise_shape and noise is None:
            noise = torch.randn(len(sample), *self.noise_shape, device=sample.device)
        chunk = self.kind.predict(self.network, self.batch(obs), noise)
        with refusing("policy_postprocessor.json"):
            return self.post(chunk)


def pipeline(document: Document, *, action: bool) -> Any:
    """Build LeRobot's processor pipeline, for a batch of observations or an action.

    Device moves are left out: all steps run on the observation's device.

    Raises:
        CheckpointError: a step would run remote code, cannot be built, or lacks statistics.
    """
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.processor.converters import (
        batch_to_transition,
        policy_action_to_transition,
        transition_to_batch,
        transition_to_policy_action,
    )

    refuse_remote_code()
    name = f"policy_{'post' if action else 'pre'}processor.json"
    steps = [s for s in document["steps"] if s.get("registry_name") != "device_processor"]
    state = {
        key: {k: torch.tensor(v, dtype=torch.float32) for k, v in tensors.items()}
        for key, tensors in document.get("state", {}).items()
    }
    for step in steps:
        _check_step(step, state, name)
    try:
        return PolicyProcessorPipeline.from_config(
            {"name": document.get("name", name), "steps": steps},
            state_dict=state,
            to_transition=policy_action_to_transition if action else batch_to_transition,
            to_output=transition_to_policy_action if action else transition_to_batch,
        )
    except (ImportError, KeyError, TypeError, ValueError, OSError) as error:
        raise CheckpointError(f"{name}: LeRobot cannot build it ({error})") from error


def _check_step(step: Document, state: dict[str, Any], name: str) -> None:
    from lerobot.processor.pipeline import ProcessorStepRegistry

    known, called = step.get("registry_name"), str(step.get("class"))
    if known is not None and not isinstance(known, str):
        raise CheckpointError(f"{name}: registry_name: expected text, found {known!r}")
    if known is None and called.startswith("lerobot."):  # the checks below go by names
        raise CheckpointError(
            f"{name}: the step {called!r} is named by its class; LeRobot names its own by registry_name, and so must a "
            f"checkpoint. Known: {', '.join(sorted(ProcessorStepRegistry.list()))}"
        )
    if known is None and not called.startswith("lerobot."):
        raise CheckpointError(
            f"{name}: the step {called!r} names code outside LeRobot, which a checkpoint may not call. Register the "
            "step with LeRobot's ProcessorStepRegistry in a package named lerobot_policy_…, and name it there."
        )
    if known is not None and known not in ProcessorStepRegistry.list():
        raise CheckpointError(f"{name}: no step {known!r} is installed. {closest(known, ProcessorStepRegistry.list())}")
    settings = step.get("config") or {}
    if known is not None and known not in STEPS and ProcessorStepRegistry.get(known).__module__.startswith("lerobot."):
        raise CheckpointError(
            f"{name}: LeRobot's step {known!r} is refused: it belongs to no policy that is supported here, and may run "
            f"code from the hub. Known: {', '.join(sorted(STEPS))}; and steps of packages that you install yourself."
        )
    if known == "tokenizer_processor":
        if settings.get("tokenizer") is not None:
            raise CheckpointError(f"{name}: tokenizer: expected a tokenizer_name alone. Remove the key.")
        check_name(settings.get("tokenizer_name"), f"{name}: tokenizer_name")
    if known == "absolute_actions_processor" and settings.get("enabled"):
        raise CheckpointError(f"{name}: actions relative to the state ({known!r}) are not supported")
    own = state.get(str(step.get("state_file", "")).removesuffix(".safetensors"), {})
    only = settings.get("normalize_observation_keys")
    for key, feature in (settings.get("features") or {}).items() if known in _NORMALIZERS else ():
        mode = (settings.get("norm_map") or {}).get(feature["type"], "IDENTITY")
        reads = (key == "action") == (known == "unnormalizer_processor") and (only is None or key in only)
        lacking = [s for s in _NEEDED.get(mode, ()) if f"{key}.{s}" not in own]
        if lacking and reads:  # LeRobot would pass the values on unscaled, or fail at the first action
            raise CheckpointError(
                f"{name}: has no {' and '.join(lacking)} of {key!r}, which its mode {mode} needs. Save the processors "
                "with the statistics of the training data (`make_pre_post_processors(…, dataset_stats=…)`)."
            )
