"""The chaos run in small; `benchmarks/chaos.py` is the long one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.chaos import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", [1, 20251020, 987654321])
def test_every_page_comes_back_once_in_order_with_its_own_text(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    outcome = run(tmp_path, pages=200, kills=3, seed=seed)
    assert outcome.pages == list(range(200))
    assert [set(found) for found in outcome.numbers] == [{n} for n in range(200)]
    assert outcome.kills == 3
    assert sum(outcome.faults.values()) > 10
    assert set(outcome.report.statuses) == {"ok"}
    assert len(outcome.report.pages) == 200
    assert outcome.report.retries > 0
