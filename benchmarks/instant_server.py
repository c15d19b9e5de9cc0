"""A server that answers at once, in a process of its own: what is measured is the client alone."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

MODEL = "deepseek-ai/DeepSeek-OCR"
TEXT = "\n\n".join(
    f"<|ref|>text<|/ref|><|det|>[[60, {top}, 940, {top + 40}]]<|/det|>\n"
    "A paragraph of running text, as long as the paragraphs of a page usually are, and no longer."
    for top in range(40, 960, 60)
)
LENGTH = re.compile(rb'"max_tokens": ?(\d+)')


class InstantServer:
    """The server, running; a context manager.

    Attributes:
        base_url: Its address, up to and including `/v1`.
    """

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.base_url = f"http://127.0.0.1:{int(self.process.stdout.readline())}/v1"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()


def reply(path: str, body: bytes) -> object:
    """Give the JSON for a request."""
    if path.endswith("/models"):
        return {"object": "list", "data": [{"id": MODEL, "max_model_len": 8192}]}
    if path.endswith("/version"):
        return {"version": "0.26.0"}
    if path.endswith("/chat/completions"):
        found = LENGTH.search(body, max(0, len(body) - 2000))
        message = {"role": "assistant", "content": TEXT}
        return {
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 913, "completion_tokens": int(found[1]) if found else 500},
        }
    return {}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else b""
            text = json.dumps(reply(head.split(b" ", 2)[1].decode(), body)).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(text), text)
            )
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**23, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
