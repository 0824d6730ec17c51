"""Wrap an env as a policy needs it.

There are two pipelines. Learners on a base use BaseActionEnv(HistoryEnv(env), base). All others use HistoryEnv(env).
In either, GroupedEnv(env) may take the place of env. Simulated, imagined and real envs are wrapped alike.
"""

from __future__ import annotations

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import check_fits
from robopolicy.core.types import BASE_ACTION, TASK, VecEnv
from robopolicy.envs.wrappers import BaseActionEnv, HistoryEnv
from robopolicy.policies.base import Policy, with_bases


def wrap_for(policy: Policy, env: VecEnv, *, teacher: Policy | None = None) -> VecEnv:
    """Wrap `env` as `policy` needs it: with a history, and with a base action for each policy underneath.

    Args:
        teacher: another policy that acts on the same observations.

    Raises:
        SpecError: policy and env do not fit (all differences are listed), both policy and teacher have a base, the env
            emits stacked frames, or its episodes branch off from others and the policy reads a history.
    """
    chain, beside = with_bases(policy), [] if teacher is None else with_bases(teacher)
    bases = chain[1:] or beside[1:]
    if chain[1:] and beside[1:]:
        raise SpecError(f"teacher: {type(teacher).__name__} and the policy both have a policy underneath, and only one "
                        f"of these can be in {BASE_ACTION!r}")  # fmt: skip
    for member in (*chain, *beside):
        check_fits(member.spec, env.spec, ignore=[BASE_ACTION] if member.base is not None else [])
        blind = member.base is not None and TASK in member.base.spec.observation and TASK not in member.spec.observation
        if blind and len(env.spec.tasks) > 1:
            raise SpecError(
                f"{env.spec.id}: has {len(env.spec.tasks)} tasks, which the base tells apart by {TASK!r} and "
                f"{type(member).__name__} does not. Refine it on one task at a time."
            )
        if TASK in member.spec.observation and member.spec.tasks != env.spec.tasks:
            raise SpecError(
                f"{env.spec.id}: its instructions are not those that the policy was trained on, or in another order: "
                f"{', '.join(sorted(set(env.spec.tasks) ^ set(member.spec.tasks))[:6]) or 'the same ones'}. A policy "
                "that reads instructions (policy=vla) takes others where it is loaded for the env."
            )
    length = max(member.spec.n_obs_steps for member in (*chain, *beside))
    if env.spec.history or env.spec.chunk:
        raise SpecError(f"{env.spec.id}: HistoryEnv goes directly on an env that emits single frames")
    if env.spec.branches and length > 1:  # a repeated first frame would wrongly mean that nothing moved
        raise SpecError(
            f"{env.spec.id}: the policy reads {length} frames, and branches begin with one. Leave world.branch away, "
            "or take a policy with n_obs_steps=1."
        )
    wrapped: VecEnv = HistoryEnv(env, length)
    for base in reversed(bases):
        wrapped = BaseActionEnv(wrapped, base)
    return wrapped
