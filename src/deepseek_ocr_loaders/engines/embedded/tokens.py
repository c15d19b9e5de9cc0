"""Token counts: exact for pictures, rough for text, because there is no tokenizer here."""

from __future__ import annotations

import re

__all__ = ["MAX_MODEL_LEN", "count", "cut", "picture_tokens"]

MAX_MODEL_LEN = 8192
"""Tokens of picture, prompt and answer together, as with DeepSeek-OCR."""

# A tag, a short word or part of a long one with its space, up to three digits, any other character:
# within about a tenth of DeepSeek-OCR's own count for English, a little more for Chinese.
_TOKEN = re.compile(
    r"<\|/?\w+\|>|</?t[dr]>| ?[A-Za-z]{1,6}|[0-9]{1,3}|[ \t]*\n+|[^\S\n]+|.", re.DOTALL
)


def count(text: str) -> int:
    """Give the rough number of tokens of a text."""
    return sum(1 for _ in _TOKEN.finditer(text))


def cut(text: str, limit: int) -> tuple[str, int, bool]:
    """Keep the first `limit` tokens of a text.

    Returns:
        The text that is left, its number of tokens, and whether anything was cut off.
    """
    tokens = 0
    for match in _TOKEN.finditer(text):
        if tokens == limit:
            return text[: match.start()], tokens, True
        tokens += 1
    return text, tokens, False


def picture_tokens(width: int, height: int) -> int:
    """Give the tokens that DeepSeek-OCR spends on a picture (273 for one view, 903 for A4).

    The crops are 640 pixels wide, 100 tokens each and one more for each line of 10; the grid is
    the one of 2 to 6 crops whose shape is nearest to the picture's, as in vLLM's processor.
    """
    if max(width, height) <= 640:
        return 273
    shape = width / height
    grids = [(c, r) for c in range(1, 7) for r in range(1, 7) if 2 <= c * r <= 6]
    columns, rows = min(grids, key=lambda grid: (abs(grid[0] / grid[1] - shape), sum(grid)))
    return 273 + (10 * columns + 1) * 10 * rows
