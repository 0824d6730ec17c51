"""Put the decision of a gate into words."""

from __future__ import annotations

from robopolicy.evaluation.gate_checks import DIVERGED
from robopolicy.evaluation.off_policy_evaluation import FARTHEST, GateResult


def text(result: GateResult) -> str:
    """Return the decision, and a warning about its level."""
    decided = "accepted" if result.accepted else "refused"
    if result.estimator == "world_model":
        gain, low, high = (100 * value for value in (result.gain, result.low, result.high))
        unsure = " and ".join(f"{100 * value:.0f}%" for value in (result.uncertain, result.base_uncertain))
        lost = (
            f"Its numbers are not finite in {100 * result.diverged:.1f}% of the candidate's or the base's episodes, "
            f"expected at most {100 * DIVERGED:g}%: this alone refuses."
        )
        return "\n".join([
            f"{decided}: success changes by {gain:+.1f} points ({low:+.1f} to {high:+.1f} at {100 * result.level:g}% "
            f"each), in a world model from {result.episodes} {result.starts}. It is too uncertain of {unsure} of the "
            "candidate's and the base's episodes. Those of the candidate are failures, those of the base do not count.",
            *([lost] if result.diverged > DIVERGED else []),
            *(f"The model would not do to learn in: {fault}" for fault in result.faults),
            "The bounds are those of starts and members: errors that all members share are not in them. Where you can "
            "play episodes, compare too.",
        ])  # fmt: skip
    far = (
        f"Its chunks lie {result.distance:.1f} times as far from the recorded ones as the base's, expected at most "
        f"{FARTHEST:g}: what they bring is not in the data.\n"
    )
    return (
        f"{decided}: the value changes by {result.gain:+.4f} "
        f"({result.low:+.4f} to {result.high:+.4f} at {100 * result.level:g}% each), by fitted Q evaluation on "
        f"{result.episodes} held-out episodes.\n"
        f"{far if result.distance > FARTHEST else ''}"
        "The bounds are those of the data alone. How often such decisions are right was measured on few policies: "
        "where you can play episodes, compare too."
    )


def without_run(result: GateResult) -> list[str]:
    """Return a line for each policy of which it is not known what it learned from."""
    what = {
        "fitted_q": ("from none of these episodes. If it learned from some", "other episodes"),
        "world_model": ("outside this world model. If it learned in it", "another model"),
    }
    learned, other = what[result.estimator]
    return [
        f"{name}: no run lies beside this policy, so it counts as having learned {learned}, the decision is invalid. "
        f"Give {name}=<its run directory>, or {other}."
        for name in result.without_run
    ]
