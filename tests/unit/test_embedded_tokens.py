from __future__ import annotations

import pytest

from deepseek_ocr_loaders.engines.embedded import tokens


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((640, 640), 273),
        ((300, 640), 273),
        ((1280, 1920), 903),
        ((1920, 1280), 893),
        ((1280, 720), 483),
    ],
)
def test_pictures_count_as_with_the_model(size: tuple[int, int], expected: int) -> None:
    assert tokens.picture_tokens(*size) == expected


@pytest.mark.parametrize(
    "text", ["", "The harbour office.", "图书馆 12", "<|ref|>text<|/ref|>\n\nx  "]
)
def test_every_cut_is_a_beginning_with_as_many_tokens_as_asked(text: str) -> None:
    total = tokens.count(text)
    assert tokens.cut(text, total) == (text, total, False)
    assert tokens.cut(text, total + 5) == (text, total, False)
    pieces = [tokens.cut(text, limit) for limit in range(total)]
    assert [(count, was_cut) for _, count, was_cut in pieces] == [(n, True) for n in range(total)]
    assert all(text.startswith(piece) for piece, _, _ in pieces)


def test_an_english_page_counts_about_a_token_for_four_letters() -> None:
    text = "The harbour office has kept a daily journal since 1884. " * 20
    assert len(text) / 6 < tokens.count(text) < len(text) / 3


def test_a_tag_is_one_token() -> None:
    assert tokens.count("<|ref|><|/ref|><td></td>") == 4
