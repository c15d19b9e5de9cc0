#!/usr/bin/env python3
"""Use the installed package with one extra: what is there works, what is not is named.

Usage: use_wheel.py EXTRA PDF      (EXTRA: none, langchain, llama-index, cpu)
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import deepseek_ocr_loaders
from deepseek_ocr_loaders import DeepSeekOCRError

NAMES = {"langchain": "DeepSeekOCRLoader", "llama-index": "DeepSeekOCRReader"}
ANSWER = "<|ref|>text<|/ref|><|det|>[[10, 10, 900, 90]]<|/det|>\nRead through the wheel.\n\n"


class Server(BaseHTTPRequestHandler):
    """What a vLLM would answer, for one page."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer /health, /version and /v1/models."""
        models = {"data": [{"id": "deepseek-ai/DeepSeek-OCR", "max_model_len": 8192}]}
        self.reply({"/v1/models": models, "/version": {"version": "0.32.0"}}.get(self.path, {}))

    def do_POST(self) -> None:
        """Answer the page."""
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 913, "completion_tokens": 20}
        self.reply({"choices": [choice], "usage": usage})

    def reply(self, found: dict[str, Any]) -> None:
        """Send JSON."""
        data = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def use(extra: str, pdf: str, base_url: str) -> None:
    """Read the file with the framework that is installed."""
    if extra == "langchain":
        documents = deepseek_ocr_loaders.DeepSeekOCRLoader(pdf, base_url=base_url).load()
        assert "Read through the wheel." in documents[0].page_content, documents
    elif extra == "llama-index":
        documents = deepseek_ocr_loaders.DeepSeekOCRReader(base_url=base_url).load_data(pdf)
        assert "Read through the wheel." in documents[0].text, documents


def expect_named(extra: str) -> None:
    """Check that the error of a missing extra names it."""
    said = ""
    try:
        getattr(deepseek_ocr_loaders, NAMES[extra])
    except DeepSeekOCRError as error:
        said = str(error)
    assert f'deepseek-ocr-loaders[{extra}]"' in said, f"{NAMES[extra]}: {said!r}"


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    command = Path(sysconfig.get_path("scripts")) / "deepseek-ocr-loaders"
    return subprocess.run(
        [str(command), *arguments], capture_output=True, text=True, check=False, timeout=300
    )


def main() -> None:
    """Check everything for one extra."""
    extra, pdf = sys.argv[1:]
    folder = Path(deepseek_ocr_loaders.__file__).parent
    assert folder.parent == Path(sysconfig.get_path("purelib")), folder
    assert (folder / "py.typed").is_file()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base_url = f"http://127.0.0.1:{server.server_port}/v1"

    use(extra, pdf, base_url)
    for other in NAMES:
        if other != extra:
            expect_named(other)
    read = program("load", pdf, "--base-url", base_url)
    assert read.returncode == 0, read.stderr
    assert "Read through the wheel." in read.stdout, read.stdout

    embedded = program("load", pdf, "--engine", "rapidocr", "--pages", "1")
    if extra == "cpu":
        assert embedded.returncode == 0, embedded.stderr
        assert len(embedded.stdout) > 100, embedded.stdout
    else:
        assert embedded.returncode != 0
        assert "deepseek-ocr-loaders[cpu]" in embedded.stderr, embedded.stderr
    server.shutdown()
    print(f"wheel with the extra {extra}: works")


if __name__ == "__main__":
    main()
