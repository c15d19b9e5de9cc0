# ruff: noqa: RUF001 - the Chinese sample has Chinese commas
"""Make the sample PDFs of `examples/samples`, and what stands on them in `expected/`.

Usage: python scripts/make_samples.py [FOLDER]

The same call gives the same bytes with the same PyMuPDF and Pillow. Each text file holds the
words of the PDF of the same name in reading order: paragraphs apart by a blank line, pages by a
form feed.
"""

from __future__ import annotations

import io
import random
import re
import sys
from pathlib import Path

import pymupdf
from PIL import Image, ImageFilter

A4 = (595, 842)
MARGIN = 60
FIXED_DATE = "D:20260105090000Z"
SCAN_DPI = 200


def _paragraphs(text: str) -> list[str]:
    """Unwrap paragraphs; a line end beside Chinese characters stands for nothing."""
    joined = re.sub(r"(?<=[\u3000-\u9fff])\n(?=[\u4e00-\u9fff])", "", text.strip())
    return [" ".join(paragraph.split("\n")) for paragraph in joined.split("\n\n")]


ARTICLE_TITLE = "Harbour records of Port Ellis"
ARTICLE = _paragraphs("""
The harbour office has kept a daily journal since 1884. Each entry names the ships that arrived,
the weather at noon, and the goods that were unloaded on the north quay. Most of the early
volumes were written by the same hand, which makes them pleasant to read.

In the winter of 1907 the office moved to the brick building next to the lighthouse. Seven
crates of paper were carried across the bridge by cart; two of them fell into the water and were
dried page by page over a stove. The stains can still be seen today.

Between 1912 and 1931 the number of ships grew from 418 to 1,296 a year. Fish made up 37.5% of
the cargo, coal another 28%, and timber the rest. Fees were due within 30 days, and the journal
lists every merchant who paid late.

The volumes are now read by machine. Every page is photographed, described with a few words
(ship, captain, cargo), and made searchable. Questions may be sent to archive@port-ellis.example
or asked at the desk from Monday to Thursday.
""")

LETTER = _paragraphs("""
Dear Ms. Okafor,

Thank you for your letter of 14 March. We have examined the three boxes that you sent and found
them in good order, apart from a torn cover on volume 12. The repair will take about two weeks
and costs $85.40, which includes the new spine.

Please note that the reading room is closed on public holidays. If you would like to see the
originals before they go back to the shelf, call us at least one day ahead so that somebody can
prepare a table near the window.

We also looked for the map that you mention. It is not in the catalogue of 1955, but an older
list describes a coloured drawing of the bay, 42 by 60 cm, signed J. Hartwell. It may be the
sheet that hung in the captain's office until the fire.

With kind regards,

Margaret Lindqvist
""")

LEFT_COLUMN = _paragraphs("""
Bees find their way home by the position of the sun. On cloudy days they use the pattern of
polarised light in a small patch of blue sky, which is enough to tell them where the sun must
be.

A worker that has found a rich meadow dances on the comb. The angle of her run against the
vertical gives the direction, and the length of the run gives the distance. The other bees
follow her in the dark and learn both.

Young bees practise first. They fly short loops in front of the hive, always facing it, and
remember the trees and stones around the entrance.
""")
RIGHT_COLUMN = _paragraphs("""
The sun moves during the day, and the dance moves with it. A bee that dances for an hour turns
her run slowly, although she has not seen the sky since she came in. She carries a clock with
her.

How exact is the message? In trials with 200 marked bees, most of them searched within 150
metres of the goal. Wind and hills add errors, so the last steps are guided by scent.

Whether the length of the dance counts effort or the pictures that pass under the eye was
settled by flights through a narrow tunnel with painted walls.
""")

TABLE_TITLE = "Stock list, spring"
TABLE = [
    ["Item", "Shelf", "Pieces", "Price"],
    ["Ink, black", "A 3", "120", "4.20"],
    ["Ink, red", "A 4", "35", "4.60"],
    ["Paper, ruled", "B 1", "2,400", "0.05"],
    ["Paper, plain", "B 2", "1,850", "0.04"],
    ["Binding thread", "C 7", "64", "7.90"],
    ["Glue, 1 litre", "C 8", "12", "11.25"],
    ["Brush, flat", "D 2", "48", "3.10"],
]
TABLE_NOTE = "Prices are in euros for one piece. The list is checked on the first of each month."

MIXED_TITLE = "图书馆开放时间 Opening hours"
MIXED = _paragraphs("""
市立图书馆位于人民路128号，每天上午九点开门，晚上八点关门。
读者可以凭借书证借阅图书，每次最多借十本，借期三十天。

The city library is open from 9:00 to 20:00 every day. Readers may borrow up to ten books for
thirty days and renew them once at the desk.

二楼设有电子阅览室，提供 Wi-Fi 和 40 台电脑。
需要打印的读者请使用 PDF 文件，每页收费 0.5 元。

Questions can be sent to library@example.org.
如有问题，请致电服务台，我们会在两个工作日内回复。
""")

LABELS = [("i", "Preface"), ("ii", "Contents"), ("1", "First chapter"), ("2", "Second chapter")]
LABELLED = """
This page carries the printed number {label}. Viewers show the same number beside the page,
because the document says so.
"""


def main() -> None:
    """Write all samples."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _default_folder()
    (folder / "expected").mkdir(parents=True, exist_ok=True)
    letter, mixed = _prose(None, LETTER), _prose(MIXED_TITLE, MIXED)
    documents = {
        "born_digital": (_prose(ARTICLE_TITLE, ARTICLE), [[ARTICLE_TITLE, *ARTICLE]]),
        "scan": (_scanned(letter, seed=1), [LETTER]),
        "two_columns": (_two_columns(), [[*LEFT_COLUMN, *RIGHT_COLUMN]]),
        "table": (_table(), [[TABLE_TITLE, *(" ".join(row) for row in TABLE), TABLE_NOTE]]),
        "mixed": (mixed, [[MIXED_TITLE, *MIXED]]),
        "mixed_scan": (_scanned(mixed, seed=2), [[MIXED_TITLE, *MIXED]]),
        "labels": (
            _labels(),
            [[title, _labelled(label), f"Page {label}"] for label, title in LABELS],
        ),
    }
    for name, (document, pages) in documents.items():
        document.set_metadata(
            {
                "title": name.replace("_", " "),
                "creator": "make_samples.py",
                "producer": "PyMuPDF",
                "creationDate": FIXED_DATE,
                "modDate": FIXED_DATE,
            }
        )
        # Without no_new_id every run would write another trailer /ID.
        document.save(folder / f"{name}.pdf", garbage=4, deflate=True, no_new_id=True)
        text = "\f".join("\n\n".join(paragraphs) for paragraphs in pages)
        (folder / "expected" / f"{name}.txt").write_text(text + "\n", encoding="utf-8")


def _default_folder() -> Path:
    return Path(__file__).resolve().parent.parent / "examples" / "samples"


def _font(text: str) -> pymupdf.Font:
    # "china-s" is the CJK font that PyMuPDF carries; it has Latin letters too.
    return pymupdf.Font("helv" if text.isascii() else "china-s")


def _write(
    page: pymupdf.Page, text: str, at: tuple[float, float], *, width: float, size: float
) -> float:
    """Write a paragraph, broken at words or between Chinese characters; give where it ends."""
    left, top = at
    font = _font(text)
    writer = pymupdf.TextWriter(page.rect)
    line = ""
    for piece in _pieces(text):
        if line.strip() and font.text_length(line + piece.rstrip(), size) > width:
            top += size * 1.35
            writer.append((left, top), line.rstrip(), font=font, fontsize=size)
            line = piece.lstrip()
        else:
            line += piece
    top += size * 1.35
    writer.append((left, top), line.rstrip(), font=font, fontsize=size)
    writer.write_text(page)
    return top


def _pieces(text: str) -> list[str]:
    """Split where a line may be broken; punctuation stays with what stands before it."""
    pieces = [""]
    for character in text:
        wide = "\u4e00" <= character <= "\u9fff"
        if pieces[-1] and (wide or pieces[-1][-1].isspace() or _ends_wide(pieces[-1], character)):
            pieces.append("")
        pieces[-1] += character
    return pieces


def _ends_wide(piece: str, character: str) -> bool:
    return "\u4e00" <= piece[-1] <= "\u9fff" and character.isalnum()


def _prose(title: str | None, paragraphs: list[str]) -> pymupdf.Document:
    document = pymupdf.open()
    page = document.new_page(width=A4[0], height=A4[1])
    width, top = A4[0] - 2 * MARGIN, float(MARGIN)
    if title:
        top = _write(page, title, (MARGIN, top), width=width, size=20) + 14
    for paragraph in paragraphs:
        top = _write(page, paragraph, (MARGIN, top), width=width, size=11.5) + 10
    document.subset_fonts()
    return document


def _two_columns() -> pymupdf.Document:
    document = pymupdf.open()
    page = document.new_page(width=A4[0], height=A4[1])
    for left, column in ((MARGIN, LEFT_COLUMN), (310, RIGHT_COLUMN)):
        top = float(MARGIN)
        for paragraph in column:
            top = _write(page, paragraph, (left, top), width=225, size=11) + 9
    document.subset_fonts()
    return document


def _table() -> pymupdf.Document:
    document = pymupdf.open()
    page = document.new_page(width=A4[0], height=A4[1])
    top = _write(page, TABLE_TITLE, (MARGIN, MARGIN), width=400, size=18) + 20
    columns, row_height = (MARGIN, 240, 330, 430, 535), 24
    for number, row in enumerate(TABLE):
        y = top + number * row_height
        for left, cell in zip(columns, row, strict=False):
            _write(page, cell, (left + 6, y), width=200, size=11)
    bottom = top + len(TABLE) * row_height
    for number in range(len(TABLE) + 1):
        y = top + number * row_height
        page.draw_line((columns[0], y), (columns[-1], y), width=0.7)
    for x in columns:
        page.draw_line((x, top), (x, bottom), width=0.7)
    _write(page, TABLE_NOTE, (MARGIN, bottom + 12), width=A4[0] - 2 * MARGIN, size=11)
    document.subset_fonts()
    return document


def _labelled(label: str) -> str:
    return _paragraphs(LABELLED)[0].format(label=label)


def _labels() -> pymupdf.Document:
    document = pymupdf.open()
    for label, title in LABELS:
        page = document.new_page(width=A4[0], height=A4[1])
        width = A4[0] - 2 * MARGIN
        top = _write(page, title, (MARGIN, MARGIN), width=width, size=20) + 14
        _write(page, _labelled(label), (MARGIN, top), width=width, size=11.5)
        _write(page, f"Page {label}", (A4[0] / 2 - 20, A4[1] - 60), width=100, size=11)
    document.set_page_labels(
        [
            {"startpage": 0, "prefix": "", "style": "r", "firstpagenum": 1},
            {"startpage": 2, "prefix": "", "style": "D", "firstpagenum": 1},
        ]
    )
    document.subset_fonts()
    return document


def _scanned(document: pymupdf.Document, *, seed: int) -> pymupdf.Document:
    """Make pictures of the pages that look scanned: slightly turned, soft, noisy."""
    scan = pymupdf.open()
    for page in document:
        pixels = page.get_pixmap(dpi=SCAN_DPI, colorspace=pymupdf.csGRAY)
        image = Image.frombytes("L", (pixels.width, pixels.height), pixels.samples)
        image = image.rotate(0.3, resample=Image.Resampling.BICUBIC, fillcolor=255)
        image = image.filter(ImageFilter.GaussianBlur(0.6))
        noise = Image.frombytes("L", image.size, random.Random(seed).randbytes(len(pixels.samples)))
        image = Image.blend(image, noise, 0.03)
        data = io.BytesIO()
        image.save(data, "JPEG", quality=45)
        sheet = scan.new_page(width=A4[0], height=A4[1])
        sheet.insert_image(sheet.rect, stream=data.getvalue())
    return scan


if __name__ == "__main__":
    main()
