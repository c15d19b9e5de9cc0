"""`python -m deepseek_ocr_loaders.engines.embedded`: the server process."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

logger = logging.getLogger("deepseek_ocr_loaders.engines.embedded")


def main() -> int:
    """Serve until SIGTERM or SIGINT; give the exit code where it cannot begin."""
    options = _options()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(asctime)s %(message)s"
    )
    # A thread that reads a page cannot be interrupted, and at an ordinary exit Python would wait
    # for it. While uvicorn runs it has its own handlers; it calls these when it has closed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    # Taken before the models are loaded, but not listened to: nobody else gets the port, and
    # nobody is answered too early.
    try:
        taken = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((options.host, options.port))
    except OSError as error:
        logger.error("cannot listen on %s port %d: %s", options.host, options.port, error)  # noqa: TRY400
        return 1

    import uvicorn  # noqa: PLC0415 - after the port, which is the quickest thing to fail

    from deepseek_ocr_loaders.engines.embedded.app import create_app  # noqa: PLC0415
    from deepseek_ocr_loaders.engines.embedded.recognise import Recogniser  # noqa: PLC0415

    reader = Recogniser(options.threads)
    logger.info("%s is loaded, reading on %d threads", reader.name, reader.threads)
    # The same variable as vLLM's, so that a launcher treats both alike.
    app = create_app(reader, model=options.model, api_key=os.environ.get("VLLM_API_KEY"))
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=0
    )
    uvicorn.Server(config).run(sockets=[taken])
    _leave(0, None)
    return 0


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m deepseek_ocr_loaders.engines.embedded",
        description="Serve RapidOCR with vLLM's routes; the key is read from VLLM_API_KEY.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="rapidocr", help="the id that /v1/models lists")
    parser.add_argument("--threads", type=int, help="cores to read on; default: all it may use")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
