"""Every code block of the pages: Python is run, or compiled where it says `notest`."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import typer.main
from support.markdown import ROOT, blocks, pages
from support.published import copy_examples, embedded_engine

from deepseek_ocr_loaders.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.markdown import Block

PAGES = [page for page in pages() if any(block.language == "python" for block in blocks(page))]
PROGRAM = "deepseek-ocr-loaders"


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _runs(block: Block) -> bool:
    return block.language == "python" and "notest" not in block.words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_examples(tmp_path_factory.mktemp("docs")).parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with embedded_engine(tmp_path_factory.mktemp("state")) as environment:
        yield environment


def _program(page: Path) -> str:
    """Join the blocks of a page, each at the line where it stands, so that errors name it."""
    lines: list[str] = []
    for block in filter(_runs, blocks(page)):
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.text.splitlines()
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile("\n" * (block.line - 1) + block.text, _name(page), "exec")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(_runs, blocks(page)))], ids=_name
)
def test_python_blocks_run(page: Path, folder: Path, environment: dict[str, str]) -> None:
    program = folder / f"{page.stem}.md.py"
    program.write_text(_program(page), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def _commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        # Words as the shell sees them; `|`, `>` and the like stand alone.
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        while words and re.fullmatch(r"\w+=.*", words[0]):
            del words[0]
        end = next((i for i, word in enumerate(words) if set(word) <= set("|&;<>()")), len(words))
        if words[:1] == [PROGRAM]:
            yield words[1:end]


def _parse(arguments: list[str]) -> None:
    """Parse a command line as the program does, without running it."""
    command = typer.main.get_command(app)
    context = command.make_context(PROGRAM, list(arguments))
    rest = [*context._protected_args, *context.args]
    while rest and hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
        rest = [*context._protected_args, *context.args]


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_commands_parse(page: Path) -> None:
    for block in blocks(page):
        if block.language in {"sh", "bash", "shell", "console"}:
            for arguments in _commands(block.text):
                try:
                    _parse(arguments)
                except Exception as error:
                    message = f"{_name(page)}:{block.line}: {' '.join(arguments)}: {error}"
                    raise AssertionError(message) from error


def test_commands_are_found_and_wrong_ones_told() -> None:
    text = (
        f"A=b {PROGRAM} load a.pdf \\\n --format jsonl > x.jsonl  # why\n{PROGRAM} doctor | head\n"
    )
    assert list(_commands(text)) == [["load", "a.pdf", "--format", "jsonl"], ["doctor"]]
    _parse(["load", "a.pdf", "--format", "jsonl"])
    for wrong in (["load", "a.pdf", "--no-such"], ["read"], ["load", "a.pdf", "--format", "docx"]):
        with pytest.raises(Exception, match=r"(?i)no such|invalid|not one of"):
            _parse(wrong)
