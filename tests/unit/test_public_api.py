"""What the package offers: names, signatures, and what importing it costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.fault_server import marked_pdf

import deepseek_ocr_loaders
from deepseek_ocr_loaders.settings import Options, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

API_PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def _python(code: str, *, blocked: tuple[str, ...] = ()) -> Any:
    """Give what the code in a fresh Python leaves in `result`."""
    # None in sys.modules is what both `import` and `find_spec` take for "not installed".
    before = f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\nresult = None\n"
    after = "\nimport json\nprint(json.dumps(result))"
    done = subprocess.run(
        [sys.executable, "-c", before + textwrap.dedent(code) + after],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _loaded_by(statement: str) -> set[str]:
    """The top-level modules that a statement loads which an empty Python has not."""
    found = _python(
        f"""
        before = set(sys.modules)
        {statement}
        result = sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})
        """
    )
    return set(found)


# --- what importing costs --------------------------------------------------------------------


def test_importing_the_package_loads_nothing_but_the_standard_library() -> None:
    loaded = _loaded_by("import deepseek_ocr_loaders")
    assert loaded - set(sys.stdlib_module_names) == {"deepseek_ocr_loaders"}
    # Nor the slow parts of that.
    assert loaded.isdisjoint({"asyncio", "inspect", "logging", "email", "subprocess", "http"})


def test_listing_the_names_loads_none_of_them() -> None:
    loaded = _loaded_by("import deepseek_ocr_loaders; dir(deepseek_ocr_loaders)")
    assert loaded - set(sys.stdlib_module_names) == {"deepseek_ocr_loaders"}


HEAVY = {"torch", "vllm", "transformers", "onnxruntime", "rapidocr", "starlette", "uvicorn"}


@pytest.mark.parametrize(
    ("name", "never"),
    [
        ("DeepSeekOCRLoader", HEAVY | {"llama_index"}),
        ("DeepSeekOCRParser", HEAVY | {"llama_index"}),
        ("DeepSeekOCRReader", HEAVY | {"langchain_core"}),
        ("DeepSeekOCRServer", HEAVY | {"llama_index", "langchain_core"}),
        ("DeepSeekOCRError", HEAVY | {"llama_index", "langchain_core", "pymupdf", "openai"}),
        ("RunReport", HEAVY | {"llama_index", "langchain_core", "pymupdf", "openai"}),
        ("locate", HEAVY | {"llama_index", "langchain_core", "pymupdf", "openai"}),
        ("highlight", HEAVY | {"llama_index", "langchain_core"}),
    ],
)
def test_a_name_loads_only_its_own_framework(name: str, never: set[str]) -> None:
    found = _loaded_by(f"from deepseek_ocr_loaders import {name}") & never
    if "pymupdf" not in never and found:
        found -= _loaded_by("import pymupdf")  # version 2 loads onnxruntime by itself
    assert found == set()


def test_fault_40_the_command_line_loads_no_engine() -> None:
    loaded = _loaded_by("import deepseek_ocr_loaders.cli")
    assert loaded & (HEAVY | {"langchain_core", "llama_index"}) == set()


def test_importing_configures_no_logging_and_no_warnings() -> None:
    left = _python(
        """
        import logging, warnings
        filters = list(warnings.filters)
        from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRReader, DeepSeekOCRServer
        ours = logging.getLogger("deepseek_ocr_loaders")
        mine = [f for f in warnings.filters if f not in filters and "deepseek" in str(f)]
        result = [len(ours.handlers), ours.level, len(mine)]
        """
    )
    assert left == [0, 0, 0]


# --- what is missing is named ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "blocked", "extra"),
    [
        ("DeepSeekOCRLoader", "langchain_core", "langchain"),
        ("DeepSeekOCRParser", "langchain_core", "langchain"),
        ("DeepSeekOCRReader", "llama_index", "llama-index"),
        ("DeepSeekOCRReader", "llama_index.core", "llama-index"),
    ],
)
def test_a_missing_framework_is_named_with_its_extra(name: str, blocked: str, extra: str) -> None:
    kind, is_import_error, text = _python(
        f"""
        import deepseek_ocr_loaders
        try:
            deepseek_ocr_loaders.{name}
        except ImportError as error:
            from deepseek_ocr_loaders import DeepSeekOCRError
            result = [type(error).__name__, isinstance(error, DeepSeekOCRError), str(error)]
        """,
        blocked=(blocked,),
    )
    assert (kind, is_import_error) == ("MissingExtraError", True)
    assert f'pip install "deepseek-ocr-loaders[{extra}]"' in text


@pytest.mark.parametrize(
    ("make", "blocked"),
    [("DeepSeekOCRLoader('x.pdf')", "llama_index"), ("DeepSeekOCRReader()", "langchain_core")],
)
def test_one_framework_works_without_the_other(make: str, blocked: str) -> None:
    code = f"import deepseek_ocr_loaders as ours; result = ours.{make}.settings.mode"
    assert _python(code, blocked=(blocked,)) == "page"


@pytest.mark.parametrize("blocked", ["rapidocr", "onnxruntime", "starlette", "uvicorn"])
def test_the_embedded_engine_names_its_extra(blocked: str, tmp_path: Path) -> None:
    text = _python(
        f"""
        import os
        os.environ["HOME"] = {str(tmp_path)!r}
        from deepseek_ocr_loaders import DeepSeekOCRError, DeepSeekOCRLoader
        try:
            DeepSeekOCRLoader({str(_any_pdf(tmp_path))!r}, engine="rapidocr").load()
        except DeepSeekOCRError as error:
            result = str(error)
        """,
        blocked=(blocked,),
    )
    assert "deepseek-ocr-loaders[cpu]" in text


def test_an_engine_that_is_not_installed_is_named(tmp_path: Path) -> None:
    text = _python(
        f"""
        import os
        os.environ.update(HOME={str(tmp_path)!r}, PATH="/nonexistent")
        from deepseek_ocr_loaders import DeepSeekOCRError, DeepSeekOCRLoader
        try:
            DeepSeekOCRLoader({str(_any_pdf(tmp_path))!r}, engine="auto").load()
        except DeepSeekOCRError as error:
            result = [type(error).__name__, str(error)]
        """,
        blocked=("rapidocr", "onnxruntime", "vllm"),
    )
    assert text[0] == "NoEngineError"
    assert "base_url" in text[1]
    assert "deepseek-ocr-loaders[cpu]" in text[1]


def _any_pdf(folder: Path) -> Path:
    path = folder / "x.pdf"
    path.write_bytes(marked_pdf([1]))
    return path


# --- names and signatures --------------------------------------------------------------------


def test_every_public_name_is_there() -> None:
    for name in deepseek_ocr_loaders.__all__:
        assert getattr(deepseek_ocr_loaders, name) is not None
    assert set(deepseek_ocr_loaders.__all__) <= set(dir(deepseek_ocr_loaders))
    with pytest.raises(AttributeError, match="no attribute 'DeepSeekLoader'"):
        _ = deepseek_ocr_loaders.DeepSeekLoader


def test_public_things_say_what_they_give() -> None:
    for name in deepseek_ocr_loaders.__all__:
        if name == "__version__":
            continue
        thing = getattr(deepseek_ocr_loaders, name)
        assert inspect.getdoc(thing), name
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if not member.startswith("_") and inspect.isfunction(value):
                assert inspect.getdoc(value), f"{name}.{member}"


@pytest.mark.parametrize("name", ["DeepSeekOCRLoader", "DeepSeekOCRParser", "DeepSeekOCRReader"])
def test_all_but_the_first_parameter_are_keyword_only(name: str) -> None:
    parameters = list(inspect.signature(getattr(deepseek_ocr_loaders, name)).parameters.values())
    first = 1 if name == "DeepSeekOCRLoader" else 0
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters[first:])
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters[:first])


def test_type_checkers_know_the_options_that_settings_know() -> None:
    assert set(Options.__annotations__) == set(Settings.model_fields)


def test_every_option_is_taken_by_loader_parser_and_reader() -> None:
    options: dict[str, Any] = {
        name: getattr(Settings(), name)
        for name in Settings.model_fields
        if getattr(Settings(), name) not in (None, ())
    }
    made = [
        deepseek_ocr_loaders.DeepSeekOCRLoader("x.pdf", **options),
        deepseek_ocr_loaders.DeepSeekOCRParser(**options),
        deepseek_ocr_loaders.DeepSeekOCRReader(**options),
    ]
    assert len({repr(one.settings) for one in made}) == 1


_BLOCK = re.compile(r"^```python notest\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _signatures() -> Iterator[tuple[str, str]]:
    """The signatures of the page: blocks of Python that hold nothing but definitions."""
    for block in _BLOCK.findall(API_PAGE.read_text("utf-8")):
        for node in ast.parse(block).body:
            if isinstance(node, ast.ClassDef):
                for item in node.body:
                    if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        yield f"{node.name}.{item.name}", _arguments(item.args, own=True)
            else:
                assert isinstance(node, ast.FunctionDef), ast.unparse(node)
                yield node.name, _arguments(node.args, own=False)


def _arguments(arguments: ast.arguments, *, own: bool) -> str:
    for argument in [*arguments.args, *arguments.kwonlyargs]:
        argument.annotation = None
    for argument in (arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    if own:
        arguments.args = arguments.args[1:]
    return ast.unparse(arguments)


def _code_arguments(path: str) -> str:
    name, _, method = path.partition(".")
    thing = getattr(deepseek_ocr_loaders, name)
    function = getattr(thing, method) if method else thing
    source = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(source).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return _arguments(node.args, own=bool(method))


def test_the_page_lists_every_public_name() -> None:
    page = API_PAGE.read_text("utf-8")
    for name in deepseek_ocr_loaders.__all__:
        assert name in page, name


@pytest.mark.parametrize(("path", "arguments"), list(_signatures()))
def test_signatures_are_what_the_page_says(path: str, arguments: str) -> None:
    assert _code_arguments(path) == arguments


def test_what_the_page_refers_to_exists() -> None:
    for path in re.findall(r"^::: (\S+)", API_PAGE.read_text("utf-8"), re.MULTILINE):
        module, _, name = path.rpartition(".")
        try:
            assert getattr(importlib.import_module(module), name) is not None
        except ImportError:
            importlib.import_module(path)
