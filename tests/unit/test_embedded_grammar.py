from __future__ import annotations

import re

import pytest

from deepseek_ocr_loaders.engines.embedded.grammar import answer, strip_special_tokens
from deepseek_ocr_loaders.engines.embedded.layout import TextBlock
from deepseek_ocr_loaders.engines.embedded.recognise import Line
from deepseek_ocr_loaders.prompts import PROMPTS, locate

WIDTH, HEIGHT = 1280, 1920


def line(text: str, x1: float, y1: float, x2: float, y2: float) -> Line:
    return Line(text, x1, y1, x2, y2, y2 - y1)


FIRST = line("Port Ellis", 100, 100, 300, 150)
SECOND = line("The harbour office has kept", 100, 200, 700, 230)
THIRD = line("a journal.", 100, 240, 300, 270)
BLOCKS = [
    TextBlock("title", "Port Ellis", (FIRST,)),
    TextBlock("text", "The harbour office has kept a journal.", (SECOND, THIRD)),
]


def say(prompt: str, blocks: list[TextBlock] = BLOCKS) -> str:
    return answer(PROMPTS.get(prompt, prompt), blocks, WIDTH, HEIGHT)


def test_markdown_is_written_as_the_model_writes_it() -> None:
    assert say("markdown") == (
        "<|ref|>title<|/ref|><|det|>[[78, 46, 235, 84]]<|/det|>\n"
        "# Port Ellis  \n\n"
        "<|ref|>text<|/ref|><|det|>[[78, 100, 547, 144]]<|/det|>\n"
        "The harbour office has kept a journal.  "
    )


def test_ocr_gives_each_line_in_the_tag() -> None:
    assert say("ocr").split("\n") == [
        "<|ref|>Port Ellis<|/ref|><|det|>[[78, 46, 235, 84]]<|/det|>",
        "<|ref|>The harbour office has kept<|/ref|><|det|>[[78, 100, 547, 123]]<|/det|>",
        "<|ref|>a journal.<|/ref|><|det|>[[78, 121, 235, 144]]<|/det|>",
    ]


@pytest.mark.parametrize("prompt", ["free", "figure", "describe", "What is the total?"])
def test_other_prompts_give_plain_text(prompt: str) -> None:
    assert say(prompt) == "Port Ellis\n\nThe harbour office has kept a journal."


def test_a_prompt_of_one_s_own_with_grounding_is_answered_with_boxes() -> None:
    assert say("<|grounding|>Read it.") == say("markdown")


@pytest.mark.parametrize("prompt", [*PROMPTS, locate("x")])
def test_a_blank_page_gives_an_empty_answer(prompt: str) -> None:
    assert say(prompt, []) == ""


def test_locate_gives_the_place_of_the_words_only() -> None:
    found = re.fullmatch(
        r"<\|ref\|>harbour office<\|/ref\|><\|det\|>\[\[(\d+), (\d+), (\d+), (\d+)\]\]<\|/det\|>",
        say(locate("harbour office")),
    )
    assert found
    x1, _, x2, _ = (int(value) * WIDTH / 999 for value in found.groups())
    assert x1 == pytest.approx(100 + 600 * 4 / 27, abs=4)
    assert x2 == pytest.approx(100 + 600 * 18 / 27, abs=4)


def test_locate_uses_the_places_of_the_letters_where_they_are_known() -> None:
    spread = Line("ab cd", 0, 0, 1000, 50, 50, places=(0.0, 0.1, 0.1, 0.8, 0.9))
    found = say(locate("cd"), [TextBlock("text", "ab cd", (spread,))])
    assert "[[351, 0, 781, 32]]" in found


def test_locate_finds_every_place_whatever_case_width_and_spaces() -> None:
    lines = (line("\uff21\uff22\uff23 12", 0, 0, 100, 30), line("a b c12 abc12", 0, 40, 200, 70))
    found = say(locate("abc12"), [TextBlock("text", "", lines)])
    assert found.count("], [") == 2


def test_locate_follows_a_text_across_the_end_of_a_line() -> None:
    assert say(locate("kept a journal")).count("], [") == 1


def test_locate_of_what_is_not_there_is_empty() -> None:
    assert say(locate("lighthouse")) == ""


@pytest.mark.parametrize(
    "printed",
    [
        "<|ref|>text<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>",
        "<|grounding|>",
        "a <|/det|> b",
        "<｜end▁of▁sentence｜>",
        "<|im_end|>",
    ],
)
@pytest.mark.parametrize("prompt", ["markdown", "ocr", "free", "figure"])
def test_a_page_that_shows_tags_cannot_write_tags(printed: str, prompt: str) -> None:
    shown = line(printed, 0, 0, 100, 30)
    tags = re.compile(r"<[|｜].*?[|｜]>")
    plain = line("x", 0, 0, 100, 30)
    honest = tags.findall(say(prompt, [TextBlock("text", "x", (plain,))]))
    found = say(prompt, [TextBlock("text", printed, (shown,))])
    assert tags.findall(found) == honest
    assert re.sub(r"\s", "", printed) in re.sub(r"\s", "", found)


@pytest.mark.parametrize(
    "box", [(-50, -9, 20, 30), (1200, 1900, 1400, 2000), (0, 0, 1280, 1920), (10, 10, 10.4, 10.2)]
)
def test_boxes_stay_between_0_and_999_and_cover_their_line(box: tuple[float, ...]) -> None:
    text = say("ocr", [TextBlock("text", "x", (line("x", *box),))])
    x1, y1, x2, y2 = map(int, re.findall(r"\d+", text))
    assert 0 <= x1 < x2 <= 999
    assert 0 <= y1 < y2 <= 999
    assert x1 * WIDTH / 999 <= max(box[0], 0)
    assert x2 * WIDTH / 999 >= min(box[2], WIDTH)
    assert y1 * HEIGHT / 999 <= max(box[1], 0)
    assert y2 * HEIGHT / 999 >= min(box[3], HEIGHT)


def test_fault_06_special_tokens_are_taken_out_as_by_vllm() -> None:
    assert strip_special_tokens(say("markdown")) == (
        "title[[78, 46, 235, 84]]\n# Port Ellis  \n\n"
        "text[[78, 100, 547, 144]]\nThe harbour office has kept a journal.  "
    )
    table = "<table><tr><td>a</td></tr></table>"
    assert strip_special_tokens(table) == "<table>a</table>"
