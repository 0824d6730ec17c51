"""Film the first and the last accepted policy of a pipeline on the same episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robopolicy.evaluation.policy_ref import PolicyRef, env_of
from robopolicy.evaluation.saved import filming
from robopolicy.evaluation.video import film_pairs, filmed
from robopolicy.runs.checkpointer import load_policy

if TYPE_CHECKING:
    from robopolicy.cli.pipeline_stages import Flow

COMPARED = "compare"  # folder of the rows and films of all policies
_NUM_ENVS = 100  # as `eval` has it: policies that read pictures plan otherwise for another N


def film_first_and_last(flow: Flow, count: int) -> None:
    """Film `count` evaluated episodes side by side into compare/videos/pairs, unless these films are there."""
    first, last = next(iter(flow.policies), None), flow.accepted
    if not count or first is None or last is None or first == last:
        return
    rows_a, rows_b = flow.results[first].rows, flow.results[last].rows
    assert rows_a is not None and rows_b is not None, "evaluated just before"
    out, episodes = flow.out / COMPARED, len(rows_b)
    folder = out / "videos" / "pairs"
    if filmed(folder, rows_b, names=(first, last), count=min(count, episodes)):
        return
    ref = PolicyRef.of(flow.policies[first], "latest", out)
    env = env_of(flow.task, ref, min(flow.num_envs or _NUM_ENVS, episodes))
    a, b = (load_policy(flow.policies[name], device=flow.common["device"], env=env.spec) for name in (first, last))
    filming(lambda: film_pairs((a, rows_a), (b, rows_b), env, folder, names=(first, last), count=count, strict=False))
