"""Faults 17 and 18: turned pages; boxes refer to the upright picture that is sent."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image
from support.documents import A4, WORD, drawn, image_bytes, ink_box, ink_corner, opened, pdf_bytes

from deepseek_ocr_loaders.errors import RenderError

CORNER = {0: "top left", 90: "top right", 180: "bottom right", 270: "bottom left"}


@pytest.mark.parametrize(
    ("rotate", "rotation"),
    [
        ("0", 0), ("90", 90), ("180", 180), ("270", 270), ("-90", 270), ("-180", 180),
        ("360", 0), ("450", 90), ("-450", 270), ("90.0", 90), ("720", 0),
        ("45", 0), ("44", 0), ("46", 0), ("89", 0), ("135", 0), ("-45", 0), ("300", 0), ("1", 0),
        ("/X", 0), ("null", 0), ("(90)", 0), ("3600000001", 0),
    ],
)  # fmt: skip
def test_fault_17_rotate_of_the_page(rotate: str, rotation: int) -> None:
    data = pdf_bytes([(f"{A4} /Rotate {rotate}", WORD)])
    image = drawn(data)
    assert image.size == ((1920, 1280) if rotation % 180 else (1280, 1920))
    assert ink_corner(image) == CORNER[rotation]
    with opened(data) as document:
        assert document.picture(0).rotation == rotation


@pytest.mark.parametrize(("rotate", "rotation"), [("90", 90), ("45", 0), ("-90", 270)])
def test_fault_17_rotate_is_inherited(rotate: str, rotation: int) -> None:
    data = pdf_bytes(pages_dict=f"/Rotate {rotate}", pages=[(A4, WORD)])
    assert ink_corner(drawn(data)) == CORNER[rotation]


@pytest.mark.parametrize(("rotate", "rotation"), [("90", 90), ("45", 0)])
def test_fault_17_rotate_in_an_object_of_its_own(rotate: str, rotation: int) -> None:
    data = pdf_bytes([(f"{A4} /Rotate 5 0 R", WORD)], extra=[rotate])
    assert ink_corner(drawn(data)) == CORNER[rotation]


def test_fault_17_pages_turn_each_for_itself() -> None:
    pages = [(f"{A4} /Rotate {turn}", WORD) for turn in (0, 90, 180, 270)]
    with opened(pdf_bytes(pages)) as document:
        pictures = [document.picture(i) for i in (3, 0, 2, 1)]
    assert [picture.rotation for picture in pictures] == [270, 0, 180, 90]
    assert [picture.width for picture in pictures] == [1920, 1280, 1280, 1920]


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
@pytest.mark.parametrize("page", [0, 90, 180, 270])
@pytest.mark.parametrize("how", ["number", "mapping", "function"])
def test_fault_18_user_turns_beyond_the_page(rotate: int, page: int, how: str) -> None:
    setting: Any = {
        "number": rotate,
        "mapping": {1: rotate, 2: 90},
        "function": lambda _image, _number: rotate,
    }[how]
    data = pdf_bytes([(f"{A4} /Rotate {page}", WORD)])
    together = (page + rotate) % 360
    image = drawn(data, rotate=setting)
    assert image.size == ((1920, 1280) if together % 180 else (1280, 1920))
    assert ink_corner(image) == CORNER[together]
    with opened(data, rotate=setting) as document:
        assert document.picture(0).rotation == together


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
@pytest.mark.parametrize("how", ["number", "mapping", "function"])
def test_fault_18_pictures_turn_as_pages_do(rotate: int, how: str) -> None:
    setting: Any = {
        "number": rotate,
        "mapping": {1: rotate},
        "function": lambda _image, _number: rotate,
    }[how]
    picture = Image.new("L", (300, 200), 255)
    picture.paste(0, (10, 10, 60, 30))
    image = drawn(image_bytes(picture, "PNG"), rotate=setting)
    assert image.size == ((200, 300) if rotate % 180 else (300, 200))
    assert ink_corner(image) == CORNER[rotate]


def test_fault_18_text_drawn_sideways_is_shown_to_the_hook() -> None:
    seen: list[tuple[int, str]] = []
    sideways = "BT /F 40 Tf 0 1 -1 0 580 20 Tm (Word) Tj ET"

    def hook(image: Image.Image, number: int) -> int:
        seen.append((number, ink_corner(image)))
        return 90

    image = drawn(pdf_bytes([(A4, sideways)] * 2), 1, rotate=hook)
    assert seen == [(2, "bottom right")]
    x0, y0, x1, y1 = ink_box(image)
    assert (x1 - x0) * image.width > (y1 - y0) * image.height  # it lies level now
    assert ink_corner(image) == "bottom left"


def test_fault_18_never_turned_without_being_asked() -> None:
    sideways = "BT /F 40 Tf 0 1 -1 0 580 20 Tm (Word) Tj ET"
    assert ink_corner(drawn(pdf_bytes([(A4, sideways)]))) == "bottom right"


def test_fault_18_hook_cannot_spoil_the_picture() -> None:
    def hook(image: Image.Image, _number: int) -> int:
        image.paste(0, (0, 0, image.width, image.height))
        return 0

    assert ink_corner(drawn(pdf_bytes(), rotate=hook)) == "top left"


@pytest.mark.parametrize("answer", [45, 1, None, "90", 90.0, True])
def test_fault_18_hook_with_a_wrong_answer_fails_that_page(answer: Any) -> None:
    with (
        opened(pdf_bytes(), rotate=lambda _image, _number: answer) as document,
        pytest.raises(RenderError, match="multiple of 90"),
    ):
        document.picture(0)


def test_fault_18_hook_that_raises_fails_that_page() -> None:
    def hook(_image: Image.Image, number: int) -> int:
        if number == 1:
            msg = "no idea"
            raise KeyError(msg)
        return 0

    with opened(pdf_bytes([(A4, WORD)] * 2), rotate=hook) as document:
        with pytest.raises(RenderError, match="no idea"):
            document.picture(0)
        assert document.picture(1).has_ink


@pytest.mark.parametrize("turn", [-90, 450])
def test_fault_18_hook_may_count_round_the_circle(turn: int) -> None:
    image = drawn(pdf_bytes(), rotate=lambda _image, _number: turn)
    assert ink_corner(image) == CORNER[turn % 360]
