from __future__ import annotations

import json
import pydoc
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from support.markdown import ROOT, anchors, links, pages

if TYPE_CHECKING:
    from pathlib import Path


def _problem(page: Path, target: str) -> str | None:
    if target.startswith(("https://", "http://", "mailto:")):
        return None  # no network in tests
    path, _, anchor = target.partition("#")
    file = (page.parent / unquote(path)).resolve() if path else page
    if not file.is_relative_to(ROOT):
        return "leaves the repository"
    if not file.exists():
        return "is not there"
    if not anchor or file.suffix != ".md":
        return None
    if anchor.startswith("deepseek_ocr_loaders"):  # made by mkdocstrings
        return None if pydoc.locate(anchor) is not None else "names nothing of the package"
    return None if anchor in anchors(file) else "names no heading of that page"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    problems = [
        f"{page.relative_to(ROOT)}:{line}: {target} {problem}"
        for line, target in links(page)
        if (problem := _problem(page, target))
    ]
    assert not problems, "\n".join(problems)


def test_pages_are_found_with_their_links() -> None:
    # A pattern that matches nothing would make the test above pass for ever.
    found = {page.name: links(page) for page in pages()}
    assert len(found) > 10
    assert ("docs/parameters.md" in [target for _, target in found["README.md"]]) is True
    assert sum(map(len, found.values())) > 50


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("docs/gpu.md#what-the-host-needs", None),
        ("docs/gpu.md#what-nobody-needs", "names no heading of that page"),
        ("docs/none.md", "is not there"),
        ("../elsewhere.md", "leaves the repository"),
        ("https://example.invalid/", None),
    ],
)
def test_a_wrong_link_is_told(target: str, problem: str | None) -> None:
    assert _problem(ROOT / "README.md", target) == problem


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [page.name for page in pages() if page.name != "README.md" and page.name not in text]
    assert not missing


def test_notebooks_in_git_have_no_output() -> None:
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        kept = [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")]
        assert not kept, f"{notebook.name}: strip the output of {kept}"
