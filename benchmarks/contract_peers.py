"""Who keeps the contract of loaders: ours and two peers, as a table in `docs/contract.md`.

    pip install langchain-community llama-index-readers-file
    python benchmarks/contract_peers.py [--check]

It runs `tests/contract` on each of them. What fails runs again in a process of its own, and so do
the tests in which a peer deadlocks, since its lock would fail the next ones. `--check` writes
nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "contract.md"
START, END = "<!-- generated: benchmarks/contract_peers.py -->", "<!-- end -->"
SECONDS = 120
ALONE = "test_contract_lifetime"

OURS = ("DeepSeekOCRLoader", "DeepSeekOCRParser", "DeepSeekOCRReader")
THEIRS = {"PyMuPDFLoader": "langchain-community", "PDFReader": "llama-index-readers-file"}


_OUTCOME = re.compile(r"^(tests/contract/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)


def _pytest(*arguments: str, peers: bool, seconds: int | None = None) -> str:
    environment = dict(os.environ)
    if peers:
        environment["CONTRACT_SUBJECTS"] = "contract_subjects:PEERS"
        environment["PYTHONPATH"] = str(ROOT / "benchmarks")
    # A peer that deadlocks is given up soon.
    options = ["-p", "no:cacheprovider", "-W", "default", "--timeout=40"]
    command = [sys.executable, "-m", "pytest", *options]
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


def _outcomes(output: str) -> dict[str, str]:
    """Give what became of each test in the output of `pytest -v`."""
    cells = {"PASSED": "yes", "SKIPPED": "–"}
    return {node: cells.get(outcome, "no") for node, outcome in _OUTCOME.findall(output)}


def _ours() -> dict[str, str]:
    return _outcomes(_pytest("tests/contract", "-v", peers=False))


def _theirs() -> dict[str, str]:
    found = _outcomes(_pytest("tests/contract", "-v", "-k", f"not ({ALONE})", peers=True))
    listed = _pytest("tests/contract", "--collect-only", "-q", "-k", ALONE, peers=True)
    alone = re.findall(r"^(tests/contract/\S+::.+)$", listed, re.MULTILINE)
    for node in [*alone, *(node for node, cell in found.items() if cell == "no")]:
        output = _pytest("-v", "--tb=line", node, peers=True, seconds=SECONDS)
        found[node] = _outcomes(output).get(node, "no")  # no line at all: it hung
        reason = re.findall(r"^(?:E +|\S+\.py:\d+: )(.*)$", output, re.MULTILINE)
        print(found[node], node, *(reason[:1] if found[node] == "no" else []), flush=True)
    return found


def _key(node: str) -> tuple[str, str]:
    """Give the row and the column of a test."""
    test, _, parameters = node.partition("[")
    name = next(n for n in (*OURS, *THEIRS) if n in parameters)
    return _title(test, re.sub(rf"-?{name}-?", "", parameters.rstrip("]"))), name


def _title(test: str, parameters: str) -> str:
    file, name = test.split("::")
    chapter = Path(file).stem.removeprefix("test_contract_")
    words = re.sub(r"^test_(fault_\d+_)?", "", name).replace("_", " ")
    return f"{chapter}: {words}" + (f" ({parameters})" if parameters else "")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    found = {_key(node): cell for node, cell in {**_theirs(), **_ours()}.items()}
    names = [*OURS, *THEIRS]
    heads = [*OURS, *(f"{n} ({d} {importlib.metadata.version(d)})" for n, d in THEIRS.items())]
    rows = [_row("", *heads), "|---" * (1 + len(heads)) + "|"]
    titles = dict.fromkeys(title for title, _ in found)
    rows += [_row(title, *(found.get((title, name), "–") for name in names)) for title in titles]
    counts = []
    for name in names:
        cells = [cell for (_, of), cell in found.items() if of == name and cell != "–"]
        counts.append(f"{cells.count('yes')} of {len(cells)}")
    rows.append(_row("**kept**", *counts))
    table = "\n".join(rows)
    print(table)
    failed = [title for (title, name), cell in found.items() if name in OURS and cell == "no"]
    if not check:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{START}\n\n{table}\n\n{END}{after}", "utf-8")
    if failed:
        sys.exit(f"ours break the contract: {failed}")


if __name__ == "__main__":
    main()
