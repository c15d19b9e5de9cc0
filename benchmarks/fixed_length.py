"""Makes the loaders ask for answers of a fixed length, which a user has no reason to."""

from __future__ import annotations

from typing import Any
from unittest import mock

from bare_client import fixed_length

from deepseek_ocr_loaders import ladder


def answers_of(tokens: int) -> mock._patch_dict:
    """Give a context manager in which every page is one answer of exactly so many tokens.

    An answer that is cut at the limit would be tried again by other methods: only the first is
    used. Repetitions are looked for, but are never found, since a model without weights repeats
    itself at once.
    """
    methods, fields = ladder.methods, ladder.fields

    def first_method(*arguments: Any) -> tuple[str, ...]:
        return methods(*arguments)[:1]

    def with_length(*arguments: Any) -> dict[str, Any]:
        found = {**fields(*arguments), **fixed_length(tokens)}
        if "repetition_detection" in found:
            found["repetition_detection"] = {**found["repetition_detection"], "min_count": 10**6}
        return found

    return mock.patch.multiple(ladder, methods=first_method, fields=with_length)
