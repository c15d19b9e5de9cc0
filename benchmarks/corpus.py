"""Run every PDF and picture of pikepdf's and pypdf's source distributions through the loader.

These files come from the bug trackers of two PDF libraries: broken, encrypted, odd. Each is opened
and every page drawn in a process of its own with a time limit, and `docs/corpus.md` gets a table.

    python benchmarks/corpus.py [--folder DIR] [--table docs/corpus.md]
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tarfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from deepseek_ocr_loaders.errors import DeepSeekOCRError
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import open_source

PACKAGES = ("pikepdf==10.18.0", "pypdf==7.1.1")
SUFFIXES = {".pdf", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp", ".gif", ".jp2"}
SECONDS = 60
PATIENCE = 300
MOST_PAGES = 200
# Pages that poppler draws otherwise, looked at one by one.
EXPLAINED = {
    "1biticc.pdf": (
        "the picture's data end too early; MuPDF fills the rest with black, and a warning is "
        "logged; poppler leaves it white"
    ),
    "ctm_cm.pdf": (
        "a matrix with one number instead of six; MuPDF goes on without it, poppler drops the "
        "square that is drawn after it"
    ),
    "invalid_creationdate.pdf": (
        "a picture of 2 × 2 pixels fills the page; the edge between them is one percent lower"
    ),
    "pal.pdf": "a picture of 2 × 2 pixels, as above",
    "pal-1bit-rgb.pdf": "a picture of 2 × 2 pixels, as above",
    "pal-1bit-trivial.pdf": "a picture of 2 × 2 pixels, as above",
}
HERE = Path(__file__).resolve().parent


def download(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--quiet", "--dest", str(folder), *PACKAGES], check=True)
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")


def files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    )


def run_one(path: str) -> dict[str, object]:
    """Open one file and draw its pages; runs in a process of its own."""
    started = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found: dict[str, object] = {"opened": False, "pages": 0, "blank": 0, "layers": 0, "errors": {}}
    try:
        with open_source(path, settings=Settings()) as opened:
            found |= {"opened": True, "pages": opened.info.total_pages, "kind": opened.info.kind}
            errors: Counter[str] = Counter()
            for index in range(min(opened.info.total_pages, MOST_PAGES)):
                try:
                    picture = opened.picture(index)
                    found["blank"] += not picture.has_ink
                    found["layers"] += opened.text_layer(index) is not None
                except DeepSeekOCRError as error:
                    errors[str(error).partition("cannot be drawn: ")[2][:90]] += 1
            found["errors"] = dict(errors)
    except DeepSeekOCRError as error:
        found["error"] = type(error).__name__
        found["message"] = str(error).replace(path, Path(path).name)
    found["seconds"] = round(time.process_time() - started, 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found["peak_mb"] = round((peak - before) / 1024)
    return found


def run(path: Path) -> dict[str, object]:
    command = [sys.executable, str(Path(__file__).resolve()), "--one", str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return {"bad": f"no end after {PATIENCE} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return {"bad": f"exit code {done.returncode}: {last[:120]}"}
    found = json.loads(done.stdout.splitlines()[-1])
    if found["seconds"] > SECONDS:
        return {"bad": f"took {found['seconds']} s"}
    if done.stderr:
        found["logged"] = done.stderr.count("\n")
    return found


def row(name: str, found: dict[str, object]) -> str:
    if "bad" in found:
        return f"| `{name}` | **{found['bad']}** | | | | |"
    if not found["opened"]:
        what = f"{found['error']}: {found['message']}"
        return f"| `{name}` | no | | {what} | {found['seconds']} | {found['peak_mb']} |"
    notes = [f"{count} × RenderError: {text}" for text, count in found["errors"].items()]
    if found["blank"]:
        notes.append(f"{found['blank']} blank")
    if found["layers"]:
        notes.append(f"{found['layers']} with a sound text layer")
    if found["pages"] > MOST_PAGES:
        notes.append(f"first {MOST_PAGES} pages drawn")
    return (
        f"| `{name}` | yes | {found['pages']} | {'; '.join(notes)} "
        f"| {found['seconds']} | {found['peak_mb']} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/deepseek-ocr-corpus"))
    parser.add_argument("--table", type=Path, default=HERE.parent / "docs" / "corpus.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(run_one(given.one)))
        return
    if not list(given.folder.glob("*.tar.gz")):
        download(given.folder)
    results = {}
    for path in files(given.folder):
        results[path.relative_to(given.folder).as_posix()] = run(path)
        print(row(path.name, results[path.relative_to(given.folder).as_posix()]), flush=True)
    (given.folder / "results.json").write_text(json.dumps(results, indent=1))
    comparison = given.folder / "poppler.json"
    pages = json.loads(comparison.read_text()) if comparison.exists() else {}
    given.table.write_text(table(results) + (against_poppler(pages) if pages else ""))


def against_poppler(results: dict[str, list[list[object]]]) -> str:
    """Give the section on what `compare_poppler.py` found."""
    rows = [
        f"| `{Path(name).name}` | {number} | {what or f'{share:.1%} of the pixels'} "
        f"| {EXPLAINED.get(Path(name).name, '**not looked at yet**')} |"
        for name, pages in results.items()
        for number, what, share in pages
        if number and name
    ]
    compared, same = results[""][0][:2]
    return f"""
## Against poppler

{compared} pages (at most twelve a file) were compared with what `pdftoppm` draws
(`python benchmarks/compare_poppler.py`): {same} are the same within 0.4 % of the pixels, after both
are brought to 480 × 640 pixels and slightly blurred. The others:

| file | page | difference | why |
|---|---|---|---|
{chr(10).join(rows)}
"""


def table(results: dict[str, dict[str, object]]) -> str:
    opened = [found for found in results.values() if found.get("opened")]
    refused = [found for found in results.values() if "error" in found]
    bad = [found for found in results.values() if "bad" in found]
    pages = sum(min(found["pages"], MOST_PAGES) for found in opened)
    failed = sum(sum(found["errors"].values()) for found in opened)
    slowest = max(found["seconds"] for found in results.values() if "seconds" in found)
    summary = f"""\
# A corpus that no one here wrote

The {len(results)} PDFs and pictures in the source distributions of {" and ".join(PACKAGES)}, most
of them from the bug trackers of these libraries, each opened and drawn page by page in a process
of its own (`python benchmarks/corpus.py`).

- {len(opened)} opened, {len(refused)} were refused with a typed error.
- {len(bad)} crashed, hung, took over {SECONDS} s or raised an untyped error.
- {pages} pages drawn, of which {failed} gave a `RenderError` for that page only.
- The slowest file took {slowest:.1f} s.

Python {platform.python_version()}, PyMuPDF {version("pymupdf")}, Pillow {version("pillow")}, one
core. Seconds are processor time of drawing, encoding and judging the text layer of all pages;
memory is the peak above that of the bare process.

| file | opened | pages | what was found | s | MB |
|---|---|---|---|---|---|
"""
    rows = "\n".join(row(name, found) for name, found in results.items())
    return f"{summary}{rows}\n"


if __name__ == "__main__":
    main()
