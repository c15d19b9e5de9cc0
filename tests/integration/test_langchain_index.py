"""LangChain's index, splitters and chains."""

from __future__ import annotations

import os
import random
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from contract.stage import written_pdf
from langchain_core.documents.base import Blob
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import MarkdownTextSplitter, RecursiveCharacterTextSplitter
from support.fault_server import ChatRequest, FaultServer, Step, answer, markers_in

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRParser

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from langchain_core.documents import Document


class Embedding(DeterministicFakeEmbedding):
    """The same vector for the same text; and it counts."""

    size: int = 16
    count: int = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.count += len(texts)
        return super().embed_documents(texts)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    path = tmp_path / "paper.pdf"
    path.write_bytes(written_pdf(range(10, 15)))
    return path


@pytest.mark.parametrize("cleanup", [None, "incremental", "full"])
def test_fault_46_an_index_skips_what_it_has(pdf: Path, server: FaultServer, cleanup: Any) -> None:
    manager = InMemoryRecordManager("papers")
    manager.create_schema()
    embedding = Embedding()
    store = InMemoryVectorStore(embedding)

    def run() -> dict[str, int]:
        loader = DeepSeekOCRLoader(pdf, base_url=server.base_url, layout=True)
        return dict(
            index(
                loader,
                manager,
                store,
                cleanup=cleanup,
                source_id_key="source",
                key_encoder="sha256",
            )
        )

    nothing = {"num_added": 0, "num_updated": 0, "num_skipped": 0, "num_deleted": 0}
    assert run() == {**nothing, "num_added": 5}
    os.utime(pdf, (1_000_000_000, 1_000_000_000))
    assert run() == {**nothing, "num_skipped": 5}
    assert embedding.count == 5


async def test_fault_46_an_index_skips_what_it_has_async(pdf: Path, server: FaultServer) -> None:
    manager = InMemoryRecordManager("papers")
    await manager.acreate_schema()
    store = InMemoryVectorStore(Embedding())

    async def run() -> dict[str, int]:
        loader = DeepSeekOCRLoader(pdf, base_url=server.base_url)
        return dict(
            await aindex(
                loader,
                manager,
                store,
                cleanup="incremental",
                source_id_key="source",
                key_encoder="sha256",
            )
        )

    assert (await run())["num_added"] == 5
    second = await run()
    assert (second["num_skipped"], second["num_added"], second["num_deleted"]) == (5, 0, 0)


def test_a_changed_page_replaces_only_itself(pdf: Path, server: FaultServer) -> None:
    manager = InMemoryRecordManager("papers")
    manager.create_schema()
    store = InMemoryVectorStore(Embedding())

    def run() -> dict[str, int]:
        loader = DeepSeekOCRLoader(pdf, base_url=server.base_url)
        return dict(
            index(
                loader,
                manager,
                store,
                cleanup="incremental",
                source_id_key="source",
                key_encoder="sha256",
            )
        )

    run()
    server.script = lambda request: answer("other words") if request.marker == 12 else None
    again = run()
    assert (again["num_added"], again["num_skipped"], again["num_deleted"]) == (1, 4, 1)


def test_splitters_keep_the_metadata_of_the_page(pdf: Path, server: FaultServer) -> None:
    def script(request: ChatRequest) -> Step:
        chance = random.Random(request.marker)
        words = ["".join(chance.choices("abcdefgh", k=6)) for _ in range(300)]
        return answer("# Title\n\n" + " ".join(f"{word}-{request.marker}" for word in words))

    server.script = script
    loader = DeepSeekOCRLoader(pdf, base_url=server.base_url, layout=True)
    documents = loader.load()
    for splitter in (
        RecursiveCharacterTextSplitter(chunk_size=200, chunk_overlap=20),
        MarkdownTextSplitter(chunk_size=200, chunk_overlap=20),
    ):
        chunks = splitter.split_documents(documents)
        assert len(chunks) > 20
        for chunk in chunks:
            pages = set(re.findall(r"-(\d+)", chunk.page_content))
            assert pages <= {str(10 + chunk.metadata["page"])}
            assert chunk.metadata["source"] == str(pdf)
    assert len(loader.load_and_split()) >= 5


def test_in_a_chain(pdf: Path, server: FaultServer) -> None:
    def load(path: str) -> list[Document]:
        return DeepSeekOCRLoader(path, base_url=server.base_url).load()

    def count(documents: list[Document]) -> int:
        return len(documents)

    chain = RunnableLambda(load) | RunnableLambda(count)
    assert chain.invoke(str(pdf)) == 5
    assert chain.batch([str(pdf)] * 4) == [5] * 4


async def test_in_an_asynchronous_chain(pdf: Path, server: FaultServer) -> None:
    async def aload(path: str) -> list[Document]:
        return await DeepSeekOCRLoader(path, base_url=server.base_url).aload()

    def load(path: str) -> list[Document]:
        return DeepSeekOCRLoader(path, base_url=server.base_url).load()

    native = RunnableLambda(load, afunc=aload)
    assert len(await native.ainvoke(str(pdf))) == 5
    bridged = RunnableLambda(load)  # runs the synchronous method in a thread of the loop
    assert [len(found) for found in await bridged.abatch([str(pdf)] * 3)] == [5] * 3


def test_threads_share_a_parser(pdf: Path, server: FaultServer) -> None:
    parser = DeepSeekOCRParser(base_url=server.base_url, max_concurrency=3)
    found: list[list[int]] = []

    def work() -> None:
        documents = parser.parse(Blob.from_path(pdf))
        found.append([n for document in documents for n in markers_in(document.page_content)])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [list(range(10, 15))] * 6
