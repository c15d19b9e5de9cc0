"""The progress bar of a run: pages done of the pages known so far, in notebook and terminal."""

from __future__ import annotations

import warnings

from tqdm import TqdmWarning

__all__ = ["Progress"]


class Progress:
    """A bar that counts pages; its total grows as documents are opened."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # Without ipywidgets tqdm falls back to text and says so with a warning.
            warnings.simplefilter("ignore", TqdmWarning)
            from tqdm.auto import tqdm  # noqa: PLC0415 - it asks for the notebook when imported

            self._bar = tqdm(total=0, unit="page", dynamic_ncols=True)

    def expect(self, pages: int) -> None:
        """Raise the total by so many pages."""
        self._bar.total = (self._bar.total or 0) + pages
        self._bar.refresh()

    def advance(self) -> None:
        """Count one page."""
        self._bar.update(1)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()
