"""Make a LeRobot dataset that others recorded ready for training (`robopolicy data import`)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import pydantic

from robopolicy.core.command_line import argument
from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.types import ActionSpec
from robopolicy.core.untrusted import checked, read_yaml
from robopolicy.datasets.action_facts import ASKED, ActionFacts, join_facts
from robopolicy.datasets.foreign import copied, fetch, format_of, is_hub
from robopolicy.datasets.infer import Fact, infer_facts, infer_names
from robopolicy.datasets.lerobot_reader import annotate_dataset
from robopolicy.datasets.metadata import META_FILE, RESTORE
from robopolicy.datasets.remarks import remarks
from robopolicy.datasets.source import OLD, DatasetInfo

Outcomes = Literal["recorded", "success"]


class FactsFile(pydantic.BaseModel):
    """A YAML file of the keys of `data import`."""

    model_config = pydantic.ConfigDict(extra="forbid")

    action: ActionFacts = ActionFacts()
    outcomes: Outcomes | None = None
    rename: dict[str, str | None] | None = None


def data_import(
    *,
    dataset: Path,
    out: Path | None = None,
    action: ActionFacts | None = None,
    outcomes: Outcomes | None = None,
    rename: dict[str, str | None] | None = None,
    facts: Path | None = None,
) -> Path:
    """Write down how to read a LeRobot dataset of others: what its actions mean, and which episodes succeeded.

    Facts are taken from the keys, then from the file `facts`, then from earlier answers where no copy is made, and else
    inferred from names and numbers of the dataset.

    Args:
        dataset: a LeRobotDataset (v3, or v2.1, which is converted), or hub:<owner>/<name>[@<revision>].
        out: folder of a copy; needed for a dataset of the hub, or of v2.1. None: the dataset itself is annotated. A
            dataset that robopolicy recorded is only copied there.
        action: what an action means, as in ActionSpec; what is left out is inferred.
        outcomes: success: every episode reaches the goal; recorded: as the dataset says, if it does. None: recorded.
        rename: {the dataset's key: ours} of observations, null to leave one out. Cameras that are not named get the
            names that policies expect.
        facts: YAML file with `action`, `outcomes` and `rename`, for datasets that are recorded again and again.

    Returns:
        The folder to train on.

    Raises:
        ConfigError: facts are missing; all of them are asked for, by key.
        DataError: no dataset, a damaged one, or one that cannot be fetched or converted.
    """
    source = fetch(str(dataset)) if is_hub(dataset) else dataset
    version = format_of(source)
    if not version.startswith("v3.") and version != OLD:
        raise DataError(
            f"dataset={dataset}: LeRobot format {version}, expected v3.x or {OLD}. Convert it first to {OLD}, by the "
            "converter of an older LeRobot."
        )
    if out is None and (is_hub(dataset) or not version.startswith("v3.")):
        why = "fetched" if is_hub(dataset) else f"converted from LeRobot's {version}"
        raise ConfigError(f"out: is needed, as the dataset is {why}. Add {argument('out', f'data/{_name(dataset)}')}")
    given = FactsFile() if facts is None else read_facts(facts)
    merged = ActionFacts(**{**given.action.given, **(action.given if action else {})})
    with copied(source, out) if out is not None else nullcontext(source) as folder:
        opened = DatasetInfo.open(folder, {})
        if _is_ours(opened) and out is not None and not (merged.given or outcomes or rename or facts):
            print(f"{out}: recorded by robopolicy, {opened.info.total_episodes} episodes, fetched as it is")
            return out
        earlier = _earlier_answers(opened) if out is None else FactsFile()  # a copy may bring a stranger's
        kept = {k: v for k, v in earlier.action.given.items() if k not in merged.given}
        kept_names = {k: v for k, v in (earlier.rename or {}).items() if k in opened.columns}
        renamed = {**infer_names(opened), **kept_names, **(given.rename or {}), **(rename or {})}
        opened = DatasetInfo.open(folder, renamed)
        spec, inferred = _action(opened, ActionFacts(**{**kept, **merged.given}), dataset, out)
        chosen = outcomes or given.outcomes or earlier.outcomes or "recorded"
        said = remarks(opened, with_outcomes=chosen == "recorded")  # refuses before anything is written
        annotate_dataset(folder, action_spec=spec, rename=renamed, outcomes=chosen, inferred=inferred)
    _report(out or source, opened, spec, inferred, kept, renamed, chosen, version, said)
    return out or source


def read_facts(file: Path) -> FactsFile:
    """Read a YAML file of facts.

    Raises:
        ConfigError: no such file, or a key or value that is unknown.
    """
    if not file.is_file():
        raise ConfigError(f"facts={file}: no such file. Expected YAML with action, outcomes or rename.")
    return checked(FactsFile, read_yaml(file, error=ConfigError), f"facts={file}", error=ConfigError)


def mending_command(source: DatasetInfo) -> str:
    """Return the command that says what a dataset's actions mean, with the keys that it would ask for.

    Raises:
        DataError: it has no actions that are vectors of finite numbers.
    """
    known = {k: fact.value for k, fact in infer_facts(source).items()}
    asked = join_facts(known, ActionFacts(), source.columns["action"].shape[0], "action")[1]
    return command(source.root, None, asked)


def command(dataset: Path, out: Path | None, keys: list[str]) -> str:
    """Return the command that imports a dataset, with places for what is missing."""
    parts = [argument("dataset", dataset), *([argument("out", out)] if out else [])]
    return " ".join(["robopolicy data import", *parts, *(f"action.{k}=…" for k in keys)])


def _action(
    source: DatasetInfo, given: ActionFacts, dataset: Path, out: Path | None
) -> tuple[ActionSpec, dict[str, str]]:
    """Return the meaning of the actions, and the reasons of its inferred fields."""
    if _is_ours(source):
        raise DataError(f"{dataset}: was recorded by robopolicy and says already what its actions mean. Train on it.")
    found: dict[str, Fact] = infer_facts(source)
    dim = source.columns["action"].shape[0]
    fields, unknown = join_facts({k: fact.value for k, fact in found.items()}, given, dim, "action")
    if unknown:
        asked = "".join(f"\n  action.{k}={ASKED[k].format(dim=dim)}" for k in unknown)
        raise ConfigError(
            f"{dataset}: does not show what its actions mean. Its {dim} channels are {', '.join(fields['names'])}. "
            f"Repeat {command(dataset, out, unknown)} with:{asked}"
        )
    return ActionSpec(**fields), {k: fact.reason for k, fact in found.items() if k not in given.given}


def _earlier_answers(source: DatasetInfo) -> FactsFile:
    """Return the facts that earlier calls were given about a dataset, without those that they inferred."""
    meta = source.meta
    if meta is None or _is_ours(source):
        return FactsFile()
    inferred = meta.provenance.get("inferred")
    if not isinstance(inferred, dict):
        raise DataError(
            f"{source.root / META_FILE}: provenance.inferred: expected an object, found {inferred!r}. {RESTORE}"
        )
    stated = {k: v for k, v in asdict(meta.action).items() if k not in inferred}
    if "gripper" in stated and stated["gripper"] is None:
        stated["gripper"] = "none"
    return FactsFile(action=ActionFacts(**stated), outcomes=meta.outcomes, rename=meta.rename or None)


def _is_ours(source: DatasetInfo) -> bool:
    """Return whether robopolicy recorded a dataset, which then says what its actions mean."""
    return source.meta is not None and source.meta.provenance.get("annotated") is not True


def _report(
    path: Path, source: DatasetInfo, spec: ActionSpec, inferred: dict[str, str], kept: dict[str, Any],
    rename: dict[str, str | None], outcomes: Outcomes, version: str, said: list[str],
) -> None:  # fmt: skip
    print(f"{path}: {source.info.total_episodes} episodes, {source.info.total_frames} frames at {source.fps:g} Hz"
          + ("" if version.startswith("v3.") else f", converted from {version}"))  # fmt: skip
    for name, reason in inferred.items():
        print(f"  inferred action.{name}={_shown(getattr(spec, name))}: {reason}")
    for name in kept:
        print(f"  kept action.{name}={_shown(getattr(spec, name))}, as it was given earlier")
    if outcomes == "success":
        print("  outcomes=success: every episode reaches the goal")
    for old, new in rename.items():
        print(f"  {old} is {'left out' if new is None else f'read as {new}'}")
    for remark in said:
        print(f"  {remark}")
    if outcomes == "recorded" and not {"next.success", "next.reward"} & set(source.columns):
        print("  no success is recorded: imitation needs none; for reinforcement learning, if every episode reaches "
              f"the goal: {command(path, None, [])} outcomes=success")  # fmt: skip
    limits = "Limits are those of the data: give action.low and action.high of the arm before you train. "
    print(f"{limits if 'low' in inferred else ''}A wrong fact is replaced by its key: "
          f"{command(path, None, [])} action.<fact>=…\n"
          f"Next: robopolicy data check {argument('dataset', path)}; robopolicy train {argument('dataset', path)} "
          "run_dir=runs/bc")  # fmt: skip


def _shown(value: Any) -> str:
    """Write a value as the command line takes it."""
    if isinstance(value, tuple):
        return f"[{','.join(f'{v:.4g}' if isinstance(v, float) else str(v) for v in value)}]"
    return "none" if value is None else str(value) or "''"


def _name(dataset: Path) -> str:
    return dataset.name.partition("@")[0]
