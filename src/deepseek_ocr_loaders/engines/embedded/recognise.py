"""Picture → lines of text with their places, by RapidOCR's PP-OCR models, on all cores."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rapidocr
from rapidocr.utils.process_img import get_rotate_crop_image

from deepseek_ocr_loaders.engines.embedded.sparse import FEW_LINES, unseen_regions

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Line", "Recogniser", "usable_cores"]

logger = logging.getLogger(__name__)

_LEAST_SCORE = 0.5
"""RapidOCR's own default; what is less sure is mostly noise read as letters."""


@dataclass(frozen=True, slots=True)
class Line:
    """A piece of one printed line.

    Attributes:
        text: What it says.
        x1: Left edge in pixels of the picture.
        y1: Upper edge.
        x2: Right edge.
        y2: Lower edge.
        height: Of the letters' band, in pixels; less than `y2 - y1` where the line is slanted.
        slope: Pixels that the line sinks for each pixel to the right.
        places: For each character of `text` its place along the line, from 0 to 1.
    """

    text: str
    x1: float
    y1: float
    x2: float
    y2: float
    height: float
    slope: float = 0.0
    places: tuple[float, ...] = ()


class Recogniser:
    """Loads the models once and reads pictures with them.

    Each model runs on one thread, and the lines of a page are spread over `threads` of them: a
    second thread inside the models made a page only a tenth faster (9.9 s → 9.0 s, 42 long lines,
    two cores), while lines do not wait for each other.

    Args:
        threads: How many lines are read at once; None takes the cores that may be used.

    Raises:
        FileNotFoundError: The installed RapidOCR carries no models (nothing is downloaded).
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or usable_cores()
        self.version = version("rapidocr")
        find, read = _model("det"), _model("rec")
        self.name = f"{find.stem}+{read.stem}"
        common: dict[str, Any] = {
            "Global.log_level": "critical",
            "Global.use_cls": False,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
        self._find = rapidocr.RapidOCR(
            params={**common, "Global.use_rec": False, "Det.model_path": str(find)}
        )
        self._read = rapidocr.RapidOCR(
            params={
                **common,
                "Global.use_det": False,
                "Global.use_preprocess_img": False,
                "Global.return_word_box": True,
                "Rec.model_path": str(read),
            }
        )
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="ocr")
        # The models are loaded at the first use; do that now, not in the first request.
        blank = np.full((64, 320, 3), 255, dtype=np.uint8)
        self._find(blank)
        self._read(blank)

    async def lines(self, image: Image.Image) -> list[Line]:
        """Read one page; cancelling it drops what has not begun.

        Args:
            image: RGB.
        """
        loop = asyncio.get_running_loop()
        pixels, quads = await loop.run_in_executor(self._pool, self._find_lines, image)
        found = await asyncio.gather(
            *(loop.run_in_executor(self._pool, self._read_line, pixels, quad) for quad in quads)
        )
        return [line for line in found if line is not None]

    def _find_lines(self, image: Image.Image) -> tuple[Any, list[Any]]:
        pixels = np.ascontiguousarray(np.asarray(image)[:, :, ::-1])  # BGR, as OpenCV has it
        quads = self._quads(pixels)
        if len(quads) <= FEW_LINES:
            for left, top, right, bottom in unseen_regions(pixels, quads):
                region = np.ascontiguousarray(pixels[top:bottom, left:right])
                again = [quad + np.array([left, top], np.float32) for quad in self._quads(region)]
                quads += [quad for quad in again if not _is_among(quad, quads)]
        return pixels, quads

    def _quads(self, pixels: Any) -> list[Any]:
        found: Any = self._find(pixels)
        return [] if found.boxes is None else list(found.boxes.astype(np.float32))

    def _read_line(self, pixels: Any, quad: Any) -> Line | None:
        result: Any = self._read(get_rotate_crop_image(pixels, quad.copy()))
        if not result.txts or result.scores[0] < _LEAST_SCORE or not result.txts[0].strip():
            return None
        text = result.txts[0].strip()
        left, top = quad.min(axis=0).tolist()
        right, bottom = quad.max(axis=0).tolist()
        across = quad[1] - quad[0]
        return Line(
            text=text,
            x1=left,
            y1=top,
            x2=right,
            y2=bottom,
            height=math.dist(quad[0], quad[3]),
            slope=float(across[1] / across[0]) if abs(across[0]) > abs(across[1]) else 0.0,
            places=_places(text, result.word_results[0]),
        )


def _is_among(quad: Any, quads: list[Any]) -> bool:
    """Tell whether the middle of a line lies in one that was found before."""
    middle = quad.mean(axis=0)
    return any(
        (other.min(axis=0) <= middle).all() and (middle <= other.max(axis=0)).all()
        for other in quads
    )


def _places(text: str, words: Any) -> tuple[float, ...]:
    """Spread the places that the model gives for the letters over all characters of the text."""
    columns = [column for word in words.word_cols for column in word]
    places: list[float] = []
    for character in text:
        if character.isspace():
            places.append(places[-1] if places else 0.0)
        else:
            place = (columns.pop(0) + 0.5) / words.line_txt_len if columns else 1.0
            places.append(min(place, 1.0))
    return tuple(places)


def _model(task: str) -> Path:
    folder = Path(rapidocr.__file__).parent / "models"
    found = sorted(folder.glob(f"PP-OCR*_{task}_*.onnx"))
    if not found:
        msg = (
            f"RapidOCR {version('rapidocr')} carries no PP-OCR {task} model in {folder}: "
            "install rapidocr 3.9 or newer from a wheel"
        )
        raise FileNotFoundError(msg)
    return found[-1]


def usable_cores() -> int:
    """Give the cores that this process may use: its affinity, and the container's share."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or its first word is "max"
        pass
    return max(cores, 1)
