from __future__ import annotations

import random

from deepseek_ocr_loaders.engines.embedded.layout import TextBlock, arrange
from deepseek_ocr_loaders.engines.embedded.recognise import Line


def line(text: str, x: float, y: float, *, width: float | None = None, height: float = 30) -> Line:
    """A line whose letters are half as wide as a 24-pixel font, unless a width is given."""
    width = len(text) * height * 0.4 if width is None else width
    return Line(text, x, y, x + width, y + height, height)


def column(words: list[str], x: float, top: float, *, width: float = 500) -> list[Line]:
    return [line(text, x, top + 36 * i, width=width) for i, text in enumerate(words)]


def texts(lines: list[Line]) -> list[str]:
    return [block.text for block in arrange(lines)]


PROSE = ["the first line of a paragraph that", "goes on here and fills the line to", "its very end"]


def prose(x: float, top: float, mark: str, width: float = 500) -> list[Line]:
    lines = column([f"{mark} {text}" for text in PROSE], x, top, width=width)
    return [*lines[:2], line(f"{mark} its end", x, top + 72, width=width / 3)]


def test_a_blank_page_has_no_blocks() -> None:
    assert arrange([]) == []


def test_the_lines_of_a_paragraph_become_one_block_with_all_of_them() -> None:
    lines = prose(100, 50, "a")
    assert arrange(list(reversed(lines))) == [
        TextBlock("text", " ".join(part.text for part in lines), tuple(lines))
    ]


def test_paragraphs_are_parted_by_white_space() -> None:
    lines = prose(100, 50, "a") + prose(100, 200, "b")
    assert [text[0] for text in texts(lines)] == ["a", "b"]


def test_paragraphs_are_parted_by_an_indent() -> None:
    lines = column(["one full line of the text here ok"] * 3, 100, 50)
    lines += [line("Indented line of the next one ok", 140, 50 + 108, width=460)]
    lines += column(["one more full line of the text ok"], 100, 50 + 144)
    assert [text[:3] for text in texts(lines)] == ["one", "Ind"]


def test_two_columns_are_read_one_after_the_other() -> None:
    left = prose(100, 50, "l1") + prose(100, 180, "l2")
    right = prose(680, 50, "r1") + prose(680, 180, "r2")
    mixed = [part for pair in zip(left, right, strict=True) for part in pair]
    assert [text[:2] for text in texts(mixed)] == ["l1", "l2", "r1", "r2"]


def test_three_columns_under_a_heading_across_two_of_them() -> None:
    heading = line("A heading across", 100, 20, width=700, height=60)
    columns = [prose(x, 120, mark, 330) for x, mark in ((100, "a"), (480, "b"), (860, "c"))]
    found = texts([heading, *(part for trio in zip(*columns, strict=True) for part in trio)])
    assert [text[:2] for text in found] == ["A ", "a ", "b ", "c "]


def test_a_line_across_parts_the_columns_above_from_those_below() -> None:
    above = prose(100, 50, "a") + prose(680, 50, "b")
    across = line("a line that goes across both of the columns", 100, 200, width=1080)
    below = prose(100, 280, "c") + prose(680, 280, "d")
    assert [text[:2] for text in texts([*above, *below, across])] == ["a ", "b ", "a ", "c ", "d "]


def test_a_table_is_read_row_by_row() -> None:
    rows = [("Item", "Shelf", "Price"), ("Ink", "A 3", "4.20"), ("Paper", "B 1", "0.05")]
    rows += [("Glue", "C 8", "11.25"), ("Brush", "D 2", "3.10")]
    cells = [
        line(cell, x, 50 + 60 * number)
        for x, index in ((100, 0), (500, 1), (900, 2))
        for number, cell in enumerate(row[index] for row in rows)
    ]
    assert texts(cells) == ["  ".join(row) for row in rows]


def test_pieces_of_one_line_are_joined() -> None:
    pieces = [line("and the second piece", 452, 52), line("the first piece", 250, 50)]
    assert texts(pieces) == ["the first piece and the second piece"]


def test_rows_of_a_slanted_page_stay_together() -> None:
    slope = 0.03  # 30 pixels over the width: as much as a line is high
    rows = [[f"a long name of thing {n}", f"value {n}"] for n in range(6)]
    lines = []
    for number, row in enumerate(rows):
        for x, text in ((100, row[0]), (1000, row[1])):
            flat = line(text, x, 50 + 40 * number)
            sink = slope * (flat.x1 + flat.x2) / 2
            lines.append(
                Line(text, flat.x1, flat.y1 + sink - 3, flat.x2, flat.y2 + sink + 3, 30, slope)
            )
    found = arrange(lines)
    assert [block.text for block in found] == ["  ".join(row) for row in rows]
    assert all(part in lines for block in found for part in block.lines)


def test_large_letters_are_headings_and_capitals_are_not() -> None:
    lines = [line("Main heading", 100, 20, height=60)]
    lines += prose(100, 150, "a", 430)
    lines += [line("Smaller heading", 100, 300, height=42)]
    lines += prose(100, 380, "b", 430)
    lines += [line("A LINE IN CAPITALS", 100, 530, width=18 * 17)]
    assert [block.label for block in arrange(lines)] == [
        "title",
        "text",
        "sub_title",
        "text",
        "text",
    ]


def test_a_page_with_only_large_letters_has_no_heading() -> None:
    assert [block.label for block in arrange([line("PRIVATE ROAD", 100, 50, height=200)])] == [
        "text"
    ]


def test_list_items_are_blocks_of_their_own_and_keep_their_second_line() -> None:
    lines = [
        line("1. Wash the brushes with warm water and", 100, 50, width=560),
        line("a little soap.", 140, 86),
        line("2. Dry them on a cloth for an hour or so", 100, 122, width=560),
        line("• Keep the cloth.", 100, 158),
    ]
    assert texts(lines) == [
        "1. Wash the brushes with warm water and a little soap.",
        "2. Dry them on a cloth for an hour or so",
        "• Keep the cloth.",
    ]


def test_a_number_at_the_start_of_a_line_is_no_list_item() -> None:
    lines = column(
        ["fish made up half of the cargo and", "37.5% of the fees were paid, the rest"], 100, 50
    )
    lines += column(["was due in volume 12 and in volume"], 100, 122)
    lines += column(["12. The end of it came much later on"], 100, 158)
    assert len(texts(lines)) == 1


def test_a_word_parted_at_the_end_of_a_line_is_joined() -> None:
    lines = column(["this is a very long line with an exam-", "ple and a state-of-the-"], 100, 50)
    lines += column(["art word and in the year 1990-"], 100, 122) + column(
        ["1991 it was over"], 100, 158
    )
    assert texts(lines) == [
        (
            "this is a very long line with an example and a state-of-the- art word "
            "and in the year 1990- 1991 it was over"
        )
    ]


def test_chinese_lines_are_joined_without_a_space() -> None:
    lines = column(["市立图书馆位于人民路每天", "上午九点开门 Wi-Fi", "可用"], 100, 50)
    assert texts(lines) == ["市立图书馆位于人民路每天上午九点开门 Wi-Fi 可用"]


def test_every_line_is_in_exactly_one_block() -> None:
    rng = random.Random(3)
    for _ in range(60):
        lines = [
            line(
                f"w{n} " * rng.randint(1, 12),
                rng.uniform(0, 1200),
                rng.uniform(0, 1900),
                height=rng.uniform(8, 60),
            )
            for n in range(rng.randint(1, 90))
        ]
        lines = [
            Line(part.text.strip(), part.x1, part.y1, part.x2, part.y2, part.height)
            for part in lines
        ]
        found = [id(part) for block in arrange(lines) for part in block.lines]
        assert sorted(found) == sorted(map(id, lines))
