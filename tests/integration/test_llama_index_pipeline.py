"""LlamaIndex's ingestion: pipelines with ours as reader, docstores, splitters, serialisation."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymupdf
import pytest
from contract.stage import written_pdf
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.readers.base import BasePydanticReader, ReaderConfig
from llama_index.core.schema import MetadataMode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.utils import node_to_metadata_dict
from support.fault_server import FaultServer, answer, markers_in

from deepseek_ocr_loaders import DeepSeekOCRReader

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    path = tmp_path / "paper.pdf"
    path.write_bytes(written_pdf(range(10, 15)))
    return path


class Embedding(MockEmbedding):
    """It counts, and refuses an empty text as services do."""

    count: int = 0

    def _get_text_embedding(self, text: str) -> list[float]:
        if not text.strip():
            msg = "400: input must not be an empty string"
            raise ValueError(msg)
        self.count += 1
        return super()._get_text_embedding(text)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embedding(text)


def _pipeline(pdf: Path, server: FaultServer, **options: Any) -> IngestionPipeline:
    reader = DeepSeekOCRReader(base_url=server.base_url)
    config = ReaderConfig(
        reader=reader, reader_args=[str(pdf)], reader_kwargs={"extra_info": {"shelf": "A"}}
    )
    options = {"transformations": [SentenceSplitter(chunk_size=128, chunk_overlap=8)], **options}
    return IngestionPipeline(readers=[config], **options)


def _check(nodes: Any) -> None:
    assert [number for node in nodes for number in markers_in(node.text)] == list(range(10, 15))
    assert [node.metadata["page_number"] for node in nodes] == [1, 2, 3, 4, 5]
    assert {node.metadata["shelf"] for node in nodes} == {"A"}


def test_a_pipeline_runs_the_reader(pdf: Path, server: FaultServer) -> None:
    _check(_pipeline(pdf, server).run())


async def test_a_pipeline_runs_the_reader_async(pdf: Path, server: FaultServer) -> None:
    # It calls the synchronous method inside the running loop.
    _check(await asyncio.wait_for(_pipeline(pdf, server).arun(), 60))


@pytest.mark.parametrize(
    "strategy",
    [DocstoreStrategy.UPSERTS, DocstoreStrategy.UPSERTS_AND_DELETE],
)
def test_fault_46_nothing_is_embedded_twice(
    pdf: Path, server: FaultServer, strategy: DocstoreStrategy
) -> None:
    embedding = Embedding(embed_dim=8)
    pipeline = _pipeline(
        pdf,
        server,
        transformations=[SentenceSplitter(chunk_size=128, chunk_overlap=8), embedding],
        docstore=SimpleDocumentStore(),
        docstore_strategy=strategy,
        vector_store=SimpleVectorStore(),
        disable_cache=True,
    )
    assert len(pipeline.run()) == 5
    assert embedding.count == 5
    assert len(pipeline.run()) == 0
    assert embedding.count == 5
    server.script = lambda request: answer("other words") if request.marker == 12 else None
    assert [node.metadata["page_number"] for node in pipeline.run()] == [3]
    assert embedding.count == 6


def test_a_blank_page_goes_through_an_index(pdf: Path, server: FaultServer, tmp_path: Path) -> None:
    document = pymupdf.open(pdf)
    document.new_page(pno=1, width=260, height=390)
    path = tmp_path / "blank.pdf"
    document.save(path)
    documents = DeepSeekOCRReader(base_url=server.base_url).load_data(path)
    assert [d.metadata["ocr_status"] for d in documents].count("blank") == 1
    index = VectorStoreIndex.from_documents(documents, embed_model=Embedding(embed_dim=8))
    found = index.as_retriever(similarity_top_k=10).retrieve("marker")
    assert len(found) >= 5


def test_fault_43_small_chunks_with_a_long_path_and_layout(
    tmp_path: Path, server: FaultServer
) -> None:
    folder = tmp_path
    while len(str(folder)) < 190:
        folder = folder / "a-rather-long-name-of-a-folder"
    folder.mkdir(parents=True)
    path = folder / "the paper.pdf"
    path.write_bytes(written_pdf(range(3)))
    chance = random.Random(43)
    blocks = ""
    for n in range(400):
        words = " ".join("".join(chance.choices("abcdefgh", k=6)) for _ in range(6))
        box = f"[[{chance.randrange(500)}, {n}, {chance.randrange(500, 900)}, {n + 9}]]"
        blocks += f"<|ref|>text<|/ref|><|det|>{box}<|/det|>\n{words} {n}.  \n\n"
    server.script = lambda _: answer(blocks)
    documents = DeepSeekOCRReader(base_url=server.base_url, layout=True).load_data(path)
    assert len(json.loads(documents[0].metadata["layout"])) >= 400
    for size in (128, 256, 1024):
        nodes = SentenceSplitter(chunk_size=size, chunk_overlap=8)(documents)
        assert " 399." in nodes[-1].get_content()
        for mode in (MetadataMode.EMBED, MetadataMode.LLM):
            assert "layout" not in nodes[0].get_content(metadata_mode=mode)
    assert MarkdownNodeParser()(documents)


def test_what_a_citation_needs_is_in_the_text_for_the_model(pdf: Path, server: FaultServer) -> None:
    document = DeepSeekOCRReader(base_url=server.base_url).load_data(pdf)[2]
    seen = document.get_content(metadata_mode=MetadataMode.LLM)
    assert "page_label: 3" in seen
    assert "paper.pdf" in seen


def test_fault_44_flat_stores_take_the_metadata(pdf: Path, server: FaultServer) -> None:
    documents = DeepSeekOCRReader(base_url=server.base_url, layout=True).load_data(pdf)
    for node in SentenceSplitter()(documents):
        node_to_metadata_dict(node, flat_metadata=True)


# --- serialisation ---------------------------------------------------------------------------


def test_it_is_a_pydantic_reader(server: FaultServer) -> None:
    reader = DeepSeekOCRReader(base_url=server.base_url)
    assert isinstance(reader, BasePydanticReader)
    assert reader.class_name() == "DeepSeekOCRReader"
    assert reader.is_remote is False


def test_to_json_and_back_without_keys(pdf: Path) -> None:
    with FaultServer(api_key="sk-very-secret") as server:
        reader = DeepSeekOCRReader(
            base_url=server.base_url,
            api_key="sk-very-secret",
            password="hush-hush",
            pages="2-3",
            layout=True,
            on_error="record",
        )
        for text in (reader.to_json(), json.dumps(reader.to_dict()), repr(reader), str(reader)):
            assert "very-secret" not in text
            assert "hush" not in text
        for again in (
            DeepSeekOCRReader.from_json(reader.to_json()),
            DeepSeekOCRReader.from_dict(reader.to_dict()),
        ):
            assert again.to_dict() == reader.to_dict()
        # The key is not in it: it has to be given again, or to be in the environment.
        data = reader.to_dict()
        assert data["class_name"] == "DeepSeekOCRReader"
        with_key = DeepSeekOCRReader(settings=data["settings"], api_key="sk-very-secret")
        assert [d.metadata["page"] for d in with_key.load_data(pdf)] == [1, 2]


def test_from_json_takes_the_key_of_the_environment(
    pdf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultServer(api_key="sk-very-secret") as server:
        text = DeepSeekOCRReader(base_url=server.base_url, api_key="sk-very-secret").to_json()
        monkeypatch.setenv("DEEPSEEK_OCR_API_KEY", "sk-very-secret")
        assert len(DeepSeekOCRReader.from_json(text).load_data(pdf)) == 5


def test_a_reader_config_can_be_written_down(pdf: Path, server: FaultServer) -> None:
    config = ReaderConfig(
        reader=DeepSeekOCRReader(base_url=server.base_url, api_key="sk-very-secret"),
        reader_args=[str(pdf)],
    )
    text = config.to_json()
    assert "very-secret" not in text
    assert "DeepSeekOCRReader" in text
    assert len(config.read()) == 5


def test_fault_48_pickle_keeps_keys_and_drops_nothing(
    pdf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultServer(api_key="sk-very-secret") as server:
        reader = DeepSeekOCRReader(base_url=server.base_url, api_key="sk-very-secret")
        for _ in range(2):  # before and after use
            there = pickle.loads(pickle.dumps(reader))
            assert len(there.load_data(pdf)) == 5
            reader.load_data(pdf)
    assert "unpickleable" not in caplog.text


def test_the_metadata_for_the_hub_is_there() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    hub = tomllib.loads(text)["tool"]["llamahub"]
    assert hub["import_path"] == "deepseek_ocr_loaders.llama_index"
    assert "DeepSeekOCRReader" in hub["class_authors"]
    module = __import__(hub["import_path"], fromlist=["x"])
    for name in hub["class_authors"]:
        assert issubclass(getattr(module, name), BasePydanticReader)
