"""Time and peak memory of `robopolicy quickstart` from nothing, after installation; --record writes them down."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.reporting.result_rows import measured, write

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write docs/results/quickstart.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "robopolicy", "quickstart", f"out={folder}/run"], cwd=ROOT, check=True)
        minutes = (time.monotonic() - began) / 60
        found = json.loads((Path(folder) / "run" / "residual" / "comparison.json").read_text())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    rates = [f"{100 * found[k]['value']:.1f}%" for k in ("rate_a", "rate_b")]
    notes = f"{rates[0]} to {rates[1]} over {found['episodes']} test episodes, seed 0"
    rows = [
        measured(id="quickstart", setting="quickstart", metric="minutes", interval=round(minutes, 2), notes=notes),
        measured(id="quickstart", setting="quickstart", metric="peak_rss_gib", interval=round(peak, 2)),
    ]
    for row in rows:
        print(f"{row.metric}: {row.value} ({row.notes})" if row.notes else f"{row.metric}: {row.value}")
    if options.record:
        write(rows, root=ROOT / "docs" / "results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
