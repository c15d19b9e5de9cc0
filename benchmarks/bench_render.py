"""Time and memory of drawing and encoding a page, per part, against the plain way.

    python benchmarks/bench_render.py            # one core: parts, page kinds, two threads
    python benchmarks/bench_render.py --memory   # a 1,000-page PDF against one of 10 pages

Times are processor time of the thread, so that a busy machine does not change them; the comparison
of one and two threads is wall time.
"""

from __future__ import annotations

import argparse
import gc
import io
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pymupdf
from PIL import Image

from deepseek_ocr_loaders.encode import encode
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.sizing import plan
from deepseek_ocr_loaders.source import OpenSource, open_source

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an
they which one you were all her she there would their we him been has when who will no more if out
so up said what its about than into them can only other time new some could these two may first then
do any like my now over such our man me even most made after also did many off before must well back
through years where much your way down should because long each just state those people too little
good world make very year still see own work men day get here old life both between being under
"""


def text_page(document: pymupdf.Document, rng: random.Random, *, colour: bool = False) -> None:
    page = document.new_page(width=595, height=842)
    words = WORDS.split()
    y = 60.0
    while y < 780:
        line = " ".join(rng.choice(words) for _ in range(13))[:86]
        ink = (0.8, 0.1, 0.1) if colour and rng.random() < 0.1 else (0, 0, 0)
        page.insert_text((60, y), line, fontsize=11, fontname="tiro", color=ink)
        y += 14.5 if rng.random() < 0.85 else 29


def documents() -> dict[str, bytes]:
    rng = random.Random(5)
    made: dict[str, bytes] = {}
    text = pymupdf.open()
    for _ in range(10):
        text_page(text, rng)
    made["text"] = text.tobytes()
    coloured = pymupdf.open()
    text_page(coloured, rng, colour=True)
    made["text with red words"] = coloured.tobytes()
    scan = pymupdf.open(stream=made["text"])[0].get_pixmap(dpi=200)
    grey = Image.frombytes("RGB", (scan.width, scan.height), scan.samples).convert("L")
    noise = Image.effect_noise(grey.size, 12).point(
        lambda value: min(255, max(0, value - 128 + 128))
    )
    paper = Image.blend(grey, noise, 0.12)
    for name, image, options in [
        ("scan, grey JPEG", paper, {"quality": 80}),
        (
            "scan, colour JPEG",
            Image.merge("RGB", (paper, paper, paper.point(lambda v: v * 0.9))),
            {"quality": 80},
        ),
    ]:
        out = io.BytesIO()
        image.save(out, "JPEG", **options)
        page = pymupdf.open()
        page.new_page(width=595, height=842).insert_image((0, 0, 595, 842), stream=out.getvalue())
        made[name] = page.tobytes()
    return made


def milliseconds(work: Callable[[], object], *, times: int = 21) -> float:
    work()
    taken = []
    for _ in range(times):
        started = time.thread_time()
        work()
        taken.append(time.thread_time() - started)
    return statistics.median(taken) * 1000


def plain(document: pymupdf.Document) -> bytes:
    page = document[0]
    pixmap = page.get_pixmap(matrix=pymupdf.Matrix(1280 / page.rect.width, 1920 / page.rect.height))
    return pixmap.tobytes("png")


def times() -> None:
    made = documents()
    pdf = pymupdf.open(stream=made["text"])
    print(f"plain way, MuPDF's PNG: {milliseconds(lambda: plain(pdf), times=9):.1f} ms, "
          f"{len(plain(pdf)) // 1024} kB")  # fmt: skip
    for name, data in made.items():
        with open_source(data, settings=Settings()) as opened:
            print(f"{name}: {parts(opened)}")
    with open_source(made["text"], settings=Settings()) as opened:
        samples = [milliseconds(lambda i=i: opened.picture(i), times=9) for i in range(10)]
        print(f"ten text pages: median {statistics.median(samples):.1f} ms, "
              f"slowest {max(samples):.1f} ms")  # fmt: skip
        runs = [[pages_per_second(opened, threads) for threads in (1, 2)] for _ in range(5)]
        one, two = map(statistics.median, zip(*runs, strict=True))
        print(f"one thread: {one:.1f} pages/s, two: {two:.1f}, {two / one:.2f} times as many")


def parts(opened: OpenSource) -> str:
    def draw() -> Image.Image:
        return opened._file.draw(0, turn=0, size=plan).image  # noqa: SLF001 - one part of it

    image, picture = draw(), opened.picture(0)
    return (
        f"{milliseconds(lambda: opened.picture(0)):.1f} ms a page (drawing {milliseconds(draw):.1f}"
        f", encoding {milliseconds(lambda: encode(image)):.1f}), {image.mode}, {picture.width} × "
        f"{picture.height}, {picture.media_type}, {len(picture.data) // 1024} kB"
    )


def pages_per_second(opened: OpenSource, threads: int, pages: int = 200) -> float:
    numbers = iter(range(pages))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            opened.picture(number % 10)

    started = time.perf_counter()
    crew = [threading.Thread(target=work) for _ in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return pages / (time.perf_counter() - started)


def big(path: Path, pages: int, *, pictures: bool) -> None:
    rng = random.Random(27)
    document = pymupdf.open()
    for _ in range(pages):
        text_page(document, rng)
        if pictures:
            image = Image.frombytes("L", (620, 877), rng.randbytes(620 * 877))
            out = io.BytesIO()
            image.save(out, "JPEG", quality=30)
            document[-1].insert_image((300, 400, 560, 780), stream=out.getvalue())
    document.save(path, deflate=True)


def peak(path: str) -> None:
    with open_source(path, settings=Settings()) as opened:
        for index in range(opened.info.total_pages):
            opened.picture(index)
    gc.collect()
    # Unlike `ru_maxrss`, this does not count what the parent had before the process began.
    print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def memory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for pictures in (False, True):
            found = {}
            for pages in (10, 1000):
                path = Path(folder) / f"{pages}-{pictures}.pdf"
                big(path, pages, pictures=pictures)
                command = [sys.executable, __file__, "--peak", str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[pages] = int(done.stdout) // 1024
                size = path.stat().st_size // 2**20
                print(f"{pages} pages, {size} MB, pictures {pictures}: peak {found[pages]} MB")
            print(f"1,000 pages peak {found[1000] - found[10]} MB above 10 pages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak:
        peak(given.peak)
    elif given.memory:
        memory()
    else:
        times()
