"""From scans to answers: read, split, embed with a real model, ask, and see which page is first."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from support import vllm
from support.embedded import SAMPLES
from support.published import embedded_engine

from deepseek_ocr_loaders import DeepSeekOCRLoader
from deepseek_ocr_loaders.citations import cite

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).parents[1] / "support" / "embed.py"

CHUNK = 1000
"""Characters that the model takes whole: about 250 tokens of English."""

LIBRARY = {("mixed.pdf", 1), ("mixed_scan.pdf", 1)}  # the scan is a scan of the other

QUESTIONS = {
    "What was most of the cargo that came into the port?": {("born_digital.pdf", 1)},
    "Why are some pages of the old harbour journals stained?": {("born_digital.pdf", 1)},
    "How much do we pay for mending the damaged book?": {("scan.pdf", 1)},
    "Can I visit the reading room on a public holiday?": {("scan.pdf", 1)},
    "How does a bee tell the others where it found flowers?": {("two_columns.pdf", 1)},
    "How do insects navigate when the sky is overcast?": {("two_columns.pdf", 1)},
    "What is the price of a bottle of red ink?": {("table.pdf", 1)},
    "On which shelf is the glue kept?": {("table.pdf", 1)},
    "How many books can a member borrow, and for how long?": LIBRARY,
    "Where does the second chapter begin?": {("labels.pdf", 4)},
}


class MiniLM(Embeddings):
    """The model in a process of its own, since only the other environment has torch."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(texts) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.fixture(scope="module")
def model() -> Iterator[MiniLM]:
    # Without -I a file beside the program would be taken for the package `vllm`.
    command = [str(Path(vllm.executable()).with_name("python")), "-I", str(PROGRAM)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield MiniLM(process)


@pytest.fixture(scope="module")
def engine(model: MiniLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # After the model, whose place is in a variable: those of this package are taken away.
    with embedded_engine(tmp_path_factory.mktemp("state")):
        yield


@pytest.mark.parametrize("mode", ["element", "page"])
def test_nine_of_ten_questions_find_their_page(model: MiniLM, engine: None, mode: Any) -> None:
    documents = DeepSeekOCRLoader(sorted(SAMPLES.glob("*.pdf")), mode=mode, layout=True).load()
    assert len({(read.metadata["source"], read.metadata["page"]) for read in documents}) == 10
    if mode == "page":
        documents = RecursiveCharacterTextSplitter(chunk_size=CHUNK).split_documents(documents)
    store = InMemoryVectorStore(model)
    store.add_documents(documents)

    wrong = {}
    for question, places in QUESTIONS.items():
        (found,) = store.similarity_search(question, k=1)
        cited = cite(found)[0]
        assert cited.boxes
        if (found.metadata["file_name"], cited.page_number) not in places:
            wrong[question] = found.page_content
    print(f"{mode}: {len(QUESTIONS) - len(wrong)} of {len(QUESTIONS)}")
    assert len(QUESTIONS) == 10
    assert len(wrong) <= 1, wrong
