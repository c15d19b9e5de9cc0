"""Errors are typed, carry facts for programs, and survive the way back from a worker."""

from __future__ import annotations

import copy
import pickle

import pytest

from deepseek_ocr_loaders import errors


def _examples() -> list[errors.DeepSeekOCRError]:
    made: list[errors.DeepSeekOCRError] = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind is errors.MissingExtraError:
            made.append(kind("cpu", "the embedded engine"))
        elif issubclass(kind, errors.UnsupportedSourceError):
            made.append(kind("told", source="a.pdf", kind="html"))
        elif issubclass(kind, errors.SourceError):
            made.append(kind("told", source="a.pdf"))
        elif issubclass(kind, errors.RequestError):
            made.append(kind("told", source="a.pdf", page_number=3, attempts=4, status_code=500))
        elif issubclass(kind, errors.PageError):
            made.append(kind("told", source="a.pdf", page_number=3))
        elif issubclass(kind, errors.ServerStartError):
            made.append(kind("told", hint="h", exit_code=1, log_tail="tail"))
        elif issubclass(kind, errors.AllPagesFailedError):
            made.append(kind("told", errors=[errors.RenderError("r", page_number=1)]))
        else:
            made.append(kind("told"))
    return made


@pytest.mark.parametrize("error", _examples(), ids=lambda error: type(error).__name__)
def test_errors_survive_pickle_and_copy(error: errors.DeepSeekOCRError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error) != ""
        assert set(again.__dict__) == set(error.__dict__)
        assert isinstance(again, errors.DeepSeekOCRError)


def test_errors_are_also_what_python_programs_expect() -> None:
    with pytest.raises(FileNotFoundError):
        raise errors.SourceNotFoundError("gone", source="a.pdf")
    with pytest.raises(ValueError, match="wrong"):
        raise errors.ConfigurationError("wrong")
    with pytest.raises(ImportError, match=r'pip install "deepseek-ocr-loaders\[cpu\]"'):
        raise errors.MissingExtraError("cpu", "the embedded engine")
