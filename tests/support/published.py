"""What published code runs in: a copy of `examples/`, and the embedded engine, kept up."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deepseek_ocr_loaders import DeepSeekOCRServer
from support.markdown import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


def copy_examples(folder: Path) -> Path:
    """Copy `examples/` into a folder, where the paths of pages and notebooks are right."""
    return shutil.copytree(ROOT / "examples", folder / "examples")


@contextmanager
def embedded_engine(folder: Path) -> Iterator[dict[str, str]]:
    """Give an environment of which nothing of the user's is a part; `folder` holds its state."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("DEEPSEEK_OCR_")]:
            patch.delenv(name)
        patch.setenv("DEEPSEEK_OCR_ENGINE", "rapidocr")
        patch.setenv("DEEPSEEK_OCR_STATE_DIR", str(folder / "state"))
        # Pages that are read several times are read once.
        patch.setenv("DEEPSEEK_OCR_CACHE", str(folder / "cache"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache-home"))
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        # The command line is called by its name; the environment need not be activated.
        patch.setenv(
            "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        )
        with DeepSeekOCRServer():
            yield dict(os.environ)
