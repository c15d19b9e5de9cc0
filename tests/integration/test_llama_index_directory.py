"""LlamaIndex's SimpleDirectoryReader with ours as file extractor."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from contract.stage import written_pdf
from llama_index.core import SimpleDirectoryReader
from support.fault_server import FaultServer, marked_image, markers_in, status

from deepseek_ocr_loaders import DeepSeekOCRReader
from deepseek_ocr_loaders.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "in"
    for name, numbers in {"a": [1, 2, 3], "b": [4], "c/a": [5, 6]}.items():
        path = root / f"{name}.pdf"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(written_pdf(numbers))
    marked_image(7).save(root / "d.png")
    return root


def _directory(folder: Path, server: FaultServer, **options: Any) -> SimpleDirectoryReader:
    reader = DeepSeekOCRReader(base_url=server.base_url, max_concurrency=4)
    return SimpleDirectoryReader(
        **{
            "input_dir": folder,
            "recursive": True,
            "file_extractor": {".pdf": reader, ".png": reader},
            "raise_on_error": True,
            **options,
        }
    )


def _numbers(documents: list[Any]) -> list[int]:
    return [number for document in documents for number in markers_in(document.text)]


def test_fault_47_synchronous(folder: Path, server: FaultServer) -> None:
    documents = _directory(folder, server).load_data()
    assert sorted(_numbers(documents)) == [1, 2, 3, 4, 5, 6, 7]
    for document in documents:
        assert document.metadata["file_path"].startswith(str(folder))
        assert document.metadata["file_name"] in {"a.pdf", "b.pdf", "d.png"}
        assert {"file_type", "file_size", "last_modified_date"} <= set(document.metadata)
        assert document.metadata["page_label"] == str(document.metadata["page_number"])
        for keys in (document.excluded_embed_metadata_keys, document.excluded_llm_metadata_keys):
            assert {"file_size", "last_modified_date", "layout"} <= set(keys)
    assert len({document.id_ for document in documents}) == 7


def test_one_file_after_the_other(folder: Path, server: FaultServer) -> None:
    batches = list(_directory(folder, server).iter_data())
    assert sorted(len(batch) for batch in batches) == [1, 1, 2, 3]


@pytest.mark.parametrize("workers", [None, 2])
async def test_fault_47_asynchronous(
    folder: Path, server: FaultServer, workers: int | None
) -> None:
    documents = await _directory(folder, server).aload_data(num_workers=workers)
    assert sorted(_numbers(documents)) == [1, 2, 3, 4, 5, 6, 7]


async def test_fifty_files_at_once_keep_to_one_limit(tmp_path: Path, server: FaultServer) -> None:
    for number in range(50):
        (tmp_path / f"{number:02}.pdf").write_bytes(written_pdf([number, 100 + number]))
    server.seconds = 0.01
    documents = await _directory(tmp_path, server).aload_data()
    assert sorted(_numbers(documents)) == [*range(50), *range(100, 150)]
    assert server.most_in_flight <= 4


def test_synchronous_inside_a_running_loop(folder: Path, server: FaultServer) -> None:
    async def cell() -> list[Any]:
        return _directory(folder, server).load_data()

    assert sorted(_numbers(asyncio.run(cell()))) == [1, 2, 3, 4, 5, 6, 7]


def test_fault_48_in_two_worker_processes(folder: Path, server: FaultServer) -> None:
    documents = _directory(folder, server).load_data(num_workers=2)
    assert sorted(_numbers(documents)) == [1, 2, 3, 4, 5, 6, 7]
    assert [d.to_dict() for d in documents] == [
        d.to_dict() for d in _directory(folder, server).load_data()
    ]


def test_fault_47_a_memory_file_system(folder: Path, server: FaultServer) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe("/papers/a.pdf", (folder / "a.pdf").read_bytes())
    fs.pipe("/papers/sub/b.pdf", (folder / "b.pdf").read_bytes())
    try:
        documents = _directory(folder, server, input_dir="/papers", fs=fs).load_data()
        loaded = asyncio.run(_directory(folder, server, input_dir="/papers", fs=fs).aload_data())
    finally:
        fs.rm("/papers", recursive=True)
    assert _numbers(documents) == _numbers(loaded) == [1, 2, 3, 4]
    assert {d.metadata["file_name"] for d in documents} == {"a.pdf", "b.pdf"}


def test_fault_47_filename_as_id(folder: Path, server: FaultServer) -> None:
    documents = _directory(folder, server, filename_as_id=True).load_data()
    assert [d.id_ for d in documents if d.metadata["file_path"] == str(folder / "a.pdf")] == [
        f"{folder}/a.pdf_part_{part}" for part in range(3)
    ]


def test_fault_47_file_metadata(folder: Path, server: FaultServer) -> None:
    def describe(path: str) -> dict[str, Any]:
        return {"department": "law", "file_path": path}

    documents = _directory(folder, server, file_metadata=describe).load_data()
    assert {d.metadata["department"] for d in documents} == {"law"}
    assert {d.metadata["page_number"] for d in documents} == {1, 2, 3}


def test_fault_47_errors_are_seen(folder: Path, server: FaultServer) -> None:
    server.script = lambda request: status(400, "no such luck") if request.marker == 4 else None
    with pytest.raises(Exception, match="Error loading file") as caught:
        _directory(folder, server).load_data()
    assert isinstance(caught.value.__cause__, RequestError)
    assert "no such luck" in str(caught.value.__cause__)
    kept = _directory(folder, server, raise_on_error=False).load_data()
    assert sorted(_numbers(kept)) == [1, 2, 3, 5, 6, 7]


def test_fault_46_the_same_on_every_load(folder: Path, server: FaultServer) -> None:
    def state() -> str:
        documents = _directory(folder, server).load_data()
        return json.dumps([(d.id_, d.hash) for d in documents])

    assert state() == state()


def test_fault_46_the_same_bytes_in_two_folders(folder: Path, server: FaultServer) -> None:
    shutil.copy(folder / "a.pdf", folder / "c" / "copy.pdf")
    documents = _directory(folder, server).load_data()
    # The id is of the content: a copy is the same document, its path tells where it lies.
    paths = {d.metadata["file_path"] for d in documents if 1 in markers_in(d.text)}
    assert paths == {str(folder / "a.pdf"), str(folder / "c" / "copy.pdf")}
