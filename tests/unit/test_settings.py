"""What a run can be told: names, defaults, environment, and what is refused."""

from __future__ import annotations

import inspect
import json
import pickle
from pathlib import Path

import pytest

from deepseek_ocr_loaders.errors import ConfigurationError
from deepseek_ocr_loaders.page_ranges import parse_pages, select_pages
from deepseek_ocr_loaders.prompts import is_grounded, locate, prompt_text
from deepseek_ocr_loaders.settings import Options, Settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASE_URL", "API_KEY", "MODEL", "ENGINE", "CACHE"):
        monkeypatch.delenv(f"DEEPSEEK_OCR_{name}", raising=False)


def test_options_for_type_checkers_are_the_settings() -> None:
    assert list(Options.__annotations__) == list(Settings.model_fields)


def test_every_setting_is_described_and_optional() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert not field.is_required(), name


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, [0, 1, 2, 3, 4]),
        ("1", [0]),
        ("2-4", [1, 2, 3]),
        ("4-", [3, 4]),
        ("-2", [0, 1]),
        (" 1 - 2 , 5 ", [0, 1, 4]),
        ("5,1,1-2", [0, 1, 4]),
        ("1-3,7,10-", [0, 1, 2]),
        ([3, 1], [0, 2]),
        ((2,), [1]),
        (5, [4]),
        (range(1, 3), [0, 1]),
        ("9-12", []),
    ],
)
def test_pages_are_counted_from_one(given: object, expected: list[int]) -> None:
    assert select_pages(parse_pages(given), 5) == expected


@pytest.mark.parametrize(
    "given",
    [
        "",
        "0",
        "a",
        "1-2-3",
        "3-1",
        "1,,2",
        "-",
        "1.5",
        [0],
        [-1],
        [],
        [True],
        ["x"],
        0,
        -3,
        1.5,
        {},
    ],
)
def test_pages_that_name_nothing_are_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="pages"):
        Settings.create({"pages": given})


def test_pages_survive_json() -> None:
    settings = Settings.create({"pages": "1-3,10-"})
    again = Settings.create(json.loads(settings.model_dump_json()))
    assert again.pages == settings.pages == ((1, 3), (10, None))


def test_unknown_and_wrong_parameters_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown parameter modus.*mode"):
        Settings.create({"modus": "page"})
    with pytest.raises(ConfigurationError, match="mode: Input should be"):
        Settings.create({"mode": "chapter"})
    with pytest.raises(ConfigurationError, match="retries"):
        Settings.create({"retries": -1})
    with pytest.raises(ConfigurationError, match="timeout"):
        Settings.create({"timeout": 0})
    with pytest.raises(ConfigurationError, match="image_dir"):
        Settings.create({"images": "save"})
    with pytest.raises(ConfigurationError, match="either server or base_url"):
        Settings.create({"server": object(), "base_url": "http://a"})
    with pytest.raises(ConfigurationError, match="base_url is an empty list"):
        Settings.create({"base_url": []})


def test_none_means_the_default() -> None:
    assert Settings.create({"mode": None, "retries": None}) == Settings()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("http://h:8000/v1", "http://h:8000/v1"),
        ("http://h:8000/v1/", "http://h:8000/v1"),
        ("https://h/ocr/v1/chat/completions", "https://h/ocr/v1"),
    ],
)
def test_addresses_are_normalised(given: str, expected: str) -> None:
    assert Settings.create({"base_url": given}).base_url == (expected,)


@pytest.mark.parametrize("given", ["h:8000", "ftp://h", "http://me:secret@h/v1", "http://h/v1?k=s"])
def test_addresses_that_cannot_be_used_are_refused_without_their_secrets(given: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url") as caught:
        Settings.create({"base_url": given})
    assert "secret" not in str(caught.value)


def test_environment_fills_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_OCR_BASE_URL", "http://a:1, http://b:2/v1")
    monkeypatch.setenv("DEEPSEEK_OCR_API_KEY", "secret-key")
    monkeypatch.setenv("DEEPSEEK_OCR_MODEL", "m")
    monkeypatch.setenv("DEEPSEEK_OCR_ENGINE", "vllm")
    monkeypatch.setenv("DEEPSEEK_OCR_CACHE", "1")
    settings = Settings.create({})
    assert settings.base_url == ("http://a:1/v1", "http://b:2/v1")
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "secret-key"
    assert (settings.model, settings.engine, settings.cache) == ("m", "vllm", True)
    given = Settings.create({"base_url": "http://c", "model": "n", "cache": "folder"})
    assert (given.base_url, given.model) == (("http://c/v1",), "n")
    assert given.cache == Path("folder")


def test_a_server_object_wins_over_an_address_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEEPSEEK_OCR_BASE_URL", "http://a:1")
    assert Settings.create({"server": object()}).base_url == ()


def test_empty_variables_are_not_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASE_URL", "API_KEY", "MODEL", "ENGINE", "CACHE"):
        monkeypatch.setenv(f"DEEPSEEK_OCR_{name}", "")
    assert Settings.create({}) == Settings()


def test_secrets_are_in_no_repr_and_no_dump_but_survive_pickle() -> None:
    settings = Settings.create({"api_key": "hush-key", "password": "hush-word"})
    for text in (repr(settings), str(settings), settings.model_dump_json(), str(dict(settings))):
        assert "hush" not in text
    again = pickle.loads(pickle.dumps(settings))
    assert again.api_key.get_secret_value() == "hush-key"


def test_a_rotate_function_is_not_lost_silently_in_json() -> None:
    settings = Settings.create({"rotate": lambda _image, _number: 90})
    with pytest.raises(Exception, match="rotate is a function"):
        settings.model_dump_json()


def test_prompts_are_the_words_the_model_was_trained_on() -> None:
    assert prompt_text("markdown") == "<|grounding|>Convert the document to markdown."
    assert prompt_text("free") == "Free OCR."
    assert prompt_text("My own words") == "My own words"
    assert locate("Total") == "Locate <|ref|>Total<|/ref|> in the image."
    assert is_grounded("markdown")
    assert is_grounded(locate("x"))
    assert not is_grounded("free")


@pytest.mark.parametrize("given", ["", "  ", "<image>\nFree OCR.", "a<｜end▁of▁sentence｜>"])
def test_prompts_that_the_server_would_break_on_are_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="prompt"):
        Settings.create({"prompt": given or " "})


@pytest.mark.parametrize("given", ["", " ", "a<|/ref|>b"])
def test_locate_refuses_what_it_cannot_look_for(given: str) -> None:
    with pytest.raises(ConfigurationError, match="locate"):
        locate(given)


def test_settings_signature_is_keyword_only_for_users() -> None:
    parameters = inspect.signature(Settings).parameters.values()
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
