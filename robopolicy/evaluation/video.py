"""Films of evaluated episodes, failures first.

Episodes are a function of their seed, so they are filmed afterwards: the chosen seeds run again, and the outcome must
be the one on record. A picture is taken before every step, so the very last state (the env has already reset by
then) is missing; the last picture is held instead.
"""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from robopolicy.core.errors import DataError, SpecError
from robopolicy.core.types import Renderable, VecEnv
from robopolicy.core.untrusted import parse_json, read_bytes, refusing
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.mp4 import Mp4Writer, burn, side_by_side
from robopolicy.evaluation.rollout import Running, evaluate
from robopolicy.policies.base import Policy, with_bases
from robopolicy.utils.atomic import write_atomically

INDEX = "index.json"  # beside the films: [{"file", "kind", "seed", "outcome", "policy", …}], in the order to show them
_log = logging.getLogger(__name__)


class FilmOptions(TypedDict, total=False):
    """Options of `film` and `film_pairs`."""

    deterministic: bool  # as it was in the evaluation
    strict: bool  # default True; False leaves out, with a warning, an episode that runs otherwise than on record
    camera: str | None  # of the task; None: its first one
    width: int  # pixels of one picture
    height: int


def choose(rows: EpisodeTable, count: int) -> list[int]:
    """Choose at most `count` seeds, failures first, with at least one success if possible."""
    outcome = list(zip(rows.seeds, rows.successes(), strict=True))
    failures, successes = [s for s, ok in outcome if not ok], [s for s, ok in outcome if ok]
    failures = failures[: max(count - 1, 1)] if successes else failures
    return (failures + successes)[:count]


def film(
    policy: Policy, env: VecEnv, rows: EpisodeTable, out: Path | str, *, count: int = 6, seeds: list[int] | None = None,
    label: str = "", **options: Unpack[FilmOptions],
) -> list[Path]:  # fmt: skip
    """Film episodes of `rows` again, as H.264 files in `out` with an index beside them.

    Args:
        rows: result of `evaluate` for this policy and task, with the same `deterministic`.
        seeds: which episodes; `choose` picks `count` of them when None.
        label: burnt in before seed, outcome and step; the policy's name, say.

    Raises:
        SpecError: the env cannot be filmed, or is not the task of the rows.
        DataError: `strict`, and an episode ended otherwise than on record, though the env is deterministic and the
            policy reads no pictures: of these, plans of fewer envs differ in the last bits (see ChunkExecutor).
    """
    chosen = choose(rows, count) if seeds is None else list(seeds)
    out = Path(out)
    entries = _film(policy, env, rows, out, seeds=chosen, label=label, **options)
    _write_index(out, entries)
    return [out / entry["file"] for entry in entries]


def film_pairs(
    a: tuple[Policy, EpisodeTable], b: tuple[Policy, EpisodeTable], env: VecEnv, out: Path | str, *,
    names: tuple[str, str] = ("base", "refined"), count: int = 4, **options: Unpack[FilmOptions],
) -> list[Path]:  # fmt: skip
    """Films of A (left) and B (right) on the same seeds: first what only A manages, then what only B manages."""
    left, right = (dict(zip(rows.seeds, rows.successes(), strict=True)) for _, rows in (a, b))
    order = ((True, False), (False, True), (False, False), (True, True))
    kinds = {kind: [s for s in left if s in right and (left[s], right[s]) == kind] for kind in order}
    kinds[True, False] = kinds[True, False][: max(1, count // 2)]
    chosen = list(itertools.chain(*kinds.values()))[:count]
    out, entries = Path(out), list[dict[str, Any]]()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".") as temp:
        single: list[dict[int, Path]] = []
        for name, (policy, rows) in zip(names, (a, b), strict=True):
            part = Path(temp) / f"{len(single)}"
            found = _film(policy, env, rows, part, seeds=chosen, label=name, **options)
            single.append({entry["seed"]: part / entry["file"] for entry in found})
        for n, seed in enumerate(s for s in chosen if all(s in films for films in single)):
            outcomes = ["success" if side[seed] else "failure" for side in (left, right)]
            file = f"{n:02d}-{outcomes[0]}-{outcomes[1]}-{seed}.mp4"
            side_by_side(single[0][seed], single[1][seed], out / file)
            entries.append({"file": file, "kind": "pair", "label": " | ".join(names), "seed": seed,
                            "outcome": " | ".join(outcomes), "policy": _played_by(b[1])})  # fmt: skip
    _write_index(out, entries)
    return [out / entry["file"] for entry in entries]


def filmed(folder: Path, rows: EpisodeTable, *, names: tuple[str, str], count: int) -> bool:
    """Return whether `folder` holds `count` films or more of these two policies, the second being that of `rows`."""
    try:
        entries = parse_json(read_bytes(folder / INDEX, error=DataError), INDEX, error=DataError)
        with refusing(INDEX, DataError):
            of = {(entry["label"], entry["policy"]) for entry in entries if (folder / entry["file"]).is_file()}
            return len(entries) >= count and of == {(" | ".join(names), _played_by(rows))}
    except DataError:
        return False


def _film(
    policy: Policy, env: VecEnv, rows: EpisodeTable, out: Path, *, seeds: list[int], label: str,
    deterministic: bool = False, strict: bool = True, camera: str | None = None, width: int = 320, height: int = 240,
) -> list[dict[str, Any]]:  # fmt: skip
    """Film `seeds`; index entries of the films, in the order of the seeds."""
    if not isinstance(env, Renderable):
        raise SpecError(f"{env.spec.id}: it has no render(index, camera=…, width=…, height=…) to film by")
    if len(rows) and set(rows.frame["digest"]) != {env.spec.digest}:
        raise SpecError(
            f"{env.spec.id}: the rows belong to digest {sorted(set(rows.frame['digest']))}, this task has "
            f"{env.spec.digest!r}. Film on the task that was evaluated."
        )
    record = rows.frame.set_index("seed")[["success_once", "success_at_end", "length", "ended_by"]]
    unknown = [s for s in seeds if s not in record.index]
    if unknown:
        raise DataError(f"film: seeds {unknown[:3]} are not among the {len(rows)} evaluated episodes")
    good = {s: bool(record.loc[s, "success_once"]) for s in seeds}
    entries: dict[int, dict[str, Any]] = {
        s: {"file": f"{n:02d}-{'success' if good[s] else 'failure'}-{s}.mp4", "kind": "single", "label": label,
            "seed": s, "outcome": "success" if good[s] else "failure", "ended_by": str(record.loc[s, "ended_by"]),
            "length": int(record.loc[s, "length"]), "policy": _played_by(rows)}
        for n, s in enumerate(seeds)
    }  # fmt: skip
    with ExitStack() as stack:
        writers = {s: stack.enter_context(Mp4Writer(out / entries[s]["file"], fps=1 / env.spec.dt)) for s in seeds}

        shown = Counter[int]()  # pictures of each seed

        def watch(wrapped: VecEnv, running: list[Running]) -> None:
            for slot, seed, step in running:
                if step < shown[seed]:  # the episode was lost, and runs again as before
                    continue
                shown[seed] += 1
                picture = wrapped.render(slot, camera=camera, width=width, height=height)  # type: ignore[attr-defined]
                text = f"{label + '  ' if label else ''}seed {seed}  step {step + 1}/{entries[seed]['length']}"
                writers[seed].add(burn(picture, text, mark=entries[seed]["outcome"], good=good[seed]))

        again = evaluate(policy, env, torch.tensor(seeds, dtype=torch.int64), deterministic=deterministic, watch=watch)
        now = again.frame.set_index("seed")[record.columns]
        exact = strict and env.spec.deterministic and not any(p.spec.reads_pictures for p in with_bases(policy))
        for seed in [s for s in seeds if not now.loc[s].equals(record.loc[s])]:
            found, recorded = (of.loc[seed].to_dict() for of in (now, record))
            message = f"film: the episode of seed {seed} ran otherwise than on record: {found} instead of {recorded}."
            if exact:
                raise DataError(
                    f"{message} The same checkpoint, task, `deterministic` and code must be used, and env and policy "
                    "must be functions of the seed."
                )
            _log.warning("%s It is left out.", message)
            writers[seed].discard()
            del entries[seed]
    return list(entries.values())


def _played_by(rows: EpisodeTable) -> str:
    """Return the checkpoint id of the rows' policy, by which a report finds films of an older checkpoint."""
    return ", ".join(dict.fromkeys(rows.frame["policy"]))


def _write_index(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Write the index; films that are no longer in it, from an earlier evaluation, go."""
    names = {entry["file"] for entry in entries}
    for old in folder.glob("*.mp4"):
        if old.name not in names:
            old.unlink()
    write_atomically(folder / INDEX, json.dumps(entries, indent=1) + "\n")
