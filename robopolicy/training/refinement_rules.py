"""Choose the settings of a refinement from what was seen of the base, by rules that are written down.

Every rule has its evidence in docs/refine.md. They were chosen on the recorded tasks of the native suite, Meta-World,
ManiSkill and robosuite.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from robopolicy.core.errors import ConfigError
from robopolicy.policies.state_reading import places

FAST = 1_000  # env steps per second with the base acting
BUSY = 0.2  # share of all cores for other programs, from which a measured speed is not believed
FAST_STEPS, SLOW_STEPS = 150_000, 100_000  # env steps in an env that is fast, and in one that is not
SCHEDULE = 30_000  # env steps until the residual of the preset is let out: its warm-up, and the fall of its penalty
LEAST = 15_000  # env steps of any refinement: fewer made bases worse
LOWEST, GOOD = 0.02, 0.98  # success of a base with next to nothing to build on, and with next to nothing left to gain
_DIFFERENCE = re.compile(r"(.+)_(?:to|in)_(.+)_[xyz]")  # hand_to_object_x
_TOOL = re.compile(r"(?:^|_)(?:hand|tool|tcp|eef|ee|gripper|end_effector|fingertip)(?:$|_)")
# Of places: differences (`lag`, `_rel`, `_near`, `_fine` of native tasks), motions, turns and extents, which are none
_NO_THING = re.compile(
    r"^before_|^lag$|(?:^|_|lin|ang|q)vel|euler|rpy|size|extent|dim|_(?:to|in|step|rel|near|fine)(?:_|$)"
)
_BEFORE = "before_"  # a place in the frame before
_SAME = {f"qpos_{joint}" for joint in range(7)}  # joints of an arm: say where its tool is


@dataclass(frozen=True)
class BaseFacts:
    """What is known of a base on its task.

    `success`, `mode_success`: rates with and without sampling noise. `episodes`: that each rate is of.
    `steps_per_second`: env steps with the base acting. `success_steps`: median length of a success, 0 without any.
    `elements`: names of the state's elements. `absent`: places that are zero all the time. `pictures`: the base reads
    cameras. `demonstrations`: there are some that say where they succeed. `chunks`: the base is a diffusion policy
    that executes several steps of each chunk.
    """

    success: float
    mode_success: float
    episodes: int
    steps_per_second: float
    success_steps: float
    elements: tuple[str, ...]
    pictures: bool
    demonstrations: bool
    instructions: int
    absent: tuple[str, ...] = ()
    chunks: bool = False


KEYS = frozenset({
    "algo", "num_envs", "policy.pictures", "policy.state", "algo.penalty_steps", "loop.total_steps",
    "loop.stop_success", "loop.demo_fraction", "loop.warmup_steps", "loop.updates_per_step", "loop.replay.n_step",
})  # fmt: skip  # that rules may set


@dataclass(frozen=True)
class Choice:
    """Overrides of `robopolicy train`, and the reason in words; without overrides it is advice."""

    overrides: tuple[str, ...]
    reason: str

    def __post_init__(self) -> None:
        check_keys(self.overrides, "rules")


def check_keys(overrides: Sequence[str], where: str) -> None:
    """Refuse overrides of keys that no rule sets: a file of chosen settings may come from a stranger."""
    if other := [word for word in overrides if word.partition("=")[0] not in KEYS]:
        raise ConfigError(
            f"{where}: overrides: expected keys that the rules of refine set, found {other[0]!r}. Remove the file to "
            "choose again."
        )


def check_budget(env_steps: int | None) -> None:
    """Refuse a budget in which a residual moves before its critic knows where to."""
    if env_steps is not None and env_steps < LEAST:
        raise ConfigError(
            f"env_steps={env_steps}: expected at least {LEAST}. Fewer made bases worse in trials (docs/refine.md). "
            "Leave it out, or improve the base by more demonstrations instead."
        )


def busy_remark(steps_per_second: float, others: float, look: Path) -> str:
    """Return what to do where an env may count as slow only because the machine was busy; empty where it does not.

    Args:
        others: share of all cores that other programs took meanwhile, 0 … 1. look: folder of the look's episodes.
    """
    if others < BUSY or steps_per_second >= FAST:
        return ""
    return (
        f"other programs took {100 * others:.0f}% of all cores during the look, so its {steps_per_second:,.0f} env "
        f"steps/s may be too few. From {FAST:,} on the env is fast, with other settings (docs/refine.md). Stop the "
        f"programs, remove {look} and what was trained after it, and repeat the command."
    )


def choose(facts: BaseFacts, env_steps: int | None = None) -> list[Choice]:
    """Return the settings for a base, in the order in which they are printed.

    Args:
        env_steps: budget in primitive env steps; None: by the rules.

    Raises:
        ConfigError: the base succeeds too rarely to be refined, or the budget is too small for it.
    """
    if max(facts.success, facts.mode_success) < LOWEST:
        raise ConfigError(
            f"base: succeeds in {100 * facts.success:.0f}% of {facts.episodes} episodes; a refinement needs successes "
            f"to learn from, at least {100 * LOWEST:.0f}%. Record more demonstrations, or lower their expert_noise."
        )
    why = "a bounded correction of the frozen base, let out where all critics see a gain"
    found = [Choice(("algo=residual",), why)]
    found += _advice(facts)
    check_budget(env_steps)
    speed, fast = f"{facts.steps_per_second:,.0f} env steps/s", facts.steps_per_second >= FAST
    steps = env_steps or (FAST_STEPS if fast else SLOW_STEPS)
    if many := fast and steps >= SCHEDULE:
        lengths = (f"loop.total_steps={steps}", "loop.stop_success=1")
        found.append(Choice(lengths, f"a fast env ({speed}): many steps; ends once 100 episodes in a row succeed"))
    else:
        found += _of_few_steps(facts, steps, f"few env steps of a {'fast' if fast else 'slow'} env ({speed})")
    if facts.pictures:
        seen = ("policy.pictures=true", "num_envs=8") if many else ("policy.pictures=true",)
        found.append(Choice(seen, "the base reads cameras: the residual sees what the base's encoder makes of them"))
    if not facts.demonstrations:
        found.append(
            Choice(
                ("loop.demo_fraction=0",),
                "no demonstrations that say where they succeed were found: dataset=<theirs> would help",
            )
        )
    return found


def _advice(facts: BaseFacts) -> list[Choice]:
    found, sampled, mode = [], f"{100 * facts.success:.0f}%", f"{100 * facts.mode_success:.0f}%"
    if facts.success >= GOOD:
        found.append(f"the base succeeds in {sampled}: there is little left to gain")
    if facts.mode_success >= facts.success + 0.1:
        found.append(f"without sampling noise {sampled} is {mode}: deterministic=true is a gain for nothing")
    if facts.instructions > 1:
        found.append(f"{facts.instructions} instructions: algo=rpd went further on such, see docs/vla.md")
    if facts.chunks and not facts.pictures and facts.steps_per_second < FAST:
        found.append(
            "a slow env and a diffusion base of chunks: algo=ogpo went further on such, see docs/chunk_critics.md"
        )
    return [Choice((), reason) for reason in found]


def _of_few_steps(facts: BaseFacts, steps: int, where: str) -> list[Choice]:
    """More updates for each env step, longer returns, and a state in which places do not name the episode."""
    words = (f"loop.total_steps={steps}", "num_envs=8", "loop.updates_per_step=0.5")
    found = [Choice(words, f"{where}: more updates for each")]
    if steps < SLOW_STEPS:  # the preset's schedule in proportion
        schedule = (f"loop.warmup_steps={6 * steps // 100}", f"algo.penalty_steps={24 * steps // 100}")
        found.append(Choice(schedule, "a small budget: the residual is let out in a quarter of it"))
    if facts.success_steps > 100:
        found.append(Choice(("loop.replay.n_step=10",), f"a success takes {facts.success_steps:.0f} steps"))
    if kept := relative_elements(facts.elements, facts.absent):
        found.append(Choice((f"policy.state=[{','.join(kept)}]",),
                            "differences in place of absolute places, which name the episode"))  # fmt: skip
    return found


def relative_elements(names: Sequence[str], absent: Sequence[str] = ()) -> list[str]:
    """Return what to read of a state in place of absolute places: differences, and all that is no place.

    Where the state has differences (hand_to_object_x), the places of the things that they name are left out. Where it
    has none, but the place of a tool and of other things, differences of these are made (see StateReading): each thing
    from the tool and from things before it, and how far each moved, where `before_…` holds the last frame.

    Of the first thing, the tool, the height stays. Earlier frames and the joints of an arm (`qpos_0` to `qpos_6`) go.
    A thing that no difference names gets one from the tool.

    Args:
        absent: places that are zero in all demonstrations: a thing that the task does not have.

    Returns:
        Names, patterns and differences for `policy.state`; empty where nothing is known: then all are read.
    """
    named = [match for n in names if (match := _DIFFERENCE.fullmatch(n))]
    matches = [m for m in named if {f"{_stem(m[0])}_{axis}" for axis in "xyz"} <= {*names}]  # no distance, no part
    if matches:
        things = list(dict.fromkeys(part for match in matches for part in match.groups()))
        made = _differences_from_tool(things, names, absent)
    else:
        things = _things(names, absent)
        made = _made_differences(things, places(names))
    if not things:
        return []
    differences = {match[0] for match in matches}
    gone = {f"{thing}_{axis}" for thing in [*things, *absent] for axis in "xyz"} - {f"{things[0]}_z"} | _SAME
    kept = [n for n in names if n in differences or (n not in gone and not n.startswith(_BEFORE))]
    return [*_patterns(kept, names), *made]


def _differences_from_tool(things: Sequence[str], names: Sequence[str], absent: Sequence[str]) -> list[str]:
    """Return differences of the things that no difference names; none without the place of a tool among `things`."""
    found = places(names)
    tool = next((thing for thing in things if _TOOL.search(thing) and thing in found), None)
    others = [place for place in found if place not in (*things, *absent) and not _NO_THING.search(place)]
    return [] if tool is None else [f"{place}-{tool}" for place in others]


def _things(names: Sequence[str], absent: Sequence[str]) -> list[str]:
    """Return the places, the tool first; empty without a tool or without another thing."""
    found = [place for place in places(names) if place not in absent and not _NO_THING.search(place)]
    tool = next((place for place in found if _TOOL.search(place)), None)
    return [] if tool is None or len(found) < 2 else [tool, *(place for place in found if place != tool)]


def _made_differences(things: Sequence[str], known: Sequence[str]) -> list[str]:
    pairs = [f"{later}-{first}" for i, later in enumerate(things) for first in things[:i]]
    return pairs + [f"{thing}-{_BEFORE}{thing}" for thing in things if f"{_BEFORE}{thing}" in known]


def _stem(name: str) -> str:
    """Return a name without its axis: "hand_to_object_x" → "hand_to_object"."""
    return name.rpartition("_")[0]


def _patterns(kept: Sequence[str], names: Sequence[str]) -> list[str]:
    """Shorten kept names to patterns that match no other name."""
    found: dict[str, None] = {}
    for name in kept:
        pattern = f"{_stem(name)}_*"
        whole = "_" in name and all(n in kept for n in names if fnmatchcase(n, pattern))
        found[pattern if whole and sum(fnmatchcase(n, pattern) for n in kept) > 1 else name] = None
    return list(found)
