"""`ocr="auto"`: which text layers are read instead of the page, and how."""

from __future__ import annotations

import io
from typing import Any

import pikepdf
import pymupdf
import pytest
from PIL import Image
from support.documents import A4, image_bytes, opened, pdf_bytes

from deepseek_ocr_loaders.page import Block, Box

TEXT = (
    "The committee met on Tuesday and agreed to the report as it stood, with two changes to the "
    "second chapter. Members who could not attend may send remarks until 14 March 2024."
)


def document(**page: Any) -> Any:
    made = pymupdf.open()
    made.new_page(width=595, height=842, **page)
    return made


def layer(made: Any, **options: Any) -> tuple[Block, ...] | None:
    with opened(made.tobytes() if hasattr(made, "tobytes") else made, **options) as source:
        return source.text_layer(0)


def written(text: str = TEXT, box: tuple[float, ...] = (60, 60, 535, 300), **style: Any) -> Any:
    made = document()
    assert made[0].insert_textbox(box, text, fontsize=12, **style) > 0
    return made


def test_sound_layer_is_read() -> None:
    blocks = layer(written())
    assert blocks is not None
    assert " ".join(blocks[0].text.split()) == TEXT
    assert blocks[0].label == "text"
    (box,) = blocks[0].boxes
    assert box.x1 == pytest.approx(60 / 595 * 999, abs=3)
    assert box.y1 == pytest.approx(60 / 842 * 999, abs=8)
    assert box.x2 <= 535 / 595 * 999 + 3


@pytest.mark.parametrize(
    "text",
    [
        (
            "Der Ausschuss für Öffentlichkeitsarbeit bedauert, daß die Sitzung am 3. Mai ausfällt; "
            "näheres erfahren Sie von Frau Grünwald-Özdemir (Tel. +49 30 1234-567)."
        ),
        "L'été dernier, nous avons dû reporter l'assemblée générale jusqu'à l'arrivée du maire.",
        "Item 4711: 12 x 3.50 EUR = 42.00 EUR, VAT 19 % 7.98 EUR, total 49.98 EUR, due 2024-03-14",
        "e.g. the API at https://example.org/v1/files?id=7 (see RFC 2616, §4.2) returns HTTP 404",
    ],
)
def test_sound_layer_in_other_words(text: str) -> None:
    blocks = layer(written(text))
    assert blocks is not None
    assert " ".join(" ".join(block.text for block in blocks).split()) == text


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
@pytest.mark.parametrize("page", [0, 90, 180, 270])
def test_boxes_are_those_of_the_upright_page(page: int, turn: int) -> None:
    made = written()
    made[0].set_rotation(page)
    blocks = layer(made, rotate=turn)
    assert blocks is not None
    with opened(made.tobytes(), rotate=turn) as source:
        picture = source.picture(0)
    image = Image.open(io.BytesIO(picture.data)).point(lambda value: 255 if value < 128 else 0)
    x0, y0, x1, y1 = image.getbbox() or (0, 0, 0, 0)
    drawn = Box(
        *(round(v / s * 999) for v, s in zip((x0, y0, x1, y1), image.size * 2, strict=True))
    )
    (box,) = blocks[0].boxes
    for name in ("x1", "y1", "x2", "y2"):
        assert getattr(box, name) == pytest.approx(getattr(drawn, name), abs=12)


def test_boxes_in_a_crop_box() -> None:
    made = written(box=(160, 260, 500, 600))
    made[0].set_cropbox(pymupdf.Rect(100, 200, 595, 842))
    blocks = layer(made)
    assert blocks is not None
    assert blocks[0].boxes[0].x1 == pytest.approx(60 / 495 * 999, abs=4)


def test_two_columns_are_read_one_after_the_other() -> None:
    made = document()
    left = "Left column begins here with plain words and goes on for several lines of text. " * 3
    right = "Right column follows after it with other words and also goes on for lines. " * 3
    made[0].insert_textbox((60, 60, 280, 700), left, fontsize=12)
    made[0].insert_textbox((320, 60, 540, 700), right, fontsize=12)
    blocks = layer(made)
    assert blocks is not None
    text = " ".join(" ".join(block.text for block in blocks).split())
    assert text == f"{left.strip()} {right.strip()}"


def test_table_with_rules_is_a_table() -> None:
    made = written()
    page = made[0]
    rows = [["Name", "Price <net>"], ["Screws & nuts", "12.50"], ["Washers", "3.00"]]
    for y in range(4):
        page.draw_line((60, 400 + 30 * y), (400, 400 + 30 * y))
    for x in (60, 230, 400):
        page.draw_line((x, 400), (x, 490))
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            page.insert_text((66 + 170 * x, 420 + 30 * y), cell, fontsize=11)
    page.insert_text((60, 550), "After the table the report goes on.", fontsize=12)
    blocks = layer(made)
    assert blocks is not None
    assert [block.label for block in blocks] == ["text", "table", "text"]
    assert blocks[1].text == (
        "<table><tr><td>Name</td><td>Price &lt;net&gt;</td></tr>"
        "<tr><td>Screws &amp; nuts</td><td>12.50</td></tr>"
        "<tr><td>Washers</td><td>3.00</td></tr></table>"
    )
    assert blocks[1].boxes[0].y1 == pytest.approx(400 / 842 * 999, abs=4)


# --- what is sent instead -------------------------------------------------------------------


def test_page_without_text_is_sent() -> None:
    assert layer(document()) is None
    assert layer(pdf_bytes([(A4, "0 0 100 100 re f")])) is None


def test_page_with_a_few_words_is_sent() -> None:
    assert layer(written("Chapter 7")) is None


def test_picture_is_sent() -> None:
    assert layer(image_bytes(Image.new("L", (90, 90)), "PNG")) is None


@pytest.mark.parametrize("rendering", [3, 7])
def test_scan_with_hidden_text_is_sent(rendering: int) -> None:
    made = document()
    page = made[0]
    page.insert_image(page.rect, stream=image_bytes(Image.effect_noise((300, 420), 40), "PNG"))
    page.insert_textbox((60, 60, 535, 300), TEXT, fontsize=12, render_mode=rendering)
    assert layer(made) is None


def test_hidden_text_without_a_picture_is_sent() -> None:
    assert layer(written(render_mode=3)) is None


def test_white_text_is_sent() -> None:
    assert layer(written(color=(1, 1, 1))) is None


def test_scan_with_visible_text_over_it_is_sent() -> None:
    made = written()
    made[0].insert_image(
        (0, 300, 595, 842), stream=image_bytes(Image.effect_noise((300, 300), 40), "PNG")
    )
    assert layer(made) is None


def test_drawing_that_says_more_than_the_text_is_sent() -> None:
    # Text converted to outlines is what the page says most with.
    made = written("A caption of about fifty characters under a drawing.", (60, 780, 535, 830))
    shape = made[0].new_shape()
    for y in range(60, 740, 14):
        for x in range(60, 540, 9):
            shape.draw_rect((x, y, x + 6, y + 8))
    shape.finish(fill=(0, 0, 0), width=0)
    shape.commit()
    assert layer(made) is None


def test_underlines_and_frames_are_no_reason_to_send() -> None:
    made = written()
    made[0].draw_rect((40, 40, 555, 320), width=1)
    made[0].draw_line((60, 110), (400, 110))
    assert layer(made) is not None


def remapped(text: str, to_unicode: str | None) -> bytes:
    """Give a page whose glyphs are those of `text` and whose characters are something else."""
    made = written(text, fontname="helv")
    with pikepdf.open(io.BytesIO(made.tobytes())) as pdf:
        fonts = pdf.pages[0].Resources.Font
        for font in fonts.as_dict().values():
            if to_unicode is not None:
                font.ToUnicode = pdf.make_stream(to_unicode.encode())
        out = io.BytesIO()
        pdf.save(out)
    return out.getvalue()


def cmap(shift: int) -> str:
    pairs = "\n".join(f"<{code:02x}> <{(code + shift) % 0xFFFF:04x}>" for code in range(33, 127))
    return (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def\n"
        "/CMapType 2 def 1 begincodespacerange <00> <ff> endcodespacerange\n"
        f"94 beginbfchar\n{pairs}\nendbfchar endcmap CMapName currentdict /CMap defineresource pop"
        " end end"
    )


@pytest.mark.parametrize(
    "shift", [0xE000, 0xFFFD - 100, -29, 3, 13], ids=["private", "replaced", "symbols", "3", "13"]
)
def test_layer_in_a_wrong_encoding_is_sent(shift: int) -> None:
    assert layer(remapped(TEXT, cmap(0))) is not None
    assert layer(remapped(TEXT, cmap(shift))) is None


@pytest.mark.parametrize(
    "garbage",
    [
        "7KH FRPPLWWHH PHW RQ 7XHVGD\\ DQG DJUHHG WR WKH UHSRUW DV LW VWRRG ZLWK WZR FKDQJHV",
        "Tbf dpnnjuuff nfu po Uvftebz boe bhsffe up uif sfqpsu bt ju tuppe xjui uxp dibohft",
        "Th3 c0mm!tt33 m3t 0n Tu3$d@y @nd @gr33d t0 th3 r3p0rt @s !t st00d w!th tw0 ch@ng3$",
        "(cid:12)(cid:44)(cid:7) (cid:81)(cid:9)(cid:12) (cid:12)(cid:44)(cid:7)(cid:81)(cid:9)",
        "ÿþýü ûúùø ÷öõô óòñð ïîíì ëêéè çæåä ãâáà ßÞÝÜ ÛÚÙØ ×ÖÕÔ ÓÒÑÐ ÏÎÍÌ ËÊÉÈ ÇÆÅÄ",
    ],
)
def test_layer_of_garbage_is_sent(garbage: str) -> None:
    assert layer(written(garbage)) is None


def test_layer_in_chinese_with_some_latin_is_read() -> None:
    text = "蒙牛桶装原味酸牛奶 1100g, 冠益乳 XL, 散称华联粉条 2700549 ZZZQQQ; " * 12
    blocks = layer(written(text, fontname="china-s"))
    assert blocks is not None
    assert "蒙牛桶装原味酸牛奶" in blocks[0].text
