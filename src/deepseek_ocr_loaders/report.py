"""What a run did: pages, seconds, tokens, retries. Not in the metadata, where it would re-embed."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.page import PageResult, PageStatus, Usage

if TYPE_CHECKING:
    from deepseek_ocr_loaders.page import Attempt, SourceInfo

__all__ = ["PageReport", "RunReport"]


@dataclass(frozen=True, slots=True)
class PageReport:
    """One page of a run, as given to the callback `on_page`.

    Attributes:
        source: The document, without secrets.
        page_number: Counted from 1.
        status: How the reading ended.
        attempts: What was tried, in order.
        usage: Tokens over all attempts.
        cached: True where it came from the cache.
        error: Why it failed, as text; empty where it did not.
    """

    source: str
    page_number: int
    status: PageStatus
    attempts: tuple[Attempt, ...]
    usage: Usage
    cached: bool
    error: str

    @property
    def retries(self) -> int:
        """Requests beyond the first."""
        return max(0, sum(attempt.requests for attempt in self.attempts) - 1)


@dataclass
class RunReport:
    """What the last run of a loader, parser or reader did.

    Attributes:
        pages: One entry a page, in the order in which they were handed out.
        started: `time.monotonic()` at the start of the run.
        ended: Likewise at its end; None while it runs.
        failed_documents: Why a document could not be opened, one text for each that could not.
    """

    pages: list[PageReport] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    failed_documents: list[str] = field(default_factory=list)

    def add(self, source: SourceInfo, page: PageResult) -> PageReport:
        """Take a finished page in, and give its entry."""
        entry = PageReport(
            source=source.source,
            page_number=page.number,
            status=page.status,
            attempts=page.attempts,
            usage=page.usage,
            cached=page.cached,
            error=str(page.error or ""),
        )
        self.pages.append(entry)
        return entry

    @property
    def seconds(self) -> float:
        """Wall time of the run, up to now while it runs."""
        return (self.ended if self.ended is not None else time.monotonic()) - self.started

    @property
    def pages_per_second(self) -> float:
        """Pages handed out over wall time."""
        return len(self.pages) / self.seconds if self.seconds > 0 else 0.0

    @property
    def statuses(self) -> dict[str, int]:
        """How many pages ended in which status."""
        return dict(Counter(page.status.value for page in self.pages))

    @property
    def retries(self) -> int:
        """Requests beyond the first of each page."""
        return sum(page.retries for page in self.pages)

    @property
    def cached(self) -> int:
        """Pages that came from the cache."""
        return sum(page.cached for page in self.pages)

    @property
    def usage(self) -> Usage:
        """Tokens that the run cost; pages from the cache cost none."""
        return sum((page.usage for page in self.pages if not page.cached), Usage())

    def __str__(self) -> str:
        statuses = ", ".join(f"{count} {name}" for name, count in sorted(self.statuses.items()))
        failed = len(self.failed_documents)
        unopened = f", {failed} documents that could not be opened" if failed else ""
        return (
            f"{len(self.pages)} pages in {self.seconds:.1f} s, "
            f"{self.pages_per_second:.2f} pages/s: "
            f"{statuses or 'none'}{unopened}; "
            f"{self.retries} retries, {self.cached} from the cache, "
            f"{self.usage.prompt_tokens} + {self.usage.completion_tokens} tokens"
        )
