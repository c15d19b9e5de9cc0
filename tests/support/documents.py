"""Documents of every odd kind, built from scratch."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import pikepdf
from PIL import Image

from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import OpenSource, open_source

if TYPE_CHECKING:
    from collections.abc import Sequence

A4 = "/MediaBox [0 0 595 842]"
WORD = "BT /F 40 Tf 20 780 Td (Word) Tj ET"
"""One word at the top left of an A4 page."""


def pdf_bytes(
    pages: Sequence[tuple[str, str]] = ((A4, WORD),),
    *,
    catalog: str = "",
    pages_dict: str = "",
    count: int | None = None,
    extra: Sequence[str] = (),
    resources: str = "/Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>",
) -> bytes:
    """Write a PDF by hand; page i (from 0) is object 3 + 2 i, its content the object after it.

    Args:
        pages: Keys of the page's dictionary, and its content stream.
        catalog: Keys of the catalog.
        pages_dict: Keys of the root of the page tree.
        count: What /Count says; by default the truth.
        extra: Objects after those of the pages, numbered from 3 + 2 × pages on.
        resources: What is in the /Resources of every page.
    """
    first_extra = 3 + 2 * len(pages)
    kids = " ".join(f"{3 + 2 * i} 0 R" for i in range(len(pages)))
    objects = {
        1: f"<< /Type /Catalog /Pages 2 0 R {catalog} >>",
        2: f"<< /Type /Pages /Kids [{kids}] /Count {len(pages) if count is None else count} "
        f"{pages_dict} >>",
    }
    for i, (keys, content) in enumerate(pages):
        objects[3 + 2 * i] = (
            f"<< /Type /Page /Parent 2 0 R {keys} /Contents {4 + 2 * i} 0 R "
            f"/Resources << {resources} >> >>"
        )
        objects[4 + 2 * i] = f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"
    for i, body in enumerate(extra):
        objects[first_extra + i] = body
    data = b"%PDF-1.7\n"
    offsets = {}
    for number, body in objects.items():
        offsets[number] = len(data)
        data += f"{number} 0 obj\n{body}\nendobj\n".encode("latin1")
    start = len(data)
    data += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    for number in sorted(offsets):
        data += f"{offsets[number]:010d} 00000 n \n".encode()
    return data + (
        f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()
    )


def encrypted(data: bytes, *, user: str, owner: str, revision: int = 6) -> bytes:
    """Encrypt a PDF with pikepdf, revision 2 to 6."""
    out = io.BytesIO()
    with pikepdf.open(io.BytesIO(data)) as pdf, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # revision 5 is deprecated, and found in the wild
        pdf.save(
            out,
            encryption=pikepdf.Encryption(
                user=user,
                owner=owner,
                R=revision,
                aes=revision >= 4,
                metadata=revision >= 4,
            ),
        )
    return out.getvalue()


def image_bytes(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def opened(source: object, name: str | None = None, **options: Any) -> OpenSource:
    """Open a source with settings."""
    return open_source(source, settings=Settings(**options), name=name)


def drawn(
    source: object, index: int = 0, *, model: str = "deepseek-ocr", **options: Any
) -> Image.Image:
    """Give the picture of a page, decoded."""
    with opened(source, **options) as document:
        picture = document.picture(index, model=model)
    image = Image.open(io.BytesIO(picture.data))
    image.load()
    assert image.size == (picture.width, picture.height)
    assert image.mode in {"L", "RGB"}
    return image


def ink_box(image: Image.Image) -> tuple[float, float, float, float]:
    """Give where the dark pixels are, as shares of width and height."""
    box = image.convert("L").point(lambda value: 255 if value < 128 else 0).getbbox()
    assert box is not None
    return (
        box[0] / image.width,
        box[1] / image.height,
        box[2] / image.width,
        box[3] / image.height,
    )


def ink_corner(image: Image.Image) -> str:
    """Give in which corner the dark pixels are: `top left` and so on."""
    x0, y0, x1, y1 = ink_box(image)
    return (
        f"{'top' if (y0 + y1) / 2 < 0.5 else 'bottom'} {'left' if (x0 + x1) / 2 < 0.5 else 'right'}"
    )
