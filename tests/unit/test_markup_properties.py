"""What holds for every answer, composed or mutilated."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.answers import det, ref, squeezed

from deepseek_ocr_loaders.answer import interpret
from deepseek_ocr_loaders.markup import parse, without_leaked_tokens
from deepseek_ocr_loaders.page import Block, Box

if TYPE_CHECKING:
    from collections.abc import Iterator

LABELS = ("text", "title", "sub_title", "table", "table_caption", "image", "equation", "oddity")
PROMPTS = ("markdown", "ocr", "free", "Locate <|ref|>x<|/ref|> in the image.")
WORD = re.compile(r"Wordy[0-9]+Mark")

bodies = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="<|｜>[]"), max_size=40
).map(lambda text: " ".join(text.split()))
edges = st.integers(0, 999)
boxes = st.tuples(edges, edges, edges, edges).map(
    lambda edge: Box(
        min(edge[0], edge[2]), min(edge[1], edge[3]), max(edge[0], edge[2]), max(edge[1], edge[3])
    )
)
blocks = st.builds(
    Block,
    label=st.sampled_from(LABELS),
    text=bodies,
    boxes=st.lists(boxes, min_size=1, max_size=3).map(tuple),
)


def written(block: Block) -> str:
    places = ", ".join(f"[{box.x1}, {box.y1}, {box.x2}, {box.y2}]" for box in block.boxes)
    return f"{ref(block.label or '')}{det(f'[{places}]')}\n{block.text}  \n\n"


@given(st.lists(blocks, max_size=8), bodies)
def test_a_composed_answer_is_read_as_it_was_composed(said: list[Block], preamble: str) -> None:
    found = parse(f"{preamble}\n\n" + "".join(map(written, said)))
    if preamble:
        assert found[0] == Block(None, preamble)
        found = found[1:]
    assert [(each.label, each.text, each.boxes) for each in found] == [
        (each.label, each.text, each.boxes) for each in said
    ]


# --- mutilated answers ----------------------------------------------------------------------

_PIECES = (
    "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "[[", "]]", "[", "]", ",", "-", "<|", "|>", "\n",
    "<table>", "</table>", "<td>", "text", "[[1, 2, 3, 4]]", "<｜end▁of▁sentence｜>",
    "text[[1,2,3,4]]",
)  # fmt: skip


@st.composite
def mutilated(draw: st.DrawFn) -> str:
    count = draw(st.integers(1, 6))
    raw = "".join(
        f"{ref(draw(st.sampled_from(LABELS)))}{det('[[40, 61, 900, 88]]')}\n"
        f"Wordy{number}Mark and Wordy{number + 100}Mark  \n\n"
        for number in range(count)
    )
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(raw)))
        if draw(st.booleans()):
            raw = raw[:at] + raw[at + draw(st.integers(0, 30)) :]
        else:
            raw = raw[:at] + draw(st.sampled_from(_PIECES)) + raw[at:]
    return raw


def words_outside_boxes(raw: str) -> Iterator[str]:
    """Words that are not within a closed det tag, where they may pass for junk in a box."""
    yield from WORD.findall(re.sub(r"<\|det\|>[^|]*<\|/det\|>", " ", without_leaked_tokens(raw)))


def is_subsequence(part: list[str] | str, whole: list[str] | str) -> bool:
    rest = iter(whole)
    return all(any(each == other for other in rest) for each in part)


@given(mutilated(), st.sampled_from(PROMPTS))
@settings(max_examples=400)
def test_no_word_is_lost_doubled_invented_or_moved(raw: str, prompt: str) -> None:
    said = "\n".join(block.text for block in parse(raw, prompt=prompt))
    assert is_subsequence(list(words_outside_boxes(raw)), WORD.findall(said))
    assert is_subsequence(squeezed(said), squeezed(without_leaked_tokens(raw)))


@given(mutilated(), st.sampled_from(PROMPTS), st.sampled_from(["stop", "length", "repetition"]))
def test_every_box_is_sorted_and_on_the_page(raw: str, prompt: str, reason: str) -> None:
    answer = interpret(raw, finish_reason=reason, has_ink=True, prompt=prompt)
    for block in answer.blocks:
        assert block == Block(block.label, block.text, block.boxes, block.flags)
        for box in block.boxes:
            assert 0 <= box.x1 <= box.x2 <= 999
            assert 0 <= box.y1 <= box.y2 <= 999


@given(st.text(max_size=300), st.sampled_from(PROMPTS))
@settings(max_examples=300)
def test_any_text_at_all_is_read(raw: str, prompt: str) -> None:
    answer = interpret(raw, finish_reason="length", has_ink=True, prompt=prompt)
    assert is_subsequence(squeezed("".join(block.text for block in answer.blocks)), squeezed(raw))


@given(st.lists(st.sampled_from(_PIECES), max_size=60).map("".join), st.sampled_from(PROMPTS))
@settings(max_examples=300)
def test_heaps_of_debris_are_read(raw: str, prompt: str) -> None:
    said = "".join(block.text for block in parse(raw, prompt=prompt))
    assert is_subsequence(squeezed(said), squeezed(without_leaked_tokens(raw)))


# --- time -----------------------------------------------------------------------------------

_NESTS = (
    "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "[", "]", "[[", "<|det|>[[", "<|det|>[1,2",
    "<|ref|><|det|>", "<|ref|>a\n", "<|det|>[[1,2,3,4]]<|/det|>", "[[1,2,3,4]]<|/det|>",
    "text[[1, 2, 3, 4]]\n", "<table>", "</table>", "<table><|ref|>text<|/ref|>", "<｜a", "<|",
    "<table <", "<|ref|>text<|/ref|><|det|>[[1,2,3,4]]<|/det|>\nab\n\n",
)  # fmt: skip


@pytest.mark.parametrize("piece", _NESTS)
@pytest.mark.parametrize("prompt", ["markdown", "ocr"])
def test_time_grows_with_the_length_only(piece: str, prompt: str) -> None:
    def seconds(size: int) -> float:
        raw = piece * (size // len(piece))
        started = time.process_time()
        parse(raw, prompt=prompt)
        return time.process_time() - started

    short = min(seconds(30_000) for _ in range(3))
    # Eight times the text: quadratic work would take 64 times as long.
    assert seconds(240_000) < 30 * short + 0.2


@pytest.mark.parametrize("inside", ["[", "1,", "[1,2,3,4]", "9", " ", "a", "-", "a [1,2,3,4] "])
def test_a_megabyte_in_one_tag_is_read(inside: str) -> None:
    found = parse(f"<|ref|>text<|/ref|><|det|>{inside * (1_000_000 // len(inside))}<|/det|>\nBody")
    assert found[-1].text.endswith("Body")
