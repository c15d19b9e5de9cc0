"""Pictures that are cut out of the page."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from deepseek_ocr_loaders.errors import ConfigurationError
from deepseek_ocr_loaders.images import save_images
from deepseek_ocr_loaders.markup import parse
from deepseek_ocr_loaders.page import Block, Box, Picture

if TYPE_CHECKING:
    from pathlib import Path


def picture(
    color: str = "white", size: tuple[int, int] = (1000, 500), form: str = "PNG"
) -> Picture:
    page = Image.new("RGB", size, color)
    page.paste("red", (100, 50, 200, 100))
    data = io.BytesIO()
    page.save(data, form)
    return Picture(data.getvalue(), f"image/{form.lower()}", *size)


FIGURE = Block("image", "", (Box(100, 100, 200, 200),))


def test_a_picture_is_cut_out_at_its_box(tmp_path: Path) -> None:
    text = Block("text", "x", (Box(1, 2, 3, 4),))
    kept, found = save_images(picture(), (text, FIGURE), image_dir=tmp_path / "new", stem="abc-p1")
    assert kept is text
    assert found.image is not None
    assert found.image.startswith("abc-p1-2-")
    with Image.open(tmp_path / "new" / found.image) as saved:
        assert saved.size == (100, 50)
        assert saved.getpixel((50, 25)) == (255, 0, 0)
    assert [each.name for each in (tmp_path / "new").iterdir()] == [found.image]


@pytest.mark.parametrize(
    "payload", ["[[500,500,200,800]]", "[[-5,0,10,10]]", "[[990,10,1200,40]]", "[[0,0,999,999]]"]
)
def test_fault_02_reversed_and_far_boxes_are_cut_on_the_page(payload: str, tmp_path: Path) -> None:
    blocks = parse(f"<|ref|>image<|/ref|><|det|>{payload}<|/det|>")
    (found,) = save_images(picture(), blocks, image_dir=tmp_path, stem="s")
    assert found.image is not None
    with Image.open(tmp_path / found.image) as saved:
        assert saved.width > 0
        assert saved.height > 0
        assert saved.width <= 1000
        assert saved.height <= 500


@pytest.mark.parametrize("payload", ["[[300,300,300,600]]", "[[300,300,600,300]]", "[[1,2,3]]", ""])
def test_fault_02_no_area_gives_no_picture_and_no_error(payload: str, tmp_path: Path) -> None:
    blocks = parse(f"<|ref|>image<|/ref|><|det|>{payload}<|/det|>")
    assert save_images(picture(), blocks, image_dir=tmp_path, stem="s") == blocks
    assert list(tmp_path.iterdir()) == []


def test_several_boxes_give_one_picture_that_holds_them(tmp_path: Path) -> None:
    both = Block("figure", "", (Box(0, 0, 99, 99), Box(500, 500, 999, 999)))
    (found,) = save_images(picture(), (both,), image_dir=tmp_path, stem="s")
    with Image.open(tmp_path / str(found.image)) as saved:
        assert saved.size == (1000, 500)


def test_names_are_stable_and_never_shared(tmp_path: Path) -> None:
    def name(page: Picture, block: Block, stem: str) -> str:
        (found,) = save_images(page, (block,), image_dir=tmp_path, stem=stem)
        return str(found.image)

    white = picture()
    first = name(white, FIGURE, "a-p1")
    before = hashlib.sha256((tmp_path / first).read_bytes()).digest()
    others = {
        name(white, FIGURE, "a-p2"),
        name(white, FIGURE, "b-p1"),
        name(white, Block("image", "", (Box(100, 100, 200, 201),)), "a-p1"),
        name(picture("blue"), FIGURE, "a-p1"),
    }
    assert len(others) == 4
    assert first not in others
    assert name(white, FIGURE, "a-p1") == first
    assert hashlib.sha256((tmp_path / first).read_bytes()).digest() == before


def test_a_jpeg_page_gives_jpeg_pictures(tmp_path: Path) -> None:
    (found,) = save_images(picture(form="JPEG"), (FIGURE,), image_dir=tmp_path, stem="s")
    assert str(found.image).endswith(".jpg")
    with Image.open(tmp_path / str(found.image)) as saved:
        assert saved.format == "JPEG"


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match=r"image_dir: .*file.* cannot be written"):
        save_images(picture(), (FIGURE,), image_dir=tmp_path / "file", stem="s")


def test_a_write_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", broken)
    page = Picture(_PNG, "image/png", 10, 10)
    with pytest.raises(ConfigurationError, match="No space left"):
        save_images(
            page, (Block("image", "", (Box(0, 0, 999, 999),)),), image_dir=tmp_path, stem="s"
        )
    assert list(tmp_path.iterdir()) == []


_PNG = picture(size=(300, 200)).data
