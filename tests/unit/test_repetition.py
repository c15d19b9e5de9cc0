"""Loops are found, and pages that repeat themselves honestly are spared."""

from __future__ import annotations

import random
import time

import pytest
from support.answers import block, det, real_pages, ref

from deepseek_ocr_loaders.repetition import find_loop, loop_span

ROW = "<tr>" + "<td>-</td>" * 4 + "</tr>"


def grounded(count: int, step: int, text: str, start: int = 40) -> str:
    return "".join(
        block("text", (40, start + step * at, 900, start + 10 + step * at), text)
        for at in range(count)
    )


LOOPS = {
    "a line": ("Intro\n" + "Ward office\n" * 1500, "Intro\nWard office\n"),
    "a line, cut": ("Intro\n" + "Ward office\n" * 1500 + "Ward off", "Intro\nWard office\n"),
    "two lines": ("Intro\n" + "It opens on Monday.\nIt opens on Mondays.\n" * 800, None),
    "a dash": ("Intro\n" + "-" * 8000, "Intro\n-"),
    "a letter": ("A" * 4000, "A"),
    "a digit": ("0" * 5000, "0"),
    "digits": ("12" * 3000, "12"),
    "an entity": ("&nbsp;" * 1000, "&nbsp;"),
    "cells": ("<table><tr>" + "<td></td>" * 3000, "<table><tr><td></td>"),
    "cells, closed": (
        "<table><tr>" + "<td></td>" * 3000 + "</tr></table>",
        "<table><tr><td></td>",
    ),
    "rows": ("<table>" + "<tr><td>1</td><td>-</td></tr>" * 400, None),
    "pipe rows": (
        "| a | b |\n|---|---|\n" + "| - | - |\n" * 500,
        "| a | b |\n|---|---|\n| - | - |\n",
    ),
    "boxes that crawl": (
        grounded(560, 1, "Same line"),
        block("text", (40, 40, 900, 50), "Same line"),
    ),
    "boxes that stand": (grounded(300, 0, "Same line"), None),
    "boxes at the edge": (
        "".join(
            block("text", (40, min(999, y), 900, min(999, y + 9)), "Same line of text")
            for y in range(40, 3000, 12)
        ),
        None,
    ),
    "pictures that crawl": (
        "".join(f"{ref('image')}{det(f'[[1, {y}, 9, {y + 9}]]')}\n" for y in range(40, 500)),
        None,
    ),
    "a counter": ("Intro\n" + "".join(f"{n}. Ward office\n" for n in range(1, 800)), None),
    "counters": ("".join(f"Section {n}.{n + 1}: file form {n * 2}.\n" for n in range(300)), None),
    "words": ("the cat " * 500, "the cat "),
    "no spaces": ("区役所" * 2000, "区役所"),
    "a header": ("Body text\n" + "Name: ______\nDate: 2024-01-01\nPlace: Room 4\n" * 150, None),
    "a paragraph": ("This is a paragraph of some length that comes again. " * 6 + "\n") * 60,
}


@pytest.mark.parametrize("name", LOOPS)
def test_fault_07_loops_are_found(name: str) -> None:
    given = LOOPS[name]
    text, kept = given if isinstance(given, tuple) else (given, None)
    at = find_loop(text)
    assert at is not None
    assert 0 < at < len(text) / 10
    if kept is not None:
        assert text[:at] == kept


def test_fault_07_a_loop_after_a_real_page_leaves_the_page_whole() -> None:
    page = real_pages()[2]
    at = find_loop(page + "Ward office\n" * 1500)
    assert at == len(page) + len("Ward office\n")


def test_fault_07_what_follows_a_loop_is_no_part_of_it() -> None:
    text = real_pages()[1] + "Ward office\n" * 1500 + "Ward offices are closed."
    span = loop_span(text)
    assert span is not None
    assert text[span[1] :] == "Ward offices are closed."


_random = random.Random(7)
HONEST = {
    "nothing": "",
    "40 rows of dashes": "<table>" + ROW * 40 + "</table>",
    "60 wide rows of dashes": "<table>" + ("<tr>" + "<td>-</td>" * 12 + "</tr>") * 60 + "</table>",
    "40 pipe rows of dashes": "| a | b |\n|---|---|\n" + "| - | - |\n" * 40,
    "40 rows of dashes, as text": "".join(
        f"{ref('-')}{det(f'[[{x}, {y}, {x + 20}, {y + 10}]]')}\n"
        for y in range(40, 920, 22)
        for x in range(40, 840, 100)
    ),
    "31 closed": "Closed\n" * 31,
    "31 closed, grounded": grounded(31, 28, "Closed"),
    "60 closed, grounded": grounded(60, 15, "Closed"),
    "contents": "\n".join(f"{n}. Chapter {'.' * (120 - n)} {n * 3}" for n in range(1, 45)),
    "contents, spaced": "\n".join(f"{n}. Chapter {'. ' * (60 - n)} {n * 3}" for n in range(1, 45)),
    "lines to write on": "\n".join("_" * 150 for _ in range(60)),
    "a long line to write on": "Name " + "_" * 600 + " Date " + "_" * 400,
    "code": "\n".join("    " * (n % 5) + "}" for n in range(80)),
    "nested code": "{" * 300 + "}" * 300,
    "100 numbered rows": "<table>"
    + "".join(f"<tr><td>{n}</td><td></td><td></td></tr>" for n in range(100))
    + "</table>",
    "120 rows that count": "<table>"
    + "".join(f"<tr><td>Row {n}</td><td>Value {n}</td></tr>" for n in range(120))
    + "</table>",
    "300 rows of numbers": "<table>"
    + "".join(f"<tr><td>{_random.random():.3f}</td></tr>" for _ in range(300))
    + "</table>",
    "a calendar": "<table>" + ("<tr>" + "<td></td>" * 31 + "</tr>") * 31 + "</table>",
    "30 address labels": "Jane Doe\n12 Example Street\n12345 Exampleton\n\n" * 30,
    "100 numbered lines": "".join(f"{n}. ________\n" for n in range(1, 101)),
    "90 zeros": "0\n" * 90,
    "120 references": "".join(
        f"[{n}] A. Author. Title {_random.random()}. 20{n % 24:02d}.\n" for n in range(120)
    ),
    "bits": " ".join(_random.choice("01") for _ in range(2000)),
    "a refrain": "\n".join(f"Verse {n}\nAnd so we sing, and so we sing.\n" for n in range(30)),
}


@pytest.mark.parametrize("name", HONEST)
def test_fault_07_honest_repetition_is_spared(name: str) -> None:
    assert find_loop(HONEST[name]) is None


def test_fault_07_real_pages_are_spared_also_when_they_were_cut() -> None:
    for page in real_pages():
        assert find_loop(page) is None
        assert find_loop(page, evidence="cut") is None


def test_fault_07_the_servers_word_counts() -> None:
    short = "Intro\n" + "Ward office\n" * 6
    assert find_loop(short) is None
    assert find_loop(short, evidence="stopped") == len("Intro\nWard office\n")
    assert find_loop("No loop in here at all.", evidence="stopped") is None
    longer = "Intro\n" + "Ward office\n" * 90
    assert find_loop(longer) is None
    assert find_loop(longer, evidence="cut") == len("Intro\nWard office\n")


@pytest.mark.parametrize(
    "piece", ["a", "ab", "1 ", "12 ", "a" * 511 + "b", "<td></td>", "<|det|>[[1,", "a\n\n"]
)
def test_fault_07_time_grows_with_the_length_only(piece: str) -> None:
    def seconds(size: int) -> float:
        # A last different piece, so that nothing ends early.
        text = piece * (size // len(piece)) + "".join(map(str, range(size // 50)))
        started = time.process_time()
        find_loop(text)
        return time.process_time() - started

    short = min(seconds(30_000) for _ in range(3))
    assert seconds(240_000) < 30 * short + 0.2
