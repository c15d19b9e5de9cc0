"""Arrays that `numpy.save` wrote, as pictures; and hostile ones."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from PIL import Image

from deepseek_ocr_loaders.arrays import is_array, to_png
from deepseek_ocr_loaders.errors import CorruptSourceError, UnsupportedSourceError


def _saved(array: np.ndarray, **options: bool) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 1), (2, 5, 3), (2, 5, 4), (300, 1000, 3)])
def test_gives_the_same_pixels(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    data = _saved(array)
    assert is_array(data)
    image = Image.open(io.BytesIO(to_png(data, source="x")))
    assert np.array_equal(np.asarray(image), array.squeeze(2) if shape[2:] == (1,) else array)


def test_reads_later_versions_of_the_format() -> None:
    array = np.arange(10, dtype=np.uint8).reshape(2, 5)
    for version in ((1, 0), (2, 0), (3, 0)):
        out = io.BytesIO()
        np.lib.format.write_array(out, array, version=version)
        image = Image.open(io.BytesIO(to_png(out.getvalue(), source="x")))
        assert np.array_equal(np.asarray(image), array)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 5), np.float32),
        np.zeros((2, 5), np.uint16),
        np.zeros((2, 5, 2), np.uint8),
        np.zeros(10, np.uint8),
        np.zeros((1, 2, 5, 3), np.uint8),
        np.asfortranarray(np.zeros((2, 5), np.uint8)),
        np.zeros((2, 5), [("a", np.uint8)]),
    ],
    ids=str,
)
def test_other_arrays_are_refused(array: np.ndarray) -> None:
    with pytest.raises(UnsupportedSourceError, match="no picture"):
        to_png(_saved(array), source="x")


def test_a_pickle_in_it_is_not_opened() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return pytest.fail, ("it was opened",)

    data = _saved(np.zeros(1, object), allow_pickle=True)
    hostile = data[: data.index(b"\n") + 1] + pickle.dumps(Bomb())
    with pytest.raises(UnsupportedSourceError):
        to_png(hostile, source="x")


@pytest.mark.parametrize(
    "header",
    [
        b"__import__('os').system('x')",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (9999999, 9999999, 3), }\n",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (0, 5), }\n",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 5), }\n",
        b"",
    ],
)
def test_hostile_headers_are_refused(header: bytes) -> None:
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"12345"
    with pytest.raises((UnsupportedSourceError, CorruptSourceError)):
        to_png(data, source="x")


@pytest.mark.parametrize("length", range(0, 140, 7))
def test_cut_off_files_are_refused(length: int) -> None:
    data = _saved(np.zeros((2, 5), np.uint8))
    assert len(data) == 138
    with pytest.raises((UnsupportedSourceError, CorruptSourceError)):
        to_png(data[: min(length, 137)], source="x")
