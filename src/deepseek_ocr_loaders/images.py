"""The pictures on a page, cut out of it and saved for `images="save"`."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from deepseek_ocr_loaders.answer import IMAGE_LABELS
from deepseek_ocr_loaders.errors import ConfigurationError

if TYPE_CHECKING:
    from deepseek_ocr_loaders.page import Block, Box, Picture

__all__ = ["save_images"]


def save_images(
    picture: Picture, blocks: tuple[Block, ...], *, image_dir: Path, stem: str
) -> tuple[Block, ...]:
    """Save what the picture blocks show, and give the blocks with the names of the files.

    A block with several boxes gives one picture that holds them all; one without area gives none.
    Names are made of the stem, the number of the block on its page, and a hash of the page's
    picture and the box: the same page gives the same name, another page or another box never.

    Args:
        picture: The page as it was sent.
        blocks: Its blocks, with boxes from 0 to 999 on each axis of the picture.
        image_dir: The folder; it is made if it is not there.
        stem: What tells this page of this document from all others.

    Raises:
        ConfigurationError: The folder cannot be written to.
    """
    wanted = [index for index, block in enumerate(blocks) if block.label in IMAGE_LABELS]
    if not any(blocks[index].boxes for index in wanted):
        return blocks
    given = list(blocks)
    page_hash = hashlib.sha256(picture.data).digest()
    with Image.open(io.BytesIO(picture.data)) as page:
        for index in wanted:
            area = _area(blocks[index].boxes, page.size)
            if area is None:
                continue
            mark = hashlib.sha256(page_hash + repr(area).encode()).hexdigest()[:8]
            form = "JPEG" if picture.media_type == "image/jpeg" else "PNG"
            name = f"{stem}-{index + 1}-{mark}.{'jpg' if form == 'JPEG' else 'png'}"
            path = image_dir / name
            try:
                if not path.exists():
                    _write(page.crop(area), path, form)
            except OSError as error:
                msg = f"image_dir: {path} cannot be written ({error.strerror or error})"
                raise ConfigurationError(msg) from error
            given[index] = replace(blocks[index], image=name)
    return tuple(given)


def _area(boxes: tuple[Box, ...], size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """Give the pixels that hold all boxes; None where that is nothing."""
    placed = [box.pixels(*size) for box in boxes]
    if not placed:
        return None
    edges = list(zip(*placed, strict=True))
    left, top, right, bottom = min(edges[0]), min(edges[1]), max(edges[2]), max(edges[3])
    return (left, top, right, bottom) if left < right and top < bottom else None


def _write(crop: Image.Image, path: Path, form: str) -> None:
    """Write to a temporary file first: whoever sees the name sees the whole picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            crop.save(file, form, quality=90) if form == "JPEG" else crop.save(file, form)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
