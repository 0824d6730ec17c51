"""The version of the code that evaluates, in every row: robopolicy's, and that of the user's own modules."""

from __future__ import annotations

import functools
import hashlib
import sys
from pathlib import Path

from robopolicy.config.registry import admitted
from robopolicy.evaluation.episode_table import OWN
from robopolicy.utils.provenance import version


def code_version() -> str:
    """Return `0.1.0+g1a2b3c4d5e6f`, with modules of `--allow` `0.1.0+g1a2b3c4d5e6f.own1a2b3c4d`."""
    own = _digest(tuple(sorted({module.partition(".")[0] for module in admitted()})))
    return f"{version()}{OWN}{own}" if own else version()


@functools.cache
def _digest(modules: tuple[str, ...]) -> str:
    """Return a digest of the source of modules, as it was at the first call; "" where there is none."""
    sources = [source for name in modules for source in _sources(name)]
    whole = hashlib.sha256()
    for source in sources:
        whole.update(source.read_bytes())
    return whole.hexdigest()[:8] if sources else ""


def _sources(name: str) -> list[Path]:
    """Return the files of an imported module; of a package all of its modules."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return []
    path = Path(file)
    found = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    return [source for source in found if source.is_file()]
