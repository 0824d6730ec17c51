"""Generate docs/results.md and docs/img/results/*.svg from docs/results/*.json; with --check compare only (CI)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.core.errors import RobopolicyError
from robopolicy.reporting.results_page import generate, stale
from robopolicy.utils.atomic import write_atomically


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the files differ")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder that holds results/ (default: docs)")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            problems = stale(options.docs)
            for problem in problems:
                print(f"{problem}. Run: python scripts/results.py", file=sys.stderr)
            return 1 if problems else 0
        files = generate(options.docs)
        for old in (options.docs / "img" / "results").glob("*.svg"):
            if old not in files:
                old.unlink()
        for path, text in files.items():
            write_atomically(path, text)
            print(path.as_posix())
        return 0
    except RobopolicyError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
