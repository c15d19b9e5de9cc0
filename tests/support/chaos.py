"""A run through everything that can go wrong on the way to a server, with the seed that says what.

The whole path is under test: a PDF is drawn, sent, answered, parsed and handed out as Documents.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders import bridge, pipeline
from deepseek_ocr_loaders.report import RunReport
from deepseek_ocr_loaders.settings import Settings
from support.fault_server import (
    FakeProvider,
    FaultServer,
    answer,
    die,
    half,
    hang_up,
    loop,
    marked_pdf,
    markers_in,
    no_choices,
    null_content,
    reset,
    silence,
    slow,
    status,
    wrong_json,
)

if TYPE_CHECKING:
    from pathlib import Path

    from support.fault_server import ChatRequest, Step

FAULTS: dict[str, Step] = {
    "connection reset": reset(),
    "closed without a reply": hang_up(),
    "half an answer, then a reset": half(),
    "slow bytes": slow(0.01),
    "429 with Retry-After": status(429, retry_after=0.2),
    "503 with Retry-After": status(503, retry_after=0.2),
    "500": status(500),
    "wrong JSON": wrong_json(),
    "no choices": no_choices(),
    "null content": null_content(),
    "loop": loop(times=200),
    "cut at the token limit": answer("Only the beginning of", "length"),
    "no answer at all": silence(),
}


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        numbers: The marker in each Document, in the order in which they came.
        pages: The `page` of each Document's metadata.
        faults: How often which fault was played.
        kills: How often the server was killed.
    """

    seed: int
    seconds: float = 0.0
    numbers: list[list[int]] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    requests: int = 0
    report: RunReport = field(default_factory=RunReport)


class _Chaos:
    """The script: some requests fail, and some are the last that the server sees."""

    def __init__(self, rng: random.Random, share: float, kill_at: list[int]) -> None:
        self.rng = rng
        self.share = share
        self.kill_at = kill_at
        self.faults: Counter[str] = Counter()
        self.kills = 0
        self.seen: set[int | None] = set()
        self.server: FaultServer | None = None

    def __call__(self, request: ChatRequest) -> Step | None:
        assert self.server is not None
        # For some time it closes the connection after each reply.
        self.server.close_each = (request.index // 100) % 3 == 1
        # Not with a page that was there at the last death: the second time it would be to blame.
        new = request.marker not in self.seen
        self.seen.add(request.marker)
        if new and self.kill_at and request.index >= self.kill_at[0]:
            self.kill_at.pop(0)
            self.kills += 1
            return die(delay=0.02)
        if self.rng.random() >= self.share:
            return answer(delay=self.rng.random() * 0.03)
        name = self.rng.choice(list(FAULTS))
        self.faults[name] += 1
        return FAULTS[name]


def run(
    folder: Path,
    *,
    pages: int,
    kills: int,
    seed: int,
    share: float = 0.1,
    **options: Any,
) -> Outcome:
    """Read a PDF of so many pages while the server misbehaves.

    Args:
        folder: For the PDF.
        pages: How many; each carries its number.
        kills: How often the server dies, spread over the run.
        seed: Decides everything that is random.
        share: Of requests that fail.
        **options: For the loader.
    """
    rng = random.Random(seed)
    path = folder / "chaos.pdf"
    path.write_bytes(marked_pdf(range(pages)))
    step = pages // (kills + 1)
    kill_at = [step * (n + 1) + rng.randrange(step // 3) for n in range(kills)]
    chaos = _Chaos(rng, share, kill_at)
    outcome = Outcome(seed)
    settings = Settings.create(
        {"retries": 8, "timeout": 5.0, "max_concurrency": 16, "detail": "low", **options}
    )
    with FaultServer(chaos) as server:
        chaos.server = server
        provider = FakeProvider(server, restarts=kills, restart_seconds=0.3)
        provider_for, pipeline.provider_for = pipeline.provider_for, lambda _settings: provider
        started = time.monotonic()
        try:
            for document in bridge.iterate(
                lambda: pipeline.read_documents([path], settings, report=outcome.report)
            ):
                outcome.numbers.append(markers_in(document.text))
                outcome.pages.append(document.metadata["page"])
        finally:
            pipeline.provider_for = provider_for
        outcome.seconds = time.monotonic() - started
        outcome.requests = len(server.requests)
    outcome.faults = chaos.faults
    outcome.kills = chaos.kills
    return outcome
