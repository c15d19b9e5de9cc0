"""Where the embedded engine looks again on a nearly empty page."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from deepseek_ocr_loaders.engines.embedded.sparse import unseen_regions  # noqa: E402


def page(*inked: tuple[int, int, int, int], paper: int = 255, ink: int = 0) -> np.ndarray:
    pixels = np.full((1000, 800, 3), paper, dtype=np.uint8)
    for left, top, right, bottom in inked:
        pixels[top:bottom, left:right] = ink
    return pixels


def quad(left: int, top: int, right: int, bottom: int) -> np.ndarray:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def test_a_word_is_looked_at_with_paper_around_it() -> None:
    assert unseen_regions(page((300, 500, 360, 520)), []) == [(220, 420, 440, 600)]


def test_large_letters_get_three_times_their_height() -> None:
    assert unseen_regions(page((300, 500, 360, 550)), []) == [(150, 350, 510, 700)]


def test_regions_end_with_the_page() -> None:
    assert unseen_regions(page((0, 0, 30, 20)), []) == [(0, 0, 110, 100)]


def test_words_far_apart_are_looked_at_each_for_itself() -> None:
    apart = page((50, 100, 90, 120), (600, 100, 640, 120), (50, 800, 90, 820))
    assert len(unseen_regions(apart, [])) == 3


def test_words_of_a_line_stay_together() -> None:
    line = page((50, 100, 90, 120), (105, 100, 200, 120), (215, 100, 280, 120))
    assert unseen_regions(line, []) == [(0, 20, 360, 200)]


def test_what_was_found_is_not_looked_at_again() -> None:
    both = page((50, 100, 90, 120), (300, 500, 360, 520))
    assert unseen_regions(both, [quad(48, 98, 92, 122)]) == [(220, 420, 440, 600)]
    found = [quad(48, 98, 92, 122), quad(299, 499, 361, 521)]
    assert unseen_regions(both, found) == []


def test_strokes_that_reach_out_of_a_line_are_part_of_it() -> None:
    stroke = page((100, 100, 300, 200), (300, 150, 340, 210))
    assert unseen_regions(stroke, [quad(100, 100, 300, 200)]) == []


def test_a_quad_beyond_the_edge_is_taken_to_the_edge() -> None:
    assert unseen_regions(page((0, 0, 30, 20)), [quad(-4, -4, 32, 22)]) == []


@pytest.mark.parametrize(
    "nothing",
    [
        page(),
        page((0, 0, 800, 1000)),  # one colour
        page((100, 100, 700, 900)),  # a picture: the model has seen it
        page((300, 500, 360, 520), ink=220),  # what shines through
        page(*((40, top, 60, top + 20) for top in range(20, 980, 60))),  # a drawing
    ],
    ids=["blank", "black", "picture", "pale", "pieces"],
)
def test_there_is_nothing_to_look_at(nothing: np.ndarray) -> None:
    assert unseen_regions(nothing, []) == []


def test_white_letters_on_black_are_ink() -> None:
    assert len(unseen_regions(page((300, 500, 360, 520), paper=0, ink=255), [])) == 1
