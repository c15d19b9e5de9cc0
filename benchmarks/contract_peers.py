"""Who keeps the contract of loaders: ours and two peers, as a table in `docs/contract.md`.

    pip install langchain-community llama-index-readers-file
    python benchmarks/contract_peers.py [--check]

It runs `tests/contract` on each of them, every test in a process of its own, because a peer that
deadlocks would take the next ones with it. `--check` writes nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "contract.md"
START, END = "<!-- generated: benchmarks/contract_peers.py -->", "<!-- end -->"
SECONDS = 120

OURS = ("DeepSeekOCRLoader", "DeepSeekOCRParser", "DeepSeekOCRReader")
THEIRS = {"PyMuPDFLoader": "langchain-community", "PDFReader": "llama-index-readers-file"}


def __getattr__(name: str) -> Any:
    """Make the subjects when the suite asks for them: `CONTRACT_SUBJECTS=contract_peers:PEERS`."""
    if name != "PEERS":
        raise AttributeError(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from contract.adapters import LangChainLoader, LlamaIndexReader
        from langchain_community.document_loaders import PyMuPDFLoader
        from llama_index.readers.file import PDFReader
    return [
        LangChainLoader("PyMuPDFLoader", PyMuPDFLoader, "pymupdf:Page.get_text"),
        LlamaIndexReader("PDFReader", PDFReader, "pypdf._page:PageObject.extract_text"),
    ]


def _pytest(*arguments: str, subjects: str | None = None, seconds: int | None = None) -> str:
    environment = {**os.environ}
    if subjects:
        environment["CONTRACT_SUBJECTS"] = subjects
        environment["PYTHONPATH"] = str(ROOT / "benchmarks")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "default"]
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
        return "TIMEOUT"
    return done.stdout


def _outcome(output: str) -> tuple[str, str]:
    """Give the cell of the table and, for people who look into it, the reason."""
    if output == "TIMEOUT":
        return "no", "it hangs"
    if " passed" in output:
        return "yes", ""
    if " skipped" in output and " failed" not in output:
        return "–", ""
    reason = re.findall(r"^(?:FAILED|ERROR) \S+(?: - (.*))?$", output, re.MULTILINE)
    return "no", (reason or [output[-300:]])[0]


def _run(subjects: str | None) -> dict[tuple[str, str], tuple[str, str]]:
    listed = _pytest("tests/contract", "--collect-only", "-q", subjects=subjects)
    found = {}
    for node in re.findall(r"^(tests/contract/\S+::.+)$", listed, re.MULTILINE):
        output = _pytest("-q", "-rfE", "--tb=line", node, subjects=subjects, seconds=SECONDS)
        test, _, parameters = node.partition("[")
        name = next(n for n in (*OURS, *THEIRS) if n in parameters)
        rest = re.sub(rf"-?{name}-?", "", parameters.rstrip("]"))
        found[_title(test, rest), name] = _outcome(output)
        print(*found[_title(test, rest), name], node, flush=True)
    return found


def _title(test: str, parameters: str) -> str:
    file, name = test.split("::")
    chapter = Path(file).stem.removeprefix("test_contract_")
    words = re.sub(r"^test_(fault_\d+_)?", "", name).replace("_", " ")
    return f"{chapter}: {words}" + (f" ({parameters})" if parameters else "")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    found = {**_run(None), **_run("contract_peers:PEERS")}
    names = [*OURS, *THEIRS]
    heads = [*OURS, *(f"{n} ({d} {importlib.metadata.version(d)})" for n, d in THEIRS.items())]
    rows = ["| | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for title in dict.fromkeys(title for title, _ in found):
        cells = [found.get((title, name), ("–", ""))[0] for name in names]
        rows.append(f"| {title} | " + " | ".join(cells) + " |")
    counts = []
    for name in names:
        cells = [cell for (_, of), (cell, _) in found.items() if of == name and cell != "–"]
        counts.append(f"{cells.count('yes')} of {len(cells)}")
    rows.append("| **kept** | " + " | ".join(counts) + " |")
    table = "\n".join(rows)
    print(table)
    failed = [key for key, (cell, _) in found.items() if key[1] in OURS and cell == "no"]
    if not check:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{START}\n\n{table}\n\n{END}{after}", "utf-8")
    if failed:
        sys.exit(f"ours break the contract: {failed}")


if __name__ == "__main__":
    main()
