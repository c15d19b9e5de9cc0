"""The Markdown that the project publishes: its pages, their code blocks, headings and links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<mark>```+|~~~+)(?P<info>.*)$")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?)(?: *\{#(?P<id>[\w.-]+)\})? *#*$")
_EXPLICIT_ID = re.compile(r"""<a (?:id|name)=["'](?P<id>[^"']+)["']""")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)(?: \"[^\"]*\")?\)")
_REFERENCE = re.compile(r"^\[[^\]]+\]: (?P<target>\S+)")


def pages() -> list[Path]:
    """Give every page that people read."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the words after it, its text, and the line it starts at."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Give the fenced blocks of a page, also those that are indented into a list or a tab."""
    found = []
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    for number, line in lines:
        if not (start := _FENCE.match(line)):
            continue
        indent, body = len(start["indent"]), []
        for _, inner in lines:
            if inner.strip() == start["mark"]:
                break
            body.append(inner[indent:])
        else:
            message = f"{page.name}:{number}: the block does not end"
            raise AssertionError(message)
        language, *words = start["info"].split() or [""]
        found.append(Block(language, tuple(words), "\n".join(body) + "\n", number + 1))
    return found


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    mark = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if fence := _FENCE.match(line):
            if not mark:
                mark = fence["mark"]
            elif line.strip() == mark:
                mark = ""
        elif not mark:
            yield number, line


def links(page: Path) -> list[tuple[int, str]]:
    """Give line and target of each link and picture outside code."""
    found = []
    for number, line in _prose(page):
        text = re.sub(r"`[^`]*`", "``", line)
        found += [(number, link["target"]) for link in _LINK.finditer(text)]
        found += [(number, link["target"]) for link in _REFERENCE.finditer(text)]
    return found


def anchors(page: Path) -> set[str]:
    """Give the places of a page that a link can name."""
    found: set[str] = set()
    for _, line in _prose(page):
        found.update(match["id"] for match in _EXPLICIT_ID.finditer(line))
        if heading := _HEADING.match(line):
            found.add(heading["id"] or _slug(heading["text"]))
    return found


def _slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
