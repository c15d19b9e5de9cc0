"""The managed server: who may use it, how it starts, lives and ends."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepseek_ocr_loaders.server.discovery import discover
    from deepseek_ocr_loaders.server.handle import DeepSeekOCRServer
    from deepseek_ocr_loaders.server.provider import provider_for

__all__ = ["DeepSeekOCRServer", "discover", "provider_for"]

_MODULES = {"DeepSeekOCRServer": "handle", "discover": "discovery", "provider_for": "provider"}


def __getattr__(name: str) -> Any:
    # Loaded when used: the supervisor lives in this package and must start at once.
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
