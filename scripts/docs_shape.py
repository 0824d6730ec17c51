"""Measures README and docs/: README's lines, words in a sentence, clicks from the start, the strict build of the site.

    python scripts/docs_shape.py                 # prints the figures and every place that misses a bar
    python scripts/docs_shape.py --record        # writes docs/results/docs_shape.json

Sentences are those of prose: code blocks, tables, headings, comments and pictures are left out; a link is its text, and
inline code is one word. A list item or paragraph ends a sentence. A word holds a letter or a digit. All pages count;
docs/results.md, which is generated, has few sentences outside its tables.
Clicks follow the links of the Markdown alone, from README.md and from docs/index.md: the larger number counts.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.reporting.result_rows import measured, write

ROOT = Path(__file__).resolve().parents[1]
README_LINES, SENTENCE_WORDS, CLICKS = 150, 20.0, 2
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"(?:[-*+]|\d+\.) +")
NO_PROSE = ("|", "#", ":::", "!!!", "???", "<", "===", "![", "[^")
END = re.compile(r"(?<=[.!?])[)*\"']*\s+(?=[^a-z\s])")
UNREACHED = 99  # clicks of a page that no link leads to


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write docs/results/docs_shape.json")
    options = parser.parse_args()
    lines = len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    means = {name(page): mean_words(page.read_text(encoding="utf-8")) for page in pages()}
    clicks = max_clicks()
    problems = build()
    print(f"README: {lines} lines (at most {README_LINES})")
    for page, mean in sorted(means.items(), key=lambda item: -item[1]):
        print(f"{mean:5.1f} words a sentence{' TOO LONG' if mean > SENTENCE_WORDS else ''}: {page}")
    for page, count in clicks.items():
        if count > CLICKS:
            print(f"{count} clicks from the start: {page}")
    print(f"strict build: {len(problems)} problems", *problems, sep="\n    ")
    longest = max(means, key=means.__getitem__)
    if options.record:
        found = {"readme_lines": lines, "pages": len(means), "mean_sentence_words": round(means[longest], 1),
                 "clicks": max(clicks.values()), "build_problems": len(problems)}  # fmt: skip
        notes = {"mean_sentence_words": f"the page with the longest sentences: {longest}"}
        rows = [
            measured(id="docs_shape", setting="docs", metric=m, interval=n, notes=notes.get(m, ""))
            for m, n in found.items()
        ]
        write(rows, root=ROOT / "docs" / "results")
    good = lines <= README_LINES and means[longest] <= SENTENCE_WORDS and max(clicks.values()) <= CLICKS
    return 0 if good and not problems else 1


def pages(root: Path = ROOT) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def name(page: Path, root: Path = ROOT) -> str:
    return page.relative_to(root).as_posix()


# ---- sentences ---------------------------------------------------------------------------------------------------


def mean_words(text: str) -> float:
    """Mean number of words in a sentence of a page; 0 for a page without prose."""
    counts = [count for sentence in sentences(text) if (count := count_words(sentence))]
    return fmean(counts) if counts else 0.0


def count_words(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page's prose, inline code replaced by one word."""
    for block in blocks(text):
        plain = re.sub(r"!\[[^]]*\]\([^)]*\)", "", block)
        plain = re.sub(r"(`+).+?\1", "Code", plain)
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain)
        plain = re.sub(r"[*_]{1,3}", "", plain)
        yield from END.split(plain)


def blocks(text: str) -> Iterator[str]:
    """Paragraphs and list items, each on one line."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)
    held: list[str] = []
    for line in [*text.splitlines(), ""]:
        stripped = line.strip().removeprefix(">").strip()  # quotations are prose
        item = ITEM.match(stripped)
        code = not held and not item and line.startswith("    ")
        if held and (not stripped or item or stripped.startswith(NO_PROSE)):
            yield " ".join(held)
            held = []
        if stripped and not code and not stripped.startswith(NO_PROSE):
            held.append(stripped[item.end() :] if item else stripped)


# ---- links and build ---------------------------------------------------------------------------------------------


def links(page: Path) -> Iterator[Path]:
    """Pages that a page links to."""
    for target in re.findall(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target:
            yield (page.parent / target).resolve()


def max_clicks(root: Path = ROOT) -> dict[str, int]:
    """{page: clicks from README.md or from docs/index.md, the larger of both}."""
    readme, *others = pages(root)
    starts = [clicks(readme), clicks(root / "docs" / "index.md")]
    return {name(page, root): max(start.get(page.resolve(), UNREACHED) for start in starts) for page in others}


def clicks(start: Path) -> dict[Path, int]:
    """{page: clicks from `start`}."""
    found, edge = {start.resolve(): 0}, [start.resolve()]
    for page in edge:  # grows while it is read
        for target in links(page):
            if target not in found and target.is_file():
                found[target] = found[page] + 1
                edge.append(target)
    return found


def build(root: Path = ROOT) -> list[str]:
    """Warnings and errors of the strict build of the site."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=env, check=False)
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    problems = [line for line in said if line.startswith(("WARNING", "ERROR"))]
    return problems or ([f"mkdocs ended with {done.returncode}: {said[-1:]}"] if done.returncode else [])


if __name__ == "__main__":
    sys.exit(main())
