"""Tiny policies of LeRobot, built and saved by its own classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy.core.types import ENV_STATE, STATE, ActionSpec, EnvSpec, Feature
from tests.toy import ACTION

DIM = 3  # of the state
TOKENS = ("<pad>", "<unk>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
ENV = EnvSpec(
    id="toy", observation={STATE: Feature((DIM,)), "task_index": Feature((), "int64")}, action=ACTION,
    tasks=("toy",), dt=0.05, horizon=20, digest="toy-1",
)  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "act": {
        "chunk_size": 6, "n_action_steps": 4, "dim_model": 32, "n_heads": 2, "dim_feedforward": 64,
        "n_encoder_layers": 1, "n_vae_encoder_layers": 1, "pretrained_backbone_weights": None,
    },
    "diffusion": {
        "horizon": 8, "n_action_steps": 4, "down_dims": (16, 32), "n_groups": 4, "num_inference_steps": 4,
        "noise_scheduler_type": "DDIM", "pretrained_backbone_weights": None,
    },
    "vqbet": {
        "n_obs_steps": 2, "action_chunk_size": 4, "n_action_pred_token": 3, "crop_shape": None, "gpt_n_layer": 1,
        "gpt_n_head": 2, "gpt_input_dim": 32, "gpt_output_dim": 32, "gpt_hidden_dim": 32, "vqvae_embedding_dim": 16,
        "vqvae_enc_hidden_dim": 16, "pretrained_backbone_weights": None,
    },
}  # fmt: skip


def env(cameras: dict[str, int] | None = None, **changes: Any) -> EnvSpec:
    """`ENV` with square pictures of the given sizes."""
    pictures = {f"observation.images.{k}": Feature((3, s, s), "uint8") for k, s in (cameras or {}).items()}
    return EnvSpec(**{**vars(ENV), "observation": {**ENV.observation, **pictures}, **changes})


def save(
    kind: str, folder: Path, *, cameras: dict[str, int] | None = None, action: ActionSpec = ACTION, dim: int = DIM,
    scale: float = 1.0, seed: int = 0, **changes: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Write a policy directory as `lerobot-train` does; LeRobot's policy and processors."""
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

    inputs = {STATE: PolicyFeature(FeatureType.STATE, (dim,))}
    for name, size in (cameras or {}).items():
        inputs[f"observation.images.{name}"] = PolicyFeature(FeatureType.VISUAL, (3, size, size))
    if not cameras:
        inputs[ENV_STATE] = PolicyFeature(FeatureType.ENV, (dim,))
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (action.dim,))}
    torch.manual_seed(seed)
    config = make_policy_config(
        kind, input_features=inputs, output_features=outputs, device="cpu", push_to_hub=False,
        **{**SIZES.get(kind, {}), **changes},
    )  # fmt: skip
    policy = get_policy_class(kind)(config).eval()
    if kind == "vqbet":
        policy.vqbet.action_head.vqvae_model.discretized.fill_(True)
    if kind == "pi05":  # its layers begin shut, and time would not count
        for name, weight in policy.named_parameters():
            if "norm.dense.weight" in name:
                weight.data.normal_(std=0.5)
    pre, post = make_pre_post_processors(config, dataset_stats=statistics({**inputs, **outputs}, scale))
    folder.mkdir(parents=True, exist_ok=True)
    policy.save_pretrained(folder)
    pre.save_pretrained(folder, config_filename="policy_preprocessor.json")
    post.save_pretrained(folder, config_filename="policy_postprocessor.json")
    return policy, pre, post


VLAS: dict[str, dict[str, Any]] = {  # of 64 px cameras, beside what `tiny_vla` adds
    "smolvla": {
        "load_vlm_weights": False, "num_vlm_layers": 2, "num_steps": 3, "resize_imgs_with_padding": (64, 64),
        "max_state_dim": 40,
    },
    "pi0": {"num_inference_steps": 3, "image_resolution": (28, 28), "max_state_dim": 40},
    "pi05": {"num_inference_steps": 3, "image_resolution": (28, 28), "tokenizer_max_length": 24, "max_state_dim": 40},
}  # fmt: skip


def tiny_vla(
    kind: str, root: Path, words: Sequence[str], patch: pytest.MonkeyPatch, **given: Any
) -> tuple[Any, Any, Any]:
    """`save` a VLA of LeRobot to root/policy; π0 and π0.5 are small as long as `patch` holds."""
    vlm = tiny_vlm(root / "vlm", words)
    small_gemma(vlm, patch)
    sizes = {"chunk_size": 4, "n_action_steps": 3, "tokenizer_max_length": 8, **VLAS[kind]}
    sizes |= {"vlm_model_name": str(vlm)} if kind == "smolvla" else {}
    policy, pre, post = save(kind, root / "policy", cameras={"front": 64}, **{**sizes, **given})
    return policy, pre, post


def small_gemma(tokenizer: Path, patch: pytest.MonkeyPatch) -> None:
    """Make LeRobot's π0 and π0.5 build models of a few thousand weights and read with this tokenizer: their sizes are
    fixed in its code, and their tokenizer is on the hub."""
    from lerobot.policies.pi0 import modeling_pi0, processor_pi0
    from lerobot.policies.pi05 import modeling_pi05, processor_pi05
    from lerobot.processor import TokenizerProcessorStep

    def shrunk(make: Any) -> Any:
        def build(config: Any) -> Any:
            text = getattr(config, "text_config", config)
            text.vocab_size = 64
            if text is not config:
                config.image_token_index = 63
                eyes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                        "patch_size": 14, "projection_dim": text.hidden_size}  # fmt: skip
                for name, value in eyes.items():
                    setattr(config.vision_config, name, value)
            return make(config)

        return build

    def sizes(kind: str) -> Any:
        width, hidden = {"gemma_2b": (24, 32), "gemma_300m": (16, 24)}[kind]
        return modeling_pi0.GemmaConfig(width, 2, hidden, num_heads=8, num_kv_heads=1, head_dim=4)

    for module, processor in ((modeling_pi0, processor_pi0), (modeling_pi05, processor_pi05)):
        patch.setattr(module, "get_gemma_config", sizes)
        for name in ("PaliGemmaForConditionalGenerationWithPiGemma", "PiGemmaForCausalLM"):
            patch.setattr(module, name, shrunk(getattr(module, name)))
        reads = partial(TokenizerProcessorStep, tokenizer_name=str(tokenizer))
        patch.setattr(processor, "TokenizerProcessorStep", lambda tokenizer_name, reads=reads, **k: reads(**k))


def statistics(features: dict[str, Any], scale: float = 1.0) -> dict[str, dict[str, Tensor]]:
    """Of data far from zero mean and unit deviation, so that a scale that is left out shows."""
    generator = torch.Generator().manual_seed(7)
    found = {}
    for key, feature in features.items():
        shape = (3, 1, 1) if "images" in key else tuple(feature.shape)
        mean = 5.0 + torch.rand(shape, generator=generator)
        numbers = {"mean": mean, "std": 0.3 + torch.rand(shape, generator=generator), "min": mean - 2.0,
                   "max": mean + 3.0, "q01": mean - 1.5, "q99": mean + 2.5}  # fmt: skip
        found[key] = {name: scale * value for name, value in numbers.items()}
    if ENV_STATE in found:
        found[ENV_STATE] = found[STATE]  # a copy, as in our datasets
    return found


def observations(steps: int, rows: int, spec: EnvSpec = ENV, *, seed: int = 0) -> dict[str, Tensor]:
    """[rows steps ...] of everything that `spec` offers."""
    generator = torch.Generator().manual_seed(seed)
    obs = {}
    for key, feature in spec.observation.items():
        shape = (rows, steps, *feature.shape)
        if feature.dtype == "uint8":
            obs[key] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        elif feature.dtype == "int64":
            obs[key] = torch.zeros(shape, dtype=torch.int64)
        else:
            obs[key] = 5.0 + torch.randn(shape, generator=generator)
    return obs


def tiny_vlm(
    folder: Path, words: Sequence[str], *, width: int = 32, depth: int = 2, hidden: int = 32, eyes: int = 1
) -> Path:
    """Config, tokenizer and processor of a SmolVLM, random and small.

    Args:
        words: texts whose words it knows. width, depth, hidden: of the language model; width and feed-forward layers
            of the vision tower too. eyes: layers of that tower.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    known = [*TOKENS, *sorted({w for text in words for w in text.split()})]
    tokens = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>", "fake_image_token": "<fake_token_around_image>",
                              "global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>"},
    )  # fmt: skip
    heads = max(2, width // 32)
    config = SmolVLMConfig(
        image_token_id=2, pad_token_id=0, scale_factor=2,
        vision_config={"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": eyes,
                       "num_attention_heads": heads, "image_size": 64, "patch_size": 16},
        text_config={"model_type": "llama", "hidden_size": width, "intermediate_size": hidden,
                     "num_hidden_layers": depth, "num_attention_heads": heads, "num_key_value_heads": heads // 2,
                     "head_dim": width // heads, "vocab_size": len(known), "pad_token_id": 0},
    )  # fmt: skip
    config.save_pretrained(folder)
    SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(), tokenizer=tokenizer, video_processor=SmolVLMVideoProcessor(),
        image_seq_len=4, chat_template="{{ messages }}",
    ).save_pretrained(folder)  # fmt: skip
    return folder
