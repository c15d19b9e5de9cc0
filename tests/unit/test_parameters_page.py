from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, get_args

import pytest
from support.markdown import ROOT

from deepseek_ocr_loaders import settings

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="module")
def make_parameters() -> ModuleType:
    path = ROOT / "scripts" / "make_parameters.py"
    spec = importlib.util.spec_from_file_location("make_parameters", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_tables_are_current(make_parameters: ModuleType) -> None:
    assert make_parameters.stale() == [], "run python scripts/make_parameters.py"


def test_every_setting_has_one_row_with_a_meaning(make_parameters: ModuleType) -> None:
    rows = [line.split(" | ") for line in make_parameters.parameters().splitlines()]
    names = [row[0].strip("| `") for row in rows if row[0].startswith("| `")]
    assert names == list(settings.Settings.model_fields)
    assert all(row[3].strip("| ") for row in rows if row[0].startswith("| `"))


def test_options_for_type_checkers_are_the_settings() -> None:
    assert set(settings.Options.__annotations__) == set(settings.Settings.model_fields)


def test_choices_are_spelled_out(make_parameters: ModuleType) -> None:
    (row,) = [
        line
        for line in make_parameters.parameters().splitlines()
        if line.startswith("| `on_error`")
    ]
    assert all(f"`{value}`" in row for value in get_args(settings.OnError))


def test_every_prompt_and_variable_is_named() -> None:
    from deepseek_ocr_loaders.prompts import PROMPTS

    text = (ROOT / "docs" / "parameters.md").read_text(encoding="utf-8")
    assert [f"`{name}`: `{words}`" in text for name, words in PROMPTS.items()] == [True] * 5
    source = (ROOT / "src/deepseek_ocr_loaders/settings.py").read_text(encoding="utf-8")
    for name in ("api_key", "model", "engine", "base_url", "cache"):
        assert f"`DEEPSEEK_OCR_{name.upper()}`" in text
    assert "DEEPSEEK_OCR_CACHE" in source
