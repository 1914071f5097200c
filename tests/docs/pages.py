"""The pages of the documentation, and what can be asked of one.

A page is also a program: its blocks marked ```python, in order, as one script. What a reader need
not see, such as set-up and assertions, stands between them in comments that begin `<!-- python`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path for path in sorted((*ROOT.glob("*.md"), *DOCS.glob("*.md")))
}
TEXTS = {name: path.read_text() for name, path in PAGES.items()}

_CODE = {"```python": "```", "<!-- python": "-->"}
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_TEST = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)


def script(text: str) -> str:
    """The program in a page, each line where it stands, so that a traceback names the right one."""
    lines, end = [], None
    for line in text.splitlines():
        if end is None:
            end = _CODE.get(line)
            lines.append("")
        elif line == end:
            end = None
            lines.append("")
        else:
            lines.append(line)
    return "\n".join(lines).rstrip()


def blocks(text: str, language: str) -> list[str]:
    """The contents of the fenced blocks in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def headings(text: str) -> list[str]:
    """The headings as they are written, without those that only a code block has."""
    return _HEADING.findall(_FENCED.sub("", text))


def anchor(heading: str) -> str:
    """What a link to this heading says behind its #."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def links(text: str) -> list[str]:
    """Where the page's links lead that stay in this repository."""
    return [target for target in _LINK.findall(_FENCED.sub("", text)) if "://" not in target]


def rows(text: str) -> Iterator[list[str]]:
    """The rows of all tables, as cells."""
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@functools.cache
def existing_tests() -> set[str]:
    """The names of all tests, those of the contract included."""
    folders = (ROOT / "tests", ROOT / "src" / "oncekey" / "testing")
    return {
        name
        for folder in folders
        for path in folder.rglob("*.py")
        for name in _TEST.findall(path.read_text())
    }


def named_tests(text: str) -> list[str]:
    """The tests that a text names, in backticks."""
    return re.findall(r"`(test_\w+)`", text)
