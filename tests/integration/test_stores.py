"""Vector stores of both frameworks: what goes in comes back, and what is cited is found."""

from __future__ import annotations

import json
import uuid
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import chromadb
import faiss
import pymupdf
import pytest
from contract.stage import written_pdf
from langchain_chroma import Chroma
from langchain_community.docstore import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_qdrant import QdrantVectorStore
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore as LlamaIndexQdrant
from qdrant_client import QdrantClient, models
from support.fault_server import ChatRequest, FaultServer, Step, answer, marker_text, markers_in

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRReader
from deepseek_ocr_loaders.citations import cite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from langchain_core.documents import Document
    from langchain_core.vectorstores import VectorStore
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import BasePydanticVectorStore

SIZE = 16
ALL = 1000
"""More than any store here has, so that a search gives everything."""

EMBEDDING = DeterministicFakeEmbedding(size=SIZE)

MODES: dict[str, tuple[str, Callable[[list[Path]], str | int]]] = {
    "page": ("page", lambda _: 2),
    "element": ("page_number", lambda _: 3),
    "document": ("source", lambda paths: str(paths[1])),
}
"""What is asked for in each mode: a key and its value."""


def _page(request: ChatRequest) -> Step | None:
    """Give a page as the model writes one; the fifth has no boxes, which is a key of its own."""
    if request.marker == 14:
        return None
    blocks = [
        ("title", "[[80, 50, 900, 90]]", f"# Häfen – {request.marker}"),
        ("text", "[[80, 100, 480, 300], [520, 100, 900, 200]]", marker_text(request.marker or 0)),
        ("table", "[[80, 400, 900, 700]]", "<table><tr><td>港</td><td>1,5 €</td></tr></table>"),
        ("text", "[[80, 710, 900, 800]]", f"Der {request.marker}. \\(x^2\\) ende."),
    ]
    return answer(
        "".join(
            f"<|ref|>{label}<|/ref|><|det|>{boxes}<|/det|>\n{text}  \n\n"
            for label, boxes, text in blocks
        )
    )


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer(_page) as running:
        yield running


@pytest.fixture
def pdfs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "Häfen 港.pdf", tmp_path / "second.pdf"]
    for path, numbers in zip(paths, (range(10, 15), range(20, 23)), strict=True):
        with pymupdf.open(stream=written_pdf(numbers)) as document:
            document.set_metadata({"title": "Über “Häfen”", "creationDate": "D:20260105090000Z"})
            document.save(path)
    return paths


# --- LangChain -------------------------------------------------------------------------------


class Store(NamedTuple):
    """A store that keeps its data in a folder, and how it is asked for one value of a key."""

    name: str
    opened: Callable[[Path], AbstractContextManager[VectorStore]]
    where: Callable[[str, Any], dict[str, Any]]
    keyed_by_id: bool = True
    key_encoder: Any = "sha256"


@contextmanager
def _chroma_client(folder: Path) -> Iterator[Any]:
    settings = chromadb.config.Settings(anonymized_telemetry=False)
    with closing(chromadb.PersistentClient(folder / "chroma", settings)) as client:
        yield client


@contextmanager
def _qdrant_client(folder: Path) -> Iterator[QdrantClient]:
    with closing(QdrantClient(path=str(folder / "qdrant"))) as client:
        yield client


@contextmanager
def _chroma(folder: Path) -> Iterator[VectorStore]:
    with _chroma_client(folder) as client:
        yield Chroma("pages", client=client, embedding_function=EMBEDDING)


@contextmanager
def _qdrant(folder: Path) -> Iterator[VectorStore]:
    with _qdrant_client(folder) as client:
        if not client.collection_exists("pages"):
            vectors = models.VectorParams(size=SIZE, distance=models.Distance.COSINE)
            client.create_collection("pages", vectors_config=vectors)
        yield QdrantVectorStore(client, "pages", embedding=EMBEDDING)


@contextmanager
def _faiss(folder: Path) -> Iterator[VectorStore]:
    place = folder / "faiss"
    if place.exists():
        yield FAISS.load_local(str(place), EMBEDDING, allow_dangerous_deserialization=True)
        return
    store = FAISS(EMBEDDING, faiss.IndexFlatL2(SIZE), InMemoryDocstore(), {})
    yield store
    store.save_local(str(place))


@contextmanager
def _memory(folder: Path) -> Iterator[VectorStore]:
    place = folder / "memory.json"
    if place.exists():
        yield InMemoryVectorStore.load(str(place), EMBEDDING)
        return
    store = InMemoryVectorStore(EMBEDDING)
    yield store
    store.dump(str(place))


def _qdrant_filter(key: str, value: Any) -> dict[str, Any]:
    match = models.MatchValue(value=value)
    condition = models.FieldCondition(key=f"metadata.{key}", match=match)
    return {"filter": models.Filter(must=[condition])}


def _uuid_of(document: Document) -> str:
    """Give a hash that Qdrant takes as an id: 64 hexadecimal digits are none."""
    said = json.dumps([document.page_content, document.metadata], sort_keys=True)
    return str(uuid.uuid5(uuid.NAMESPACE_URL, said))


STORES = [
    Store("chroma", _chroma, lambda key, value: {"filter": {key: value}}),
    Store(
        "faiss",
        _faiss,
        # It filters what it has fetched.
        lambda key, value: {"filter": {key: value}, "fetch_k": ALL},
        # A known id is an error, after which it does not search any more: `index` is for it.
        keyed_by_id=False,
    ),
    Store(
        "memory",
        _memory,
        lambda key, value: {"filter": lambda found: found.metadata.get(key) == value},
    ),
    Store("qdrant", _qdrant, _qdrant_filter, key_encoder=_uuid_of),
]
each_store = pytest.mark.parametrize("kept", STORES, ids=lambda kept: kept.name)


def _by_id(documents: Iterable[Document]) -> dict[str | None, tuple[str, dict[str, Any]]]:
    found: dict[str | None, tuple[str, dict[str, Any]]] = {}
    for document in documents:
        metadata = dict(document.metadata)
        # Qdrant's class puts the id and the collection there.
        key = metadata.pop("_id", document.id)
        metadata.pop("_collection_name", None)
        assert key not in found
        found[key] = (document.page_content, metadata)
    return found


@each_store
@pytest.mark.parametrize("mode", MODES)
def test_fault_44_langchain_stores_give_back_what_they_took(
    pdfs: list[Path], server: FaultServer, tmp_path: Path, kept: Store, mode: Any
) -> None:
    documents = DeepSeekOCRLoader(pdfs, base_url=server.base_url, layout=True, mode=mode).load()
    with kept.opened(tmp_path) as store:
        store.add_documents(documents)
        if kept.keyed_by_id:
            store.add_documents(documents)  # nothing is doubled

    key, value_in = MODES[mode]
    value = value_in(pdfs)
    wanted = [document for document in documents if document.metadata.get(key) == value]
    assert 0 < len(wanted) < len(documents)
    with kept.opened(tmp_path) as store:
        everything = store.similarity_search("harbour", k=ALL)
        assert _by_id(everything) == _by_id(documents)
        found = store.similarity_search("harbour", k=ALL, **kept.where(key, value))
        assert _by_id(found) == _by_id(wanted)
        (first,) = store.similarity_search(documents[-1].page_content, k=1)
    assert first.page_content == documents[-1].page_content
    assert cite(first) == cite(documents[-1])
    assert cite(first)[0].boxes


@each_store
def test_fault_46_langchain_stores_are_indexed_once(
    pdfs: list[Path], server: FaultServer, tmp_path: Path, kept: Store
) -> None:
    manager = InMemoryRecordManager("papers")
    manager.create_schema()

    def run(store: VectorStore) -> list[int]:
        loader = DeepSeekOCRLoader(pdfs, base_url=server.base_url, layout=True)
        counts = index(
            loader,
            manager,
            store,
            cleanup="incremental",
            source_id_key="source",
            key_encoder=kept.key_encoder,
        )
        return [counts[name] for name in ("num_added", "num_skipped", "num_deleted")]

    with kept.opened(tmp_path) as store:
        assert run(store) == [8, 0, 0]
        assert run(store) == [0, 8, 0]
        server.script = lambda request: (
            answer(f"new {marker_text(12)}") if request.marker == 12 else _page(request)
        )
        assert run(store) == [1, 7, 1]
        found = store.similarity_search("harbour", k=ALL)
    assert sorted(number for page in found for number in markers_in(page.page_content)) == [
        *range(10, 15),
        *range(20, 23),
    ]
    assert [page.page_content for page in found if "new" in page.page_content] == [
        f"new {marker_text(12)}"
    ]


# --- LlamaIndex ------------------------------------------------------------------------------


@contextmanager
def _llama_index_chroma(folder: Path) -> Iterator[BasePydanticVectorStore]:
    with _chroma_client(folder) as client:
        collection = client.get_or_create_collection("pages", embedding_function=None)
        yield ChromaVectorStore.from_collection(collection)


@contextmanager
def _llama_index_qdrant(folder: Path) -> Iterator[BasePydanticVectorStore]:
    with _qdrant_client(folder) as client:
        yield LlamaIndexQdrant("pages", client=client)


each_llama_index_store = pytest.mark.parametrize(
    "opened",
    [
        pytest.param(_llama_index_chroma, id="chroma"),
        pytest.param(_llama_index_qdrant, id="qdrant"),
    ],
)


def _nodes(nodes: Iterable[BaseNode]) -> dict[str, tuple[str, dict[str, Any]]]:
    nodes = list(nodes)
    found = {node.node_id: (node.get_content(), node.metadata) for node in nodes}
    assert len(found) == len(nodes)
    return found


def _found(store: BasePydanticVectorStore, **options: Any) -> list[BaseNode]:
    whole = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(SIZE))
    scored = whole.as_retriever(similarity_top_k=ALL, **options).retrieve("harbour")
    return [each.node for each in scored]


@each_llama_index_store
@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
@pytest.mark.parametrize("mode", MODES)
def test_fault_44_llama_index_stores_give_back_what_they_took(
    pdfs: list[Path],
    server: FaultServer,
    tmp_path: Path,
    opened: Callable[[Path], AbstractContextManager[BasePydanticVectorStore]],
    mode: Any,
) -> None:
    documents = DeepSeekOCRReader(base_url=server.base_url, layout=True, mode=mode).load_data(pdfs)
    for _ in range(2):
        with opened(tmp_path) as store:
            pipeline = IngestionPipeline(
                transformations=[MockEmbedding(SIZE)], vector_store=store, disable_cache=True
            )
            assert len(pipeline.run(documents=documents)) == len(documents)

    key, value_in = MODES[mode]
    value = value_in(pdfs)
    wanted = [document for document in documents if document.metadata.get(key) == value]
    assert 0 < len(wanted) < len(documents)
    only = MetadataFilters(filters=[MetadataFilter(key=key, value=value)])
    with opened(tmp_path) as store:
        everything = _found(store)
        assert _nodes(everything) == _nodes(documents)
        assert _nodes(_found(store, filters=only)) == _nodes(wanted)
    cited = {document.node_id: cite(document) for document in documents}
    assert {node.node_id: cite(node) for node in everything} == cited
    # What is not to be embedded stays so.
    for node in everything:
        assert "layout" in node.metadata
        assert "layout" in node.excluded_embed_metadata_keys


@each_llama_index_store
@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
def test_fault_46_llama_index_stores_take_a_changed_page_alone(
    pdfs: list[Path],
    server: FaultServer,
    tmp_path: Path,
    opened: Callable[[Path], AbstractContextManager[BasePydanticVectorStore]],
) -> None:
    reader = DeepSeekOCRReader(base_url=server.base_url, layout=True)
    with opened(tmp_path) as store:
        pipeline = IngestionPipeline(
            transformations=[SentenceSplitter(), MockEmbedding(SIZE)],
            docstore=SimpleDocumentStore(),
            vector_store=store,
            disable_cache=True,
        )
        assert len(pipeline.run(documents=reader.load_data(pdfs))) == 8
        assert len(pipeline.run(documents=reader.load_data(pdfs))) == 0
        server.script = lambda request: (
            answer(f"new {marker_text(12)}") if request.marker == 12 else _page(request)
        )
        (changed,) = pipeline.run(documents=reader.load_data(pdfs))
        only = MetadataFilters(filters=[MetadataFilter(key="page_number", value=3)])
        third = {node.metadata["source"]: node for node in _found(store, filters=only)}
        everything = _found(store)
    assert len(everything) == 8
    assert _nodes([third[str(pdfs[0])]]) == _nodes([changed])
