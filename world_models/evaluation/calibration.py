"""Calibrate threshold and bound of a trained world on held-out episodes, and report on others."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.types import IMAGES, STATE
from robopolicy.datasets.episodes import Episodes
from robopolicy.world_models.evaluation.ranking import spearman
from robopolicy.world_models.evaluation.validation import (
    Rollout,
    copy_last,
    dream,
    episode_scores,
    fit_linear,
    open_loop,
    per_episode,
    scores,
    squared_picture_error,
    succeeded,
    success_windows,
    uncertainties,
    wrapping,
)
from robopolicy.world_models.models.success import choose_threshold, verdict
from robopolicy.world_models.models.world import World
from robopolicy.world_models.training.data import sequences

_RANKED = 2_000  # sequences by which members are ranked


def assess(
    world: World, train: Episodes, calibration: Episodes, validation: Episodes, *, believed: float
) -> dict[str, Any]:
    """Calibrate the success classifier, `bound` and the members' order on `calibration`; report on `validation`.

    Args:
        believed: share of held-out episodes that stay below the bound.
    """
    _calibrate(world.eval(), calibration, believed)
    uncertainty, error = uncertainties(world, validation)
    known = ~error.isnan()
    flagged = uncertainty > world.bound
    outcome = verdict(episode_scores(scores(world, validation), validation), float(world.success.threshold))
    state = train.obs[STATE]
    std = torch.where(state.std(0) > 0, state.std(0), 1.0)
    wrap = wrapping(world)
    with torch.no_grad():
        rollouts: dict[str, Rollout] = {
            "model": dream(world, likeliest=False),
            "likeliest": dream(world, likeliest=True),
            "copy_last": copy_last,
            "linear": fit_linear(train, wrap=wrap),
        }
        memory = world.dynamics.memory
        missed = lambda a, b: wrap(a - b).abs()  # noqa: E731
        errors = {n: open_loop(r, validation, missed, memory=memory) for n, r in rollouts.items()}
        cameras = [k for k in world.spec.observation if k.startswith(IMAGES)]
        shown = {name: rollouts[name] for name in ("model", "copy_last")}
        pictures = {key: _pictures(shown, validation, key, memory) for key in cameras}
    rest, suspect = error[known & ~flagged], error[known & flagged]
    by_step = {k: {n: e[k] for n, e in errors.items()} for k in errors["model"]}
    return {
        "open_loop": {
            str(k): {n: _mean(e / std) for n, e in each.items()} | {"windows": len(each["model"])}
            for k, each in by_step.items()
        },
        "by_number": {
            str(k): {n: e.mean(0).tolist() if len(e) else None for n, e in each.items()} for k, each in by_step.items()
        },
        "pictures": pictures,
        "names": list(world.spec.observation[STATE].names or ()),
        "success": {**asdict(outcome), "wanted": world.success.precision},
        "trust": {
            "bound": float(world.bound),
            "believed": believed,
            "flagged_episodes": float((per_episode(flagged.float(), validation) > 0).float().mean()),
            "flagged_steps": float(flagged.float().mean()),
            "spearman_uncertainty_error": spearman(uncertainty[known].tolist(), error[known].tolist()),
            "error_believed": _mean(rest),
            "error_flagged": _mean(suspect),
        },
        "data": {
            name: {"episodes": e.num_episodes, "frames": e.num_frames, "successes": int(succeeded(e).sum())}
            for name, e in (("train", train), ("calibration", calibration), ("validation", validation))
        },
    }


def _calibrate(world: World, episodes: Episodes, believed: float) -> None:
    """Set the members' order, the success classifier's threshold and the bound of uncertainty."""
    _rank(world, episodes)
    world.success.calibrate(success_windows(world, episodes))
    called = episode_scores(scores(world, episodes), episodes)
    world.success.threshold.fill_(choose_threshold(called, world.success.precision))
    most = per_episode(uncertainties(world, episodes)[0], episodes)
    world.bound.copy_(torch.quantile(most, believed))


def _pictures(rollouts: dict[str, Rollout], episodes: Episodes, key: str, memory: int) -> dict[str, dict[str, Any]]:
    """{steps: {"windows", rollout's name: {"mse", "psnr"}}} of one camera."""
    found = {n: open_loop(r, episodes, squared_picture_error, key=key, memory=memory) for n, r in rollouts.items()}
    return {
        str(k): {"windows": len(e)} | {n: _sharpness(_mean(f[k])) for n, f in found.items()}
        for k, e in found["model"].items()
    }


def _sharpness(mse: float | None) -> dict[str, float | None]:
    """Return the mean squared error of images, and it as a ratio to the peak in dB."""
    return {"mse": mse, "psnr": None if mse is None else -10.0 * math.log10(max(mse, 1e-12))}


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def faults(report: dict[str, Any]) -> list[str]:
    """Return the reasons not to train in the model, one sentence each."""
    return [*success_faults(report), *dynamics_faults(report)]


def success_faults(report: dict[str, Any]) -> list[str]:
    """Return one where the success classifier is below its precision: every false alarm, early or not, is a reward."""
    success = report["success"]
    if success["recall"] > 0.0 and success["precision"] >= success["wanted"]:
        return []
    return [
        f"success: precision {success['precision']:.3g} where {success['wanted']:g} was wanted, "
        f"{_early(success)}recall {success['recall']:.3g}, over {success['positives']} held-out successes"
    ]


def dynamics_faults(report: dict[str, Any]) -> list[str]:
    """Return open-loop errors not below those of copying the last state, and images never better than copied ones."""
    found = []
    for k, errors in report["open_loop"].items():
        if errors["windows"] and not errors["model"] < errors["copy_last"]:
            found.append(f"{k} steps: error {errors['model']:.3g}, copying the last state {errors['copy_last']:.3g}")
    for key, errors in report.get("pictures", {}).items():
        known = {k: e for k, e in errors.items() if e["windows"]}
        if known and not any(e["model"]["mse"] < e["copy_last"]["mse"] for e in known.values()):
            found.append(f"{key}: its pictures are no better than copying the last one, at {', '.join(known)} steps")
    return found


def no_better(report: dict[str, Any]) -> str:
    """Return horizons with the numbers of the state that are predicted no better than by copying, or ""."""
    found = []
    for k, errors in report["by_number"].items():
        model, copied = errors["model"], errors["copy_last"]
        if model is not None and (bad := [n for n, a, b in zip(report["names"], model, copied) if a > b > 0.0]):  # noqa: B905
            found.append(f"{k} steps: {', '.join(bad)}")
    return "; ".join(found)


def summary(report: dict[str, Any]) -> str:
    """Return a few lines for the terminal."""
    lines = ["open-loop error in deviations, held-out episodes (model · linear · copy-last):"]
    for k, e in report["open_loop"].items():
        if e["windows"]:
            lines.append(f"  {k:>2} steps: {e['model']:.4f} · {e['linear']:.4f} · {e['copy_last']:.4f}")
    if stuck := no_better(report):
        lines.append(f"  numbers of the state that are no better than copied: {stuck}")
    for key, errors in report.get("pictures", {}).items():
        known = [(k, e) for k, e in errors.items() if e["windows"]]
        said = ", ".join(f"{k} steps {e['model']['psnr']:.1f} · {e['copy_last']['psnr']:.1f}" for k, e in known)
        lines.append(f"  {key}, dB (model · copy-last): {said}")
    s, t = report["success"], report["trust"]
    lines.append(
        f"success: precision {s['precision']:.3f}, {_early(s)}recall {s['recall']:.3f} over {s['episodes']} episodes "
        f"with {s['positives']} successes"
    )
    lines.append(
        f"uncertainty: bound {t['bound']:.3g} ends {100 * t['flagged_episodes']:.1f}% of held-out episodes; rank "
        f"correlation with the error {t['spearman_uncertainty_error']:.2f}"
    )
    return "\n".join(lines)


def _early(success: dict[str, Any]) -> str:
    """Return the share of early alarms as text; reports of older models have none."""
    return f"early alarms {success['early']:.3g}, " if "early" in success else ""


def _rank(world: World, episodes: Episodes) -> None:
    dynamics = world.dynamics
    if dynamics.heads == 1:
        return
    frames, valid = sequences(episodes, dynamics.unroll)
    some = torch.linspace(0, len(frames) - 1, min(_RANKED, len(frames))).long()
    frames, valid = frames[some], valid[some]
    batch = {k: episodes.obs[k][frames] for k in world.spec.observation if k in episodes.obs}
    batch |= {"action": episodes.action[frames[:, :-1]], "valid": valid}
    dynamics.rank({k: v.expand(dynamics.heads, *v.shape) for k, v in batch.items()})
