"""Call a verb with a composed and checked config, in its run directory where it has one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from robopolicy.config.verb import Verb
from robopolicy.core.errors import UsageError

_RUNS = {"train": "run_dir", "quickstart": "out"}  # verbs that own a directory with one config for life
_WRITTEN = ("run_dir", "out", "record")  # keys of the folder that a verb writes to
# Verbs that check their paths themselves: pipeline after the keys of its stages; in arm new `base` is a link.
CHECKS_PATHS = frozenset({"pipeline", "arm new"})


def call(verb: Verb, config: dict[str, Any]) -> Any:
    """Call a verb with a composed and checked config; a training becomes a run that can be resumed.

    A folder that a verb made, and in which nothing came of its start, is removed.
    """
    from robopolicy.config.compose import check_paths
    from robopolicy.config.instantiate import arguments_for

    if empty := [key for key in _WRITTEN if config.get(key) == ""]:
        raise UsageError(f"{empty[0]}: is empty. Give a folder")
    if verb.name not in CHECKS_PATHS:
        check_paths(config)
    function = verb.load()
    arguments = arguments_for(function, config, f"`{verb.name}`", UsageError)
    key = next((k for k in _WRITTEN if isinstance(arguments.get(k), Path)), None)
    if key is not None and arguments[key] == Path():  # the current folder, by its name
        arguments[key] = arguments[key].resolve()
    if verb.name in _RUNS:
        from robopolicy.runs.sweep_job import check_no_sweep

        check_no_sweep(arguments[_RUNS[verb.name]])
    if "WORLD_SIZE" in os.environ:
        from robopolicy.utils import ranks

        if ranks.expected() > 1:
            return _call_rank(verb, function, arguments, config)
    if key is None:  # nothing is written; the import below takes seconds
        return function(**arguments)
    from robopolicy.runs.run_dir import has_checkpoint, has_stage, open_run, removed_if_nothing_came

    with removed_if_nothing_came(arguments[key]):
        if verb.name not in _RUNS:
            return function(**arguments)
        begun = has_stage if verb.name == "quickstart" else has_checkpoint
        with open_run(arguments[_RUNS[verb.name]], config, begun=begun, key=_RUNS[verb.name]):
            return function(**arguments)


def _call_rank(verb: Verb, function: Any, arguments: dict[str, Any], config: dict[str, Any]) -> Any:
    """Train as one of the processes that torchrun started."""
    if verb.name != "train":
        raise UsageError(f"`{verb.name}` works in one process; torchrun starts several for `train` alone.")
    from robopolicy.runs.run_dir import has_checkpoint, open_run, removed_if_nothing_came
    from robopolicy.training.ranked import joined
    from robopolicy.utils import ranks

    with joined(config):
        if ranks.rank():
            return function(**arguments)
        run_dir = arguments[_RUNS[verb.name]]
        with removed_if_nothing_came(run_dir), open_run(run_dir, config, begun=has_checkpoint):
            return function(**arguments)
