"""Call a verb with a composed and checked config, in its run directory where it has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robopolicy.config.verb import Verb
from robopolicy.core.errors import UsageError

_RUNS = {"train": "run_dir", "quickstart": "out"}  # verbs that own a directory with one config for life


def call(verb: Verb, config: dict[str, Any]) -> Any:
    """Call a verb with a composed and checked config; a training becomes a run that can be resumed.

    A folder that a verb made, and in which nothing came of its start, is removed.
    """
    from robopolicy.config.compose import check_paths
    from robopolicy.config.instantiate import arguments_for

    check_paths(config)
    function = verb.load()
    arguments = arguments_for(function, config, f"`{verb.name}`", UsageError)
    folder = next((arguments[k] for k in ("run_dir", "out", "record") if isinstance(arguments.get(k), Path)), Path())
    if folder == Path():  # nothing is written; the import below takes seconds
        return function(**arguments)
    from robopolicy.runs.run_dir import has_checkpoint, has_stage, open_run, removed_if_nothing_came

    with removed_if_nothing_came(folder):
        if verb.name not in _RUNS:
            return function(**arguments)
        begun = has_stage if verb.name == "quickstart" else has_checkpoint
        with open_run(arguments[_RUNS[verb.name]], config, begun=begun):
            return function(**arguments)
