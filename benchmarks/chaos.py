"""A long run through a misbehaving server: is every page back once, in order, with its own text?

    python benchmarks/chaos.py --pages 2000 --kills 5

Each page of a PDF carries a number as bars; the server reads it from the picture that arrives and
answers with it. One request in ten fails in one of thirteen ways, and the server is killed while
it works. Prints the seed and a table; the exit code is 1 where a page is lost, doubled, out of
order or has another page's text.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.chaos import Outcome, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.1, help="of requests that fail")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(
            Path(folder),
            pages=given.pages,
            kills=given.kills,
            seed=given.seed,
            share=given.share,
        )
    return show(outcome, given.pages)


def show(outcome: Outcome, pages: int) -> int:
    """Print the table, and give the exit code."""
    wrong = [n for n, found in enumerate(outcome.numbers) if set(found) != {n}]
    in_order = outcome.pages == list(range(pages))
    rows = [
        ("pages", pages),
        ("Documents", len(outcome.numbers)),
        ("in order, each once", "yes" if in_order else "NO"),
        ("with another text than their own", len(wrong)),
        ("deaths of the server", outcome.kills),
        ("requests", outcome.requests),
        ("retries in the report", outcome.report.retries),
        ("statuses", ", ".join(f"{n} {s}" for s, n in outcome.report.statuses.items())),
        ("seconds", f"{outcome.seconds:.0f}"),
        *((f"fault: {name}", count) for name, count in sorted(outcome.faults.items())),
    ]
    print("\n| what | |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")
    return 0 if in_order and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
