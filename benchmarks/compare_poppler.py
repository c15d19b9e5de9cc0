"""Compare each drawn page of the corpus with what poppler's `pdftoppm` draws.

Both pages are brought to the same small grey picture. The difference is the share of pixels that
differ by more than a third of the range after a slight blur, so that antialiasing and a shift by
half a pixel do not count. Pages that differ are written as pairs, to be looked at.

    python benchmarks/corpus.py        # downloads the corpus
    python benchmarks/compare_poppler.py [--folder DIR] [--pairs DIR]
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
from pathlib import Path

from PIL import Image, ImageChops, ImageFilter

from deepseek_ocr_loaders.errors import DeepSeekOCRError
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import open_source

SIZE = (480, 640)
LIMIT = 0.004
MOST_PAGES = 12


def poppler(path: Path, number: int) -> Image.Image | None:
    command = ["pdftoppm", "-gray", "-cropbox", "-r", "100", "-scale-to", "1200", "-f", str(number)]
    try:
        done = subprocess.run(
            [*command, "-l", str(number), str(path)], capture_output=True, timeout=120, check=False
        )
        return Image.open(io.BytesIO(done.stdout)).convert("L") if done.stdout else None
    except (subprocess.TimeoutExpired, OSError):
        return None


def small(image: Image.Image) -> Image.Image:
    return image.convert("L").resize(SIZE, Image.Resampling.BOX).filter(ImageFilter.GaussianBlur(2))


def difference(ours: Image.Image, theirs: Image.Image) -> float:
    marked = ImageChops.difference(small(ours), small(theirs)).point(
        lambda value: 255 * (value > 85)
    )
    return marked.histogram()[255] / (SIZE[0] * SIZE[1])


def compare(path: Path, pairs: Path) -> list[tuple[int, str, float]]:
    """Give (page number, what differs, how much) for each page of a file."""
    found = []
    with open_source(path, settings=Settings()) as opened:
        for index in range(min(opened.info.total_pages, MOST_PAGES)):
            theirs = poppler(path, index + 1)
            try:
                ours = Image.open(io.BytesIO(opened.picture(index).data))
            except DeepSeekOCRError as error:
                if theirs is not None:
                    found.append((index + 1, f"only poppler draws it: {error}", 1.0))
                continue
            if theirs is None:
                found.append((index + 1, "poppler draws nothing", 1.0))
                continue
            share = difference(ours, theirs)
            found.append((index + 1, "", share))
            if share > LIMIT:
                sheet = Image.new("L", (1240, 900), 128)
                sheet.paste(ours.convert("L").resize((600, 880)), (10, 10))
                sheet.paste(theirs.resize((600, 880)), (630, 10))
                pairs.mkdir(parents=True, exist_ok=True)
                sheet.save(pairs / f"{path.stem}-{index + 1}.png")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/deepseek-ocr-corpus"))
    parser.add_argument("--pairs", type=Path, default=Path("/tmp/deepseek-ocr-pairs"))
    given = parser.parse_args()
    pages = same = 0
    results = {}
    for path in sorted(given.folder.rglob("*.pdf")):
        name = path.relative_to(given.folder).as_posix()
        try:
            compared = compare(path, given.pairs)
        except DeepSeekOCRError as error:
            results[name] = [(0, f"not opened here: {type(error).__name__}", 0.0)]
            continue
        pages += len(compared)
        same += sum(share <= LIMIT for _, _, share in compared)
        results[name] = [page for page in compared if page[2] > LIMIT]
        for number, what, share in results[name]:
            print(f"{name} page {number}: {what or f'{share:.2%} of the pixels'}", flush=True)
    print(f"{same} of {pages} pages are the same")
    results[""] = [(pages, str(same), 0.0)]
    (given.folder / "poppler.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
