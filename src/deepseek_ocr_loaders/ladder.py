"""What is tried when an answer loops, is cut, or is empty although there is ink: in this order.

1. `plain`: the fast way, temperature 0, no n-gram processor, because its Python loop costs a
   server 30 % of its speed. Where the server can stop a loop by itself, it is asked to.
2. `ngram`: the limits on repeated n-grams that DeepSeek gives: 20 in 50 for the pages of a PDF,
   30 in 90 for pictures, table cells excepted.
3. `sampling`: the same with temperature 0.6 and top_p 0.95, with a fixed seed.
4. `halves`: the page in two pieces, each with the n-gram limits.

So a page costs at most five answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders.prompts import PROMPTS

if TYPE_CHECKING:
    from deepseek_ocr_loaders.endpoint import Endpoint

__all__ = ["HALVES", "NGRAM", "PLAIN", "fields", "methods"]

PLAIN = "plain"
NGRAM = "ngram"
SAMPLING = "sampling"
HALVES = "halves"

REPETITION_DETECTION = {"max_pattern_size": 40, "min_pattern_size": 1, "min_count": 100}
"""Ends an answer at the hundredth repetition of up to 40 tokens.

So many, because forms and tables of contents repeat dashes, dots and cells honestly. It also keeps
the check cheap: patterns are compared only up to a hundredth of the length of the answer.
"""

TABLE_CELLS = [128821, 128822]
"""The ids of `<td>` and `</td>`; as integers: a text is accepted and has no effect."""

_HALVED_PROMPTS = {PROMPTS["markdown"], PROMPTS["ocr"], PROMPTS["free"]}


def methods(endpoint: Endpoint, prompt: str) -> tuple[str, ...]:
    """Give what is tried with a server, in order.

    Args:
        endpoint: The server.
        prompt: The words of the prompt.
    """
    if endpoint.engine == "rapidocr":  # no language model: a second try gives the same
        return (PLAIN,)
    # A place to find, a figure or a description is of the whole page.
    halves = (HALVES,) if prompt in _HALVED_PROMPTS else ()
    return (PLAIN, NGRAM, SAMPLING, *halves)


def fields(method: str, endpoint: Endpoint, kind: str) -> dict[str, Any]:
    """Give the request fields of a method.

    Args:
        method: One of `methods`.
        endpoint: The server.
        kind: `pdf` or `image`.
    """
    if endpoint.engine == "rapidocr":
        return {}
    found: dict[str, Any] = {}
    if endpoint.engine == "vllm" and (endpoint.release or (0, 0)) >= (0, 20):
        found["repetition_detection"] = REPETITION_DETECTION
    if method != PLAIN:
        ngram_size, window_size = (20, 50) if kind == "pdf" else (30, 90)
        found["vllm_xargs"] = {
            "ngram_size": ngram_size,
            "window_size": window_size,
            "whitelist_token_ids": TABLE_CELLS,
        }
    if method == SAMPLING:
        found |= {"temperature": 0.6, "top_p": 0.95, "seed": 0}
    return found
