"""Counts presets that configure, activate and drive by the messages which their makers' launch files give.

    python scripts/wiring_fixtures.py              # prints a line for each of tests/real/ros2/makers/*.yaml
    python scripts/wiring_fixtures.py --record     # writes docs/results/wiring_fixtures.json

The messages are modelled after the makers' published files, which each fixture names. No arm is run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.core.errors import ConfigError
from robopolicy.core.untrusted import read_yaml
from robopolicy.reporting.result_rows import measured, write

ROOT = Path(__file__).resolve().parents[1]
TEST = "tests/real/ros2/test_makers.py::test_a_preset_fits_what_its_makers_start"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write docs/results/wiring_fixtures.json")
    options = parser.parse_args()
    rows = []
    for file in sorted((ROOT / "tests/real/ros2/makers").glob("*.yaml")):
        command = [sys.executable, "-m", "pytest", "-q", "-n0", f"{TEST}[{file.stem}]"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        fits = done.returncode == 0
        given = read_yaml(file, error=ConfigError)
        shapes = "; ".join(f"{s['topic']} {len(s['names'])} joints at {s['rate_hz']} Hz" for s in given["states"])
        print(f"{'fits' if fits else 'does not fit'}: {file.stem}: {shapes}")
        rows.append(
            measured(id="wiring_fixtures", setting=file.stem, metric="fits", interval=float(fits), notes=shapes)
        )
    if options.record:
        write(rows, root=ROOT / "docs" / "results", keep=False)
    return 0 if all(row.value for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
