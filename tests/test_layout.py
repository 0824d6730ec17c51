"""What holds for the repository as a whole: its layout, who may import whom, safe loading, clean lock files."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import house_shape

ROOT = Path(__file__).parents[1]
LINKED = ("sim", "world_models", "real", "configs")
PACKAGES = ("robopolicy", *LINKED)
FOLDERS = {*PACKAGES, "tests", "scripts", "docs", "examples", "requirements", ".ci", ".github"}
FILES = {
    "pyproject.toml", "README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "mkdocs.yml",
    ".python-version", ".gitignore", ".gitattributes",
}  # fmt: skip
LOCKS = ("core", "ros", "suites", "dev", "bench")  # nested


@cache
def files() -> tuple[Path, ...]:
    """Files that git has or would take, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return tuple(p for name in listed.stdout.split("\0") if name and (ROOT / (p := Path(name))).is_file())


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), filename=str(path))


def modules(*packages: str) -> list[Path]:
    return sorted(p.relative_to(ROOT) for package in packages for p in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Top-level packages that a module imports anywhere, in functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def test_top_level_is_fixed() -> None:
    folders = {p.parts[0] for p in files() if len(p.parts) > 1}
    loose = {str(p) for p in files() if len(p.parts) == 1}
    assert folders <= FOLDERS, f"new top-level folders: {sorted(folders - FOLDERS)}"
    assert loose <= FILES, f"new top-level files: {sorted(loose - FILES)}"
    assert set(PACKAGES) <= folders


def test_folders_of_the_top_are_parts_of_the_package() -> None:
    """`robopolicy.sim` has that one name, in a checkout, where a link names the folder, and in the wheel."""
    for folder in LINKED:
        link = ROOT / "robopolicy" / folder
        assert link.is_symlink() and link.readlink() == Path("..", folder)
        assert (ROOT / folder / "__init__.py").is_file(), f"{folder} is not a package"
    assert not {*LINKED} & {name for path in modules(*PACKAGES, "tests", "scripts") for name in imported(path)}


@pytest.mark.parametrize("places", ["circles", "upward_imports", "doubled_class_names", "private_words"])
def test_the_house_keeps_its_shape(places: str) -> None:
    """No modules import one another or those of a later room; a class name has one meaning; words are the field's."""
    assert list(house_shape.COUNTED[places]()) == []


@pytest.mark.parametrize(("places", "most"), [("long_modules", 10), ("long_functions", 8)])
def test_few_modules_and_functions_are_long(places: str, most: int) -> None:
    assert len(found := list(house_shape.COUNTED[places]())) <= most, found


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def unsafe(path: Path) -> Iterator[str]:
    """Ways to run code that a file, a checkpoint or a config brings along."""
    for name in imported(path):
        if name in UNSAFE_MODULES:
            yield f"import {name}"
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Call):
            continue
        call = ast.unparse(node.func)
        keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
        if call in ("eval", "exec"):
            yield f"{node.lineno}: {call}"
        elif call == "torch.load" and keywords.get("weights_only") != "True":
            yield f"{node.lineno}: torch.load without weights_only=True"
        elif call.endswith("read_pickle") or call in ("yaml.load", "yaml.unsafe_load"):
            yield f"{node.lineno}: {call}"
        elif keywords.get("allow_pickle") == "True":
            yield f"{node.lineno}: allow_pickle=True"


@pytest.mark.parametrize("path", modules(*PACKAGES), ids=str)
def test_nothing_unpickles(path: Path) -> None:
    assert list(unsafe(path)) == []


def test_unsafe_is_found(tmp_path: Path) -> None:
    """The scan itself: each way of running foreign code is seen, its safe form is not."""
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import pickle\nfrom dill import loads\ntorch.load(f)\nnp.load(f, allow_pickle=True)\npd.read_pickle(f)\n"
        "yaml.load(f)\neval(s)\ndef f():\n    import joblib\n"
    )
    assert len(list(unsafe(bad))) == 8
    good = tmp_path / "good.py"
    good.write_text("torch.load(f, weights_only=True)\nnp.load(f)\nyaml.safe_load(f)\nmodel.eval()\n")
    assert list(unsafe(good)) == []


def test_no_machine_paths() -> None:
    """Nothing refers to a folder that exists on one machine only."""
    private = re.compile(r"(?<![\w.])/(?:root|work|Users|home/(?!me/|you/)[a-z]\w*)/\w")
    found = []
    for path in files():
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:  # pictures, parquet
            continue
        lines = enumerate(text.splitlines(), 1)
        found += [f"{path}:{i}: {line.strip()[:80]}" for i, line in lines if private.search(line)]
    assert not found, "\n".join(found)


# ---- lock files ------------------------------------------------------------------------------------------------


@cache
def lock(name: str) -> tuple[str, ...]:
    return tuple((ROOT / "requirements" / f"{name}.txt").read_text().splitlines())


@cache
def pins(name: str) -> dict[str, str]:
    found = [Requirement(line.rstrip("\\ ")) for line in lock(name) if line[:1].isalnum()]
    return {requirement.name: str(requirement.specifier) for requirement in found}


@pytest.mark.parametrize("name", [*LOCKS, "robosuite15", "core-cpu", "cpu", "build", "uv"])
def test_locks_are_hashed_and_name_no_address(name: str) -> None:
    text = "\n".join(lock(name))
    assert "://" not in text
    assert not re.search(r"^--?(i|f|index|extra-index|find-links)", text, re.MULTILINE)
    for block in re.split(r"\n(?=\w)", text):
        if block[:1].isalnum():
            assert "--hash=sha256:" in block, block.splitlines()[0]
    assert all(pin.startswith("==") for pin in pins(name).values())


def test_lock_sets_are_nested() -> None:
    for smaller, larger in zip(LOCKS, LOCKS[1:], strict=False):
        assert pins(smaller).items() <= pins(larger).items()
    assert pins("dev")["uv"] == pins("uv")["uv"]


def test_core_without_cuda_is_core_but_for_pytorch() -> None:
    core, cpu = pins("core"), pins("core-cpu")
    unneeded = {"cmake", "torchcodec"}  # scripts/lock.sh says why
    wandb = {"wandb", "sentry-sdk", "gitpython", "gitdb", "smmap", "platformdirs", "protobuf"}
    cuda = {name for name in core if name.startswith(("nvidia-", "cuda-")) or name == "triton"}
    assert set(core) - set(cpu) == cuda | unneeded | wandb and not set(cpu) - set(core)
    changed = {name for name in cpu if cpu[name] != core[name]}
    assert changed == set(pins("cpu")) == {"torch", "torchvision"}
    assert all(cpu[name] == pins("cpu")[name] == f"{core[name]}+cpu" for name in changed)


def test_locks_cover_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {"core": project["dependencies"], **project["optional-dependencies"]}
    parts = set(declared) - set(LOCKS)  # extras of one suite each
    assert set(LOCKS) <= set(declared)
    assert pins("robosuite15")["robosuite"] == f"=={declared['robosuite15'][0].partition('==')[2]}"
    for name in parts - {"robosuite15"}:
        whole = {*declared["suites"], *declared["dev"], *declared["bench"]}
        assert set(declared[name]) <= whole, f"extra {name}: in no set that has a lock file (scripts/lock.sh)"
    for name in LOCKS:
        for line in declared[name]:
            requirement = Requirement(line)
            pin = pins(name).get(requirement.name.lower())
            assert pin, f"{requirement.name} is not locked in requirements/{name}.txt: run scripts/lock.sh"
            assert requirement.specifier.contains(pin.removeprefix("==")), f"{requirement} is locked at {pin}"
