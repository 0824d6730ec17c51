"""Installs core without CUDA and the wheel into an empty environment, measures it, runs quickstart's small form there.

    python scripts/install_size.py              # PyTorch's own index must be reachable, as for `setup.sh --cpu core`
    python scripts/install_size.py --lend       # … where it is not: this environment lends its torch and torchvision
    python scripts/install_size.py --lend --count torch-2.13.0+cpu-cp311-….whl     # … and the size is another build's
    python scripts/install_size.py --record     # writes docs/results/install.json

Megabytes (10⁶ bytes, blocks of the disk) are those before anything runs: Python itself and bytecode are not in them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.utils import provenance
from scripts.wheel_beside import ROOT, SMALL, run, wheel

LOCK = ROOT / "requirements" / "core-cpu.txt"
PYTORCH = ("torch", "torchvision")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lend", action="store_true", help="do not install torch and torchvision, use those of here")
    parser.add_argument("--count", type=Path, help="with --lend: wheel of torch without CUDA whose size is counted")
    parser.add_argument("--record", action="store_true", help="write docs/results/install.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="install") as name:
        rows = measure(Path(name), lend=options.lend, count=options.count)
    for row in rows:
        print(f"{row.setting}: {row.metric} {row.value:g} {row.notes}")
    if options.record:
        write(rows, root=ROOT / "docs" / "results", keep=False)
    return int(rows[-1].value != 0)


def measure(folder: Path, *, lend: bool = False, count: Path | None = None) -> list[Evidence]:
    """Return the rows of one installation in `folder`: its size, and whether quickstart failed there."""
    command = provenance.command().replace(str(count), count.name) if count else None
    setting = "core_cpu_without_pytorch" if lend else "core_cpu"
    lent = ["torch and torchvision were lent, and are not counted"] if lend else []

    def row(metric: str, value: float, notes: list[str], setting: str = setting) -> Evidence:
        return measured(id="install", setting=setting, metric=metric, interval=value, notes="; ".join(notes),
                        command=command)  # fmt: skip

    python = install(folder / "env", wheel(ROOT, folder / "dist"), lend=lend)
    size = megabytes(folder / "env")
    rows = [row("megabytes", round(size, 1), lent)]
    if lend and count is not None:
        torch = sum(entry.file_size for entry in zipfile.ZipFile(count).infolist()) / 1e6
        vision = megabytes(site() / "torchvision", site() / "torchvision.libs")
        notes = [f"with {torch:.0f} MB of {count.name} and {vision:.0f} MB of a torchvision with CUDA"]
        rows += [row("megabytes", round(size + torch + vision, 1), notes, "core_cpu_estimated")]
    work = folder / "work"
    work.mkdir()
    done = run(python, "-m", "robopolicy", *SMALL, cwd=work, check=False)
    notes = [*lent, f"{megabytes(folder / 'env'):.0f} MB with the bytecode of all that ran"]
    notes += [" ".join(done.stderr[-500:].split())] if done.returncode else []
    return [*rows, row("quickstart_failed", int(done.returncode != 0), notes)]


def install(env: Path, built: Path, *, lend: bool) -> Path:
    """Make an environment of the lock without CUDA and our wheel; return its Python."""
    uv, python = Path(sys.executable).parent / "uv", env / "bin" / "python"
    run(uv, "venv", "--quiet", "--no-project", "--python", sys.executable, env, cwd=env.parent)
    lock, backend = LOCK, ("--torch-backend", "cpu")
    if lend:
        lock, backend = env.parent / "rest.txt", ()
        lock.write_text(without(LOCK.read_text(), PYTORCH))
        lend_pytorch(next((env / "lib").glob("python3*/site-packages")))
    common = ("pip", "install", "--quiet", "--no-deps", "--python", python)
    build = ("--build-constraints", ROOT / "requirements" / "build.txt")
    run(uv, *common, "--require-hashes", *backend, *build, "-r", lock, cwd=env.parent)
    run(uv, *common, built, cwd=env.parent)
    return python


def without(lock: str, names: tuple[str, ...]) -> str:
    """Return a lock file without some packages."""
    kept, lines = True, []
    for line in lock.splitlines():
        if line[:1].isalnum():
            kept = line.split("==")[0] not in names
        lines += [line] if kept else []
    return "\n".join(lines) + "\n"


def lend_pytorch(into: Path) -> None:
    """Link torch and torchvision of this environment into another, with NVIDIA's libraries where they need them."""
    tops = {
        file.parts[0] for name in PYTORCH for file in metadata.distribution(name).files or () if len(file.parts) > 1
    }
    for top in sorted(tops | {"nvidia"}):
        if top not in ("..", "__pycache__") and (site() / top).is_dir():
            (into / top).symlink_to(site() / top)


def site() -> Path:
    return Path(sysconfig.get_path("purelib"))


def megabytes(*folders: Path) -> float:
    """Return the room on disk of folders, in 10⁶ bytes; links are not followed, a file with two names counts once."""
    blocks = {}
    for folder in folders:
        for top, _, names in os.walk(folder):
            for name in names:
                found = os.lstat(os.path.join(top, name))
                blocks[found.st_ino] = found.st_blocks
    return 512 * sum(blocks.values()) / 1e6


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(map(str, error.cmd))}:\n{error.stderr[-2000:]}")
