"""Document loaders that read PDFs and scans with DeepSeek-OCR.

Names are loaded when they are first used, so that importing the package costs nothing and loads
neither a framework nor a PDF library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepseek_ocr_loaders.citations import highlight
    from deepseek_ocr_loaders.errors import DeepSeekOCRError
    from deepseek_ocr_loaders.langchain import DeepSeekOCRLoader, DeepSeekOCRParser
    from deepseek_ocr_loaders.llama_index import DeepSeekOCRReader
    from deepseek_ocr_loaders.prompts import locate
    from deepseek_ocr_loaders.report import RunReport
    from deepseek_ocr_loaders.server import DeepSeekOCRServer

__all__ = [
    "DeepSeekOCRError",
    "DeepSeekOCRLoader",
    "DeepSeekOCRParser",
    "DeepSeekOCRReader",
    "DeepSeekOCRServer",
    "RunReport",
    "__version__",
    "highlight",
    "locate",
]

_MODULES = {
    "DeepSeekOCRError": "errors",
    "DeepSeekOCRLoader": "langchain",
    "DeepSeekOCRParser": "langchain",
    "DeepSeekOCRReader": "llama_index",
    "DeepSeekOCRServer": "server",
    "RunReport": "report",
    "highlight": "citations",
    "locate": "prompts",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - 20 ms that few programs need

        return version("deepseek-ocr-loaders")
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
