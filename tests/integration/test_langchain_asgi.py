"""In a web server: a request that reads a document does not stop the others."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest
import uvicorn
from contract.stage import written_pdf
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from support.fault_server import ChatRequest, FaultServer

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.requests import Request

PINGS = 20


class Web:
    """An application on a real server in a thread."""

    def __init__(self, pdf: Path, ocr: FaultServer, loop: str) -> None:
        self.pdf = pdf
        self.ocr = ocr
        self.pings = 0
        app = Starlette(
            routes=[
                Route("/ping", self.ping),
                Route("/loader", self.loader),
                Route("/reader", self.reader),
            ]
        )
        self.socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, loop=loop, log_config=None, lifespan="off")  # type: ignore[arg-type]
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    async def ping(self, _: Request) -> JSONResponse:
        self.pings += 1
        return JSONResponse(self.pings)

    async def loader(self, _: Request) -> JSONResponse:
        documents = await DeepSeekOCRLoader(self.pdf, base_url=self.ocr.base_url).aload()
        return JSONResponse([document.metadata["page_number"] for document in documents])

    async def reader(self, _: Request) -> JSONResponse:
        documents = await DeepSeekOCRReader(base_url=self.ocr.base_url).aload_data(self.pdf)
        return JSONResponse([document.metadata["page_number"] for document in documents])

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        self.socket.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def web(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Web]:
    path = tmp_path / "paper.pdf"
    path.write_bytes(written_pdf(range(6)))
    served: list[Web] = []

    async def script(_: ChatRequest) -> None:
        # No page is answered before the application has answered others meanwhile.
        deadline = time.monotonic() + 20
        while served[0].pings < PINGS and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    with FaultServer(script) as ocr:
        served.append(Web(path, ocr, request.param))
        yield served[0]
        served[0].stop()


@pytest.mark.parametrize("route", ["loader", "reader"])
async def test_fault_49_an_application_goes_on_while_pages_are_read(web: Web, route: str) -> None:
    async with httpx.AsyncClient(base_url=web.url, timeout=60, trust_env=False) as client:
        reading = asyncio.create_task(client.get(f"/{route}"))
        while not web.ocr.requests and not reading.done():
            await asyncio.sleep(0.01)
        for _ in range(PINGS - 1):
            assert (await client.get("/ping")).status_code == 200
        assert not reading.done()
        await client.get("/ping")
        assert (await reading).json() == [1, 2, 3, 4, 5, 6]
