"""The notebooks of `examples/` run from top to bottom, and show what they are there to show."""

from __future__ import annotations

import base64
import io
import os
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image
from support.markdown import ROOT
from support.published import copy_examples, embedded_engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_examples(tmp_path_factory.mktemp("notebooks"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with embedded_engine(tmp_path_factory.mktemp("state")) as environment:
        yield environment


def _run(name: str, examples: Path, environment: dict[str, str]) -> list[Any]:
    """Execute a notebook and give all of its outputs; `NOTEBOOKS_OUT` keeps it, to look at."""
    notebook = nbformat.read(examples / f"{name}.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": examples}}
    )
    try:
        client.execute(env=environment)
    finally:
        if folder := os.environ.get("NOTEBOOKS_OUT"):
            nbformat.write(notebook, f"{folder}/{name}.ipynb")
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def _printed(outputs: list[Any]) -> str:
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


def _pictures(outputs: list[Any]) -> list[Image.Image]:
    return [
        Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"])))
        for output in outputs
        if "image/png" in output.get("data", {})
    ]


def test_all_notebooks_are_run_here() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "folder_of_scans",
        "langchain_rag_citations",
        "llama_index_ingestion",
    ]


@pytest.mark.timeout(600)
def test_rag_with_citations(examples: Path, environment: dict[str, str]) -> None:
    outputs = _run("langchain_rag_citations", examples, environment)
    printed = _printed(outputs)
    assert "85.40" in printed
    assert "[samples/scan.pdf, page 1]" in printed
    assert "ten books" in printed
    assert "guided by scent" in printed
    pictures = _pictures(outputs)
    assert len(pictures) == 3
    for picture in pictures:
        # Pages are grey; only a mark has colour.
        colours = [pixel for _, pixel in picture.convert("RGB").getcolors(2**24) or []]
        assert any(max(colour) - min(colour) > 60 for colour in colours)


@pytest.mark.timeout(600)
def test_ingestion_pipeline(examples: Path, environment: dict[str, str]) -> None:
    printed = _printed(_run("llama_index_ingestion", examples, environment))
    assert "0 new nodes" in printed
    assert "{'table.pdf'}" in printed


@pytest.mark.timeout(600)
def test_folder_of_scans(examples: Path, environment: dict[str, str]) -> None:
    printed = _printed(_run("folder_of_scans", examples, environment))
    assert "broken.pdf" in printed
    assert "page.pdf" in printed
    assert "2 ok from the cache" in printed
