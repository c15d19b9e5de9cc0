"""The embedded engine as a process of its own, spoken to over HTTP, and what its answers say."""

from __future__ import annotations

import base64
import re
import socket
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pymupdf

if TYPE_CHECKING:
    from typing import Self

KEY = "a-key-of-the-tests"
MARKDOWN = "<|grounding|>Convert the document to markdown."
SAMPLES = Path(__file__).resolve().parents[2] / "examples" / "samples"

BLOCK = re.compile(
    r"<\|ref\|>(?P<label>.*?)<\|/ref\|><\|det\|>\[\[(?P<box>[\d, ]+)\]\]<\|/det\|>\n"
    r"(?P<text>.*?)  (?:\n\n|$)",
    re.DOTALL,
)


class EmbeddedServer:
    """A server process; `with` waits until it is ready and ends it."""

    def __init__(self, *arguments: str, key: str | None = KEY) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed with the server
        self.out = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "deepseek_ocr_loaders.engines.embedded"),
                *("--port", str(self.port), *arguments),
            ],
            env={"PATH": "", **({"VLLM_API_KEY": key} if key else {})},
            stdout=self.out,
            stderr=self.log,
            stdin=subprocess.DEVNULL,
        )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=240, trust_env=False
        )

    def __enter__(self) -> Self:
        try:
            return self._ready()
        except BaseException:
            self.__exit__()
            raise

    def _ready(self) -> Self:
        limit = time.monotonic() + 240
        while True:
            assert self.process.poll() is None, self.read(self.log)
            assert time.monotonic() < limit, self.read(self.log)
            try:
                if self.http.get("/health").status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self.log.close()
        self.out.close()

    @staticmethod
    def read(file: Any) -> str:
        file.seek(0)
        return file.read().decode()

    def chat(self, picture: bytes, prompt: str = MARKDOWN, **fields: Any) -> dict[str, Any]:
        """Send a page as the client does, and give the reply's JSON."""
        reply = self.http.post("/v1/chat/completions", json=request(picture, prompt, **fields))
        assert reply.status_code == 200, reply.text
        return reply.json()

    def content(self, picture: bytes, prompt: str = MARKDOWN, **fields: Any) -> str:
        return self.chat(picture, prompt, **fields)["choices"][0]["message"]["content"]

    def gauge(self, name: str) -> float:
        found = re.search(rf"vllm:{name}{{.*?}} (\S+)", self.http.get("/metrics").text)
        assert found
        return float(found[1])


def request(picture: bytes, prompt: str = MARKDOWN, **fields: Any) -> dict[str, Any]:
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(picture)}},
        {"type": "text", "text": prompt},
    ]
    return {
        "model": "rapidocr",
        "messages": [{"role": "user", "content": parts}],
        "temperature": 0,
        "skip_special_tokens": False,
        **fields,
    }


def data_url(picture: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(picture).decode()}"


def draw(page: pymupdf.Page, width: int = 1280, height: int = 1920) -> bytes:
    """Draw a page at the size of the model's crop grid (A4 portrait: 2 × 3 crops of 640)."""
    matrix = pymupdf.Matrix(width / page.rect.width, height / page.rect.height)
    return page.get_pixmap(matrix=matrix, alpha=False).tobytes("png")


def draw_sample(name: str, page: int = 0) -> bytes:
    with pymupdf.open(SAMPLES / f"{name}.pdf") as document:
        return draw(document[page])


def expected_text(name: str, page: int = 0) -> str:
    text = (SAMPLES / "expected" / f"{name}.txt").read_text(encoding="utf-8")
    return text.split("\f")[page].strip()


def blocks(answer: str) -> list[tuple[str, tuple[int, int, int, int], str]]:
    """Give label, box and text of each block; fails if the answer has anything else."""
    found = list(BLOCK.finditer(answer))
    assert "".join(match[0] for match in found) == answer, answer
    return [
        (match["label"], tuple(map(int, match["box"].split(", "))), match["text"])
        for match in found
    ]


def error_rate(read: str, expected: str) -> float:
    """Character error rate with spaces and full-width forms folded: edits for each character."""
    a, b = (re.sub(r"\s+", "", unicodedata.normalize("NFKC", text)) for text in (read, expected))
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            previous, row[j] = (
                row[j],
                min(row[j] + 1, row[j - 1] + 1, previous + (left != right)),
            )
    return row[-1] / len(b)
