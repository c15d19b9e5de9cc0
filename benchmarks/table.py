"""Rows of numbers as a Markdown table, printed as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Table:
    """Prints each row at once, so that a run that is cut short has shown what it measured."""

    def __init__(self, columns: Sequence[str]) -> None:
        print("| " + " | ".join(columns) + " |")
        print("|---|" + "---:|" * (len(columns) - 1), flush=True)

    def row(self, *cells: object) -> None:
        """Print one row; None is an empty cell."""
        print("| " + " | ".join(_text(cell) for cell in cells) + " |", flush=True)


def _text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return str(cell)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Give the value below which `share` of the values lie (0 to 1); None where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
