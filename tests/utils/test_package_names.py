"""The quick table of packages is the standard library's."""

from __future__ import annotations

import importlib.metadata
import sys

from robopolicy.utils import package_names


def test_it_is_what_the_standard_library_says():
    want = {name: set(packages) for name, packages in package_names._slow().items()}
    assert {name: set(packages) for name, packages in package_names.packages_distributions().items()} == want


def test_packages_declare_their_modules_or_list_their_files(tmp_path, monkeypatch):
    for name, files in {
        "declared": {"top_level.txt": "first second\n", "RECORD": "other/__init__.py,,\n"},
        "listed": {
            "RECORD": 'a/b.py,,\n"c,d/e.py",,\nsix.py,,\n../../bin/tool,,\nx-1.dist-info/RECORD,,\ndata,,\nbin/lost,,\n'
        },
    }.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        for file, text in {**files, "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}.items():
            (folder / file).write_text(text)
    for file in ("other/__init__.py", "a/b.py", "c,d/e.py", "six.py", "data"):  # bin/lost is not there
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    package_names.packages_distributions.cache_clear()
    try:
        found = package_names.packages_distributions()
    finally:
        package_names.packages_distributions.cache_clear()
    assert found == {n: ["declared"] for n in ("first", "second")} | {n: ["listed"] for n in ("a", "c,d", "six")}
    assert {k: sorted(v) for k, v in found.items()} == {k: sorted(v) for k, v in package_names._slow().items()}


def test_a_package_without_a_table_of_files_is_left_to_the_standard_library(tmp_path, monkeypatch):
    folder = tmp_path / "old-1.0.egg-info"
    folder.mkdir()
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: old\nVersion: 1.0\n")
    (folder / "SOURCES.txt").write_text("old/__init__.py\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    package_names.packages_distributions.cache_clear()
    try:
        assert package_names.packages_distributions() == package_names._slow()
    finally:
        package_names.packages_distributions.cache_clear()


def test_a_command_answers_by_it(monkeypatch, capsys):
    from robopolicy.cli.main import main

    monkeypatch.setattr(importlib.metadata, "packages_distributions", package_names._slow)
    assert main(["--help"]) == 0
    assert importlib.metadata.packages_distributions is package_names.packages_distributions
