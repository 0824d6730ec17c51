"""`robopolicy <verb> [hydra overrides]`. Exit codes: 0 done, 1 failed, 2 wrong command line, 130 interrupted."""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import select
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robopolicy.cli.run_verb import CHECKS_PATHS, call
from robopolicy.cli.verbs import OPTIONS, VERBS, find_verb
from robopolicy.core.errors import RobopolicyError, UsageError, closest
from robopolicy.utils import package_names

_USAGE = """usage: robopolicy <verb> [key=value ...] [--help] [--cfg]

{verbs}

options, after the verb:
  --help              groups, their options, and all keys with their defaults
  --cfg               print the resolved configuration and stop
  --multirun          train once for each combination of values: seed=0,1 algo.tau=0.005,0.01
  --config-dir DIR    further config groups of your own (DIR/task/mine.yaml → task=mine); repeatable
  --allow MODULE      let configs name what your own module registers; repeatable
  --debug             show a traceback where there would be a message

robopolicy --version   version and commit
robopolicy --completion   a script for your shell: eval "$(robopolicy --completion)" in ~/.bashrc

The same command on the same run_dir resumes. A first run: robopolicy quickstart"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `robopolicy` command."""
    package_names.answer_quickly()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # e.g. – in Latin-1, or a path that is no UTF-8
    try:
        done = _main(argv)
        if sys.stdout is not None:  # closed by `>&-`
            sys.stdout.flush()
        return done
    except BrokenPipeError:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _, event in watch.poll(0)):
            raise  # another pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # The reader has closed the pipe, e.g. `head`.
        return 141  # exit code of a shell for SIGPIPE


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, VERBS))
        print(_USAGE.format(verbs="\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from robopolicy.utils.provenance import version

        print(f"robopolicy {version()}")
        return 0
    if arguments[0] in ("--completion", "--complete"):
        from robopolicy.cli.completion import SCRIPT, candidates

        print("\n".join(candidates(" ".join(arguments[1:])) if arguments[0] == "--complete" else [SCRIPT]))
        return 0
    debug = "--debug" in arguments
    words = 2 if " ".join(arguments[:2]) in VERBS else 1
    name = " ".join(arguments[:words])
    failed: Exception | None = None
    try:
        return _run(name, arguments[words:])
    except KeyboardInterrupt:
        command = shlex.join([_program(), *arguments])
        _say(f"Interrupted. {VERBS[name].interrupted if name in VERBS else ''}:\n  {command}")
        return 130
    except RobopolicyError as error:
        failed = error
        if debug:
            raise
        _say(f"error: {error}")
        return 2 if isinstance(error, UsageError) else 1
    except OSError as error:
        failed = error
        if debug or isinstance(error, BrokenPipeError):
            raise
        full = " Free some space, then repeat the command." if error.errno == errno.ENOSPC else ""
        _say(f"error: {error}.{full}")
        return 1
    except Exception as error:
        failed = error
        raise
    finally:
        if failed is not None and name == "train":
            _tell_ranks(failed)


def _run(name: str, arguments: list[str]) -> int:
    from robopolicy.config.compose import compose

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        options, overrides = _options().parse_known_args(arguments)
    except argparse.ArgumentError as error:
        usage = "`robopolicy --help` shows how each option is written"
        raise UsageError(f"{error.argument_name}: {error.message}. {usage}") from None
    for text in overrides:
        if text.startswith("-"):
            raise UsageError(f"unknown option {text!r}. {closest(text, OPTIONS)}")
    verb = find_verb(name)
    if options.allow:
        from robopolicy.config.compose import check_paths
        from robopolicy.config.registry import allow

        runs = not (options.help or options.cfg or options.multirun)
        if verb.config and runs and name not in CHECKS_PATHS:  # before the import of the user's code, which is slow
            check_paths(compose(verb, overrides, config_dirs=options.config_dir, checked=False))
        sys.path.insert(0, str(Path.cwd()))  # a package beside the user, not installed
        for module in options.allow:
            allow(module)
    if options.help:
        from robopolicy.config.help import verb_help
        from robopolicy.config.sweeps import first_job

        if options.multirun:
            overrides = first_job(overrides, options.config_dir)
        print(verb_help(verb, overrides, options.config_dir))
        return 0
    if options.multirun:
        from robopolicy.cli.sweep import sweep

        _check_one_process()
        return sweep(verb, overrides, config_dirs=options.config_dir, show=options.cfg)
    if not verb.config:
        if options.cfg or options.config_dir:
            given = "--cfg" if options.cfg else "--config-dir"
            raise UsageError(f"{given}: `{name}` has no configuration. Leave the option out")
        return int(verb.load()(overrides))
    config = compose(verb, overrides, config_dirs=options.config_dir, checked=not options.cfg)
    if options.cfg:
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml(config), end="")
        return 0
    call(verb, config)
    return 0


def invoke(name: str, *overrides: str, config_dirs: Sequence[Path] = (), **settings: Any) -> Any:
    """Call a verb from Python as the command line does.

    Args:
        config_dirs: folders with groups of the user's own, as --config-dir names them.
        **settings: values of top-level keys.
    """
    from robopolicy.config.compose import compose

    package_names.answer_quickly()
    verb = find_verb(name)
    return call(verb, compose(verb, overrides, settings=settings, config_dirs=config_dirs))


def _tell_ranks(error: Exception) -> None:
    """Tell the other ranks that this one failed: they would wait for it."""
    if "WORLD_SIZE" in os.environ:  # the import below takes seconds
        from robopolicy.utils import ranks

        ranks.tell_failure(error)


def _check_one_process() -> None:
    """Refuse a sweep that torchrun starts several times.

    Raises:
        UsageError: it does.
    """
    if "WORLD_SIZE" in os.environ:
        from robopolicy.utils import ranks

        if (count := ranks.expected()) > 1:
            raise UsageError(
                f"--multirun: torchrun starts several processes for one training, here {count}. Start a sweep without "
                "it."
            )


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--cfg", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--config-dir", action="append", default=[], type=Path)
    parser.add_argument("--allow", action="append", default=[])
    return parser


def _program() -> str:
    """Return the command that calls this program again: its path, where the shell does not find its name."""
    called = Path(sys.argv[0])
    if called.name != "robopolicy" or shutil.which("robopolicy") is not None:
        return "robopolicy"
    inside = called.absolute().is_relative_to(Path.cwd())
    return str(called.absolute().relative_to(Path.cwd())) if inside else str(called)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
