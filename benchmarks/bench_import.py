"""How long `import deepseek_ocr_loaders` takes beyond an empty Python.

    python benchmarks/bench_import.py

Each line is the median of `--runs` fresh processes, in milliseconds, without the start of Python.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

STATEMENTS = {
    "import deepseek_ocr_loaders": "the package",
    "from deepseek_ocr_loaders import DeepSeekOCRError": "its errors",
    "from deepseek_ocr_loaders import DeepSeekOCRLoader": "with LangChain and the PDF library",
    "import langchain_core.document_loaders": "of that LangChain alone",
    "from deepseek_ocr_loaders import DeepSeekOCRReader": "with LlamaIndex and the PDF library",
    "import llama_index.core.readers": "of that LlamaIndex alone",
    "import deepseek_ocr_loaders.cli": "the command line",
}
LIMIT_MS = 150


def _milliseconds(statement: str, runs: int) -> float:
    took = []
    for _ in range(runs + 1):  # the first one fills the caches of the disk
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        took.append((time.perf_counter() - start) * 1000)
    return statistics.median(took[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    empty = _milliseconds("pass", runs)
    print(f"an empty Python: {empty:.0f} ms\n\n| statement | what | ms more |\n|---|---|---|")
    measured = {statement: _milliseconds(statement, runs) - empty for statement in STATEMENTS}
    for statement, what in STATEMENTS.items():
        print(f"| `{statement}` | {what} | {measured[statement]:.0f} |")
    if measured["import deepseek_ocr_loaders"] > LIMIT_MS:
        sys.exit(f"the package takes more than {LIMIT_MS} ms")


if __name__ == "__main__":
    main()
