"""Write parameters, commands and public names into `docs/`, from the code that they describe.

Usage: python scripts/make_parameters.py [--check]

Between two marks of a page stands what is generated; the rest is written by hand. `--check` only
says what is not current.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer.main

import deepseek_ocr_loaders
from deepseek_ocr_loaders import cli, errors, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).resolve().parent.parent / "docs"

# Each begins with the setting that is named, in the order of `Settings`.
SECTIONS = {
    "mode": "What is read, and how it comes out",
    "ocr": "How a page is drawn, and whether it is sent",
    "on_error": "Pages that cannot be read, and the run",
    "server": "Who reads",
    "max_download_bytes": "Downloads, where the source is an address",
}

# What the code says with a type or a callable of its own.
WORDS = {"RotateHook": "function", "DeepSeekOCRServer": "`DeepSeekOCRServer`"}


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kinds(name: str) -> str:
    """Say what a caller may give: the values of a choice, else types."""
    written = settings.Options.__annotations__[name]
    text = getattr(written, "__forward_arg__", str(written))
    choice = getattr(settings, text, None)
    if get_origin(choice) is Literal:
        return " · ".join(f"`{value}`" for value in get_args(choice))
    parts = [part.strip() for part in re.split(r"\|(?![^\[]*\])", text)]
    parts = [part for part in parts if part not in {"None", "SecretStr"}]
    return ", ".join(
        WORDS.get(part, "function" if part.startswith("Callable") else f"`{part}`")
        for part in parts
    )


def _default(name: str) -> str:
    value = settings.Settings.model_fields[name].default
    if value is None or value == ():
        return ""
    # As it is typed in Python, on one line.
    return f"`{value!r}`"


def _limits(name: str) -> str:
    limits = {
        key: getattr(rule, key)
        for rule in settings.Settings.model_fields[name].metadata
        for key in ("ge", "gt", "le")
        if hasattr(rule, key)
    }
    if "ge" in limits and "le" in limits:
        return f" {limits['ge']} to {limits['le']}."
    if "gt" in limits:
        return f" More than {limits['gt']}."
    return f" At least {limits['ge']}." if "ge" in limits else ""


def parameters() -> str:
    """Give the tables of all settings."""
    lines: list[str] = []
    for name, field in settings.Settings.model_fields.items():
        if name in SECTIONS:
            lines += ["", f"### {SECTIONS[name]}", ""]
            lines += [_row("name", "values", "default", "meaning"), "|---|---|---|---|"]
        meaning = (field.description or "") + _limits(name)
        lines.append(_row(f"`{name}`", _kinds(name), _default(name), meaning))
    return "\n".join(lines[1:])


def _option(option: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
    kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    # Before 0.2x, typer's options are Click's.
    choices = getattr(getattr(option, "type", None), "choices", ())
    if get_origin(kind) is Literal:
        choices = get_args(kind)
    return _row(flags, " · ".join(f"`{value}`" for value in choices), option.help or "")


def _commands(command: Any, name: str) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    shown = " ".join([name, *(p.metavar or p.name.upper() for p in arguments)])
    if not hasattr(command, "commands"):
        yield from ("", f"### {name.split(' ', 1)[1]}", "", f"`{shown}`", "")
        yield from (command.help or "").strip().split("\n\n")[:1]
    if options:
        yield from ("", _row("option", "values", "meaning"), "|---|---|---|")
        yield from map(_option, options)
    for word, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {word}")


def command_line() -> str:
    """Give the tables of all commands and options."""
    app = typer.main.get_command(cli.app)
    app.params = [p for p in app.params if "completion" not in (p.name or "")]
    return "\n".join(_commands(app, "deepseek-ocr-loaders")).strip()


def _stub(thing: Any) -> str:
    """Give the definition of a class or function as its source has it, without what it does."""
    (node,) = ast.parse(inspect.getsource(thing)).body
    if not isinstance(node, ast.ClassDef):
        return "\n".join(_function(node, ""))
    bases = ", ".join(filter(lambda base: base[0] != "_", map(ast.unparse, node.bases)))
    lines = [f"class {node.name}({bases}):" if bases else f"class {node.name}:"]
    properties: list[str] = []
    methods: list[str] = []
    for member in filter(_is_public, node.body):
        if isinstance(member, ast.AnnAssign):
            lines.append(f"    {ast.unparse(member.target)}: {ast.unparse(member.annotation)}")
        elif any(ast.unparse(decorator) == "property" for decorator in member.decorator_list):
            properties.append(f"    {member.name}: {ast.unparse(member.returns)}")
        else:
            methods += ["", *_function(member, "    ")]
    lines += properties
    return "\n".join([*lines, *(methods if len(lines) > 1 else methods[1:])])


def _function(node: Any, indent: str) -> list[str]:
    """Write a definition as the formatter does: on one line, or with a line for each argument."""
    given = node.args
    before = len(given.args) - len(given.defaults)
    parts = [
        _argument(arg, given.defaults[i - before] if i >= before else None)
        for i, arg in enumerate(given.args)
    ]
    if given.kwonlyargs:
        parts.append("*")
        parts += map(_argument, given.kwonlyargs, given.kw_defaults)
    if given.kwarg is not None:
        parts.append(f"**{_argument(given.kwarg, None)}")
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    lines = [f"{indent}@{ast.unparse(decorator)}" for decorator in node.decorator_list]
    line = f"{indent}{word} {node.name}({', '.join(parts)}){returns}: ..."
    if len(line) <= 100:
        return [*lines, line]
    inner = [f"{indent}    {part}," for part in parts]
    return [*lines, f"{indent}{word} {node.name}(", *inner, f"{indent}){returns}: ..."]


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    text = arg.arg if arg.annotation is None else f"{arg.arg}: {ast.unparse(arg.annotation)}"
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}".replace("'", '"')


def _is_public(member: Any) -> bool:
    if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return member.name == "__init__" or not member.name.startswith("_")
    return isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_")


def public_names() -> str:
    """Give every public name with its signature, and the errors with their bases."""
    names = [name for name in deepseek_ocr_loaders.__all__ if name != "__version__"]
    stubs = [_stub(getattr(deepseek_ocr_loaders, name)) for name in names]
    # Two blank lines, as the formatter would have it.
    code = "\n\n\n".join(stubs)
    lines = ["```python notest", code, "```", "", "`__version__` is a string."]
    lines += ["", "The errors, in `deepseek_ocr_loaders.errors`:", "", "```text"]
    for name in errors.__all__:
        bases = ", ".join(base.__name__ for base in getattr(errors, name).__bases__)
        lines.append(f"{name}({bases})")
    return "\n".join([*lines, "```"])


GENERATED = {"parameters.md": parameters, "cli.md": command_line, "api.md": public_names}


def current(page: str) -> str:
    """Give the text of a page with its generated part made anew."""
    text = (DOCS / page).read_text(encoding="utf-8")
    before, begin, rest = text.partition("<!-- generated: scripts/make_parameters.py -->\n")
    _, end, after = rest.partition("<!-- end of what is generated -->\n")
    if not begin or not end:
        message = f"{page} has no marks for what is generated"
        raise ValueError(message)
    return f"{before}{begin}\n{GENERATED[page]()}\n\n{end}{after}"


def stale() -> list[str]:
    """Name the pages that are not current."""
    return [name for name in GENERATED if current(name) != (DOCS / name).read_text("utf-8")]


def main() -> int:
    """Write, or check, and give the exit code."""
    names = stale()
    if "--check" in sys.argv[1:]:
        if names:
            print("not current, run scripts/make_parameters.py:", *names)
        return len(names)
    for name in names:
        (DOCS / name).write_text(current(name), encoding="utf-8")
        print("written:", name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
