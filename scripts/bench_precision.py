"""A VLA's update in bfloat16 against float32 (`policy.precision`), the same policy and batches; JSON lines.

    python scripts/bench_precision.py [--device cuda] [--threads 1] [--quick | --record]

vla_precision, settings update/<observations>x<noised chunks of each>/<px>, with /cuda behind on a GPU: `ratio` of
float32's time over bfloat16's, median over rounds in which the sides alternate, with its 95% bootstrap interval. A
picture of 16 px has 4 tokens, as good as none; one of 64 px has 64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from robopolicy.evaluation.statistics import bootstrap
from robopolicy.reporting.result_rows import Evidence, measured, write
from scripts.bench_vla import VLASide, data, policy

PRECISIONS = ("float32", "bfloat16")
SIZES = ((128, 8, 16), (256, 1, 16), (64, 8, 64))  # observations, chunks of each, pixels


def bench(rows: int, each: int, size: int, *, rounds: int, device: torch.device) -> Evidence:
    frames = data(2 * rows, size, 0, device)
    sides = [
        VLASide(policy(size, device, precision=p), frames, chunks=rows * each, each=each, steps=rounds + 1)
        for p in PRECISIONS
    ]
    pairs = []
    for i in range(rounds + 1):  # the first round warms up
        times = []
        for side in sides:
            began = perf_counter()
            side.update()
            times.append(perf_counter() - began)
        pairs += [times] if i else []
    full, half = (1e3 * statistics.median(t) for t in zip(*pairs, strict=True))
    return measured(
        id="vla_precision",
        setting=f"update/{rows}x{each}/{size}px" + ("" if device.type == "cpu" else f"/{device.type}"),
        metric="ratio",
        interval=bootstrap([[a / b] for a, b in pairs], statistic=statistics.median),
        notes=f"float32 {full:.0f}, bfloat16 {half:.0f} ms; {torch.get_num_threads()} threads",
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast")
    parser.add_argument("--record", action="store_true", help="write into docs/results")
    parser.add_argument("--threads", type=int, help="torch's")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    sizes, rounds = (((4, 2, 16),), 2) if options.quick else (SIZES, 9)
    found = [bench(*size, rounds=rounds, device=torch.device(options.device)) for size in sizes]
    for row in found:
        print(json.dumps(asdict(row), ensure_ascii=False))
    if options.record:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
