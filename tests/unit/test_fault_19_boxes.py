"""Fault 19: crop boxes and media boxes, possible and impossible; what a viewer shows is drawn."""

from __future__ import annotations

import logging

import pytest
from support.documents import A4, WORD, drawn, ink_corner, opened, pdf_bytes

FORM = "/Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>"


@pytest.mark.parametrize(
    ("box", "size"),
    [
        ("/MediaBox [595 842 0 0]", (595, 842)),
        ("/MediaBox [0 0 0 0]", (612, 792)),
        ("", (612, 792)),
        ("/MediaBox [0 0 /a /b]", (612, 792)),
        ("/MediaBox [0 0 595]", (612, 792)),
        ("/MediaBox 5", (612, 792)),
        ("/MediaBox [0 0 1e38 1e38]", (612, 792)),
        (f"{A4} /CropBox [0 0 595 842]", (595, 842)),
        (f"{A4} /CropBox [0 700 300 842]", (300, 142)),
        (f"{A4} /CropBox [300 842 0 700]", (300, 142)),
        (f"{A4} /CropBox [-50 -50 700 900]", (595, 842)),
    ],
)
def test_fault_19_visible_area_is_the_frame(box: str, size: tuple[int, int]) -> None:
    image = drawn(pdf_bytes([(box, WORD)]), dpi=72)
    assert image.size == size
    assert ink_corner(image) in {"top left", "bottom left"}  # a low page shows it lower


@pytest.mark.parametrize(
    "crop",
    ["[1000 1000 2000 2000]", "[0 0 0 0]", "[594.9 0 2000 842]", "[0 0 0.1 0.1]", "[-9 -9 -5 -5]"],
)
@pytest.mark.parametrize("inherited", [False, True])
def test_fault_19_impossible_crop_box_falls_back_with_a_warning(
    crop: str, caplog: pytest.LogCaptureFixture, *, inherited: bool
) -> None:
    caplog.set_level(logging.WARNING)
    keys = f"/CropBox {crop}"
    data = pdf_bytes(
        [(A4 if inherited else f"{A4} {keys}", WORD)], pages_dict=keys if inherited else ""
    )
    image = drawn(data, dpi=72)
    assert image.size == (595, 842)
    assert ink_corner(image) == "top left"
    assert "page 1" in caplog.text
    assert "CropBox" in caplog.text


def test_fault_19_letter_pages_are_no_fallback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    box = "/MediaBox [0 0 800 1000] /CropBox [0 200 612 992]"
    assert drawn(pdf_bytes([(box, WORD)]), dpi=72).size == (612, 792)
    assert not caplog.records


@pytest.mark.parametrize("box", ["[0 0 0.4 842]", "[0 0 842 0.4]", "[0 0 1 1]", "[0 0 2 842]"])
def test_fault_19_tiny_page_is_padded(box: str) -> None:
    with opened(pdf_bytes([(f"/MediaBox {box}", WORD)])) as document:
        picture = document.picture(0)
    assert min(picture.width, picture.height) >= 640


def test_fault_19_origin_away_from_zero() -> None:
    data = pdf_bytes([("/MediaBox [-100 -100 495 842]", "BT /F 40 Tf -80 780 Td (Word) Tj ET")])
    image = drawn(data, dpi=72)
    assert image.size == (595, 942)
    assert ink_corner(image) == "top left"


def test_fault_19_media_box_is_inherited() -> None:
    assert drawn(pdf_bytes([("", WORD)], pages_dict=A4), dpi=72).size == (595, 842)


def test_annotations_and_form_fields_are_painted() -> None:
    appearance = (
        f"<< /Type /XObject /Subtype /Form /BBox [0 0 200 60] /Resources << {FORM} >> "
        "/Length 34 >>\nstream\nBT /F 40 Tf 10 10 Td (Form) Tj ET  \nendstream"
    )
    annotation = "<< /Type /Annot /Subtype {} /Rect [350 20 550 80] /F {} {} /AP << /N 5 0 R >> >>"
    field = "/FT /Tx /T (a) /V (Form)"
    for subtype, flags, keys, shown in [
        ("/Stamp", 4, "", True),
        ("/Widget", 4, field, True),
        ("/Widget", 0, field, True),
        ("/Stamp", 2, "", False),  # hidden
        ("/Stamp", 32, "", False),  # no view
    ]:
        data = pdf_bytes(
            [(f"{A4} /Annots [6 0 R]", "")],
            extra=[appearance, annotation.format(subtype, flags, keys)],
            catalog="/AcroForm << /Fields [6 0 R] >>" if keys else "",
        )
        with opened(data) as document:
            assert document.picture(0).has_ink is shown, (subtype, flags)
        if shown:
            assert ink_corner(drawn(data)) == "bottom right"


def test_field_without_appearance_shows_its_value() -> None:
    field = (
        "<< /Type /Annot /Subtype /Widget /FT /Tx /T (a) /V (Value of the field) /F 4 "
        "/DA (/Helv 20 Tf 0 g) /Rect [350 20 550 80] >>"
    )
    data = pdf_bytes(
        [(f"{A4} /Annots [5 0 R]", "")],
        extra=[field],
        catalog="/AcroForm << /Fields [5 0 R] /NeedAppearances true /DR << /Font << /Helv << "
        "/Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
    )
    assert ink_corner(drawn(data)) == "bottom right"


@pytest.mark.parametrize(
    ("config", "shown"), [("/OFF [5 0 R]", False), ("/ON [5 0 R]", True), ("", True)]
)
def test_optional_content_is_as_shown(config: str, *, shown: bool) -> None:
    data = pdf_bytes(
        [(A4, f"/OC /L BDC {WORD} EMC")],
        extra=["<< /Type /OCG /Name (Layer) >>"],
        catalog=f"/OCProperties << /OCGs [5 0 R] /D << {config} >> >>",
        resources=f"{FORM} /Properties << /L 5 0 R >>",
    )
    with opened(data) as document:
        assert document.picture(0).has_ink is shown
