"""The command line: `load`, the server's `serve`, `stop`, `status`, `doctor`, and `cache`."""

from __future__ import annotations

import glob as globbing
import hashlib
import inspect
import logging
import os
import sys
from contextlib import closing
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from deepseek_ocr_loaders.errors import (
    AuthenticationError,
    ConfigurationError,
    DeepSeekOCRError,
    ModelNotFoundError,
    ServerError,
)
from deepseek_ocr_loaders.export import SUFFIXES, Format
from deepseek_ocr_loaders.settings import EngineName, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from deepseek_ocr_loaders.report import RunReport

__all__ = ["ExitCode", "app", "main"]

app = typer.Typer(
    help="Read PDFs and scans with DeepSeek-OCR.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="The pages that were kept on disk.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

errors = Console(stderr=True)


class ExitCode(IntEnum):
    """What the program's end says to a script."""

    OK = 0
    PAGES_FAILED = 1
    """Something was read, and some pages or files were not."""
    USAGE = 2
    NOTHING_READ = 3
    SERVER = 4
    INTERRUPTED = 130


_NOT_OPTIONS = {"on_page", "server"}
_SECRETS = {"api_key": "DEEPSEEK_OCR_API_KEY", "password": "DEEPSEEK_OCR_PASSWORD"}


def _options() -> list[inspect.Parameter]:
    """Make one option of each setting, so that the two cannot drift apart."""
    parameters = []
    for name, field in Settings.model_fields.items():
        if name in _NOT_OPTIONS:
            continue
        flag = "--" + name.replace("_", "-")
        kind: Any = str
        default: object = None
        annotation = field.annotation
        if name == "base_url":
            kind = list[str]
        elif name == "rotate":
            kind = int
        elif get_origin(annotation) is Literal:
            kind = annotation
        elif annotation is bool:
            kind, flag = bool, f"{flag}/--no-{flag.removeprefix('--')}"
        elif annotation in (int, float):
            kind = annotation
        elif name != "cache" and int in get_args(annotation):
            kind = int
        shown = field.default if isinstance(field.default, (str, int, float)) else None
        info = typer.Option(
            flag,
            help=field.description,
            envvar=_SECRETS.get(name),
            show_default=repr(shown) if shown is not None else False,
        )
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind | None, info],
            )
        )
    return parameters


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    command.__signature__ = signature.replace(parameters=own + _options())  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in own + _options()}
    return command


@app.callback()
def _main(
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is done.")] = False,
) -> None:
    level = logging.INFO if verbose else logging.WARNING
    handler = RichHandler(console=errors, show_path=False, rich_tracebacks=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    logging.getLogger("deepseek_ocr_loaders").setLevel(level)
    logging.captureWarnings(capture=True)


@app.command()
@_with_settings
def load(
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files, folders, globs, addresses.")
    ],
    *,
    form: Annotated[
        Format, typer.Option("--format", "-f", help="What is written.")
    ] = "markdown",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A folder: one file for each document, else stdout."),
    ] = None,
    **options: Any,
) -> None:
    """Read documents and write their text, or Documents with metadata as JSON."""
    if options.get("show_progress") is None:
        options["show_progress"] = sys.stderr.isatty()
    options = {name: value for name, value in options.items() if value not in (None, [])}
    options["cache"] = {"on": True, "off": False}.get(options.get("cache", ""), options.get("cache"))
    job = _Load(form, out, Settings.create(options))
    job.run(list(_expand_globs(sources)))
    raise typer.Exit(job.exit_code)


def _expand_globs(given: list[str]) -> Iterator[str]:
    for source in given:
        if "://" in source or Path(source).exists() or not globbing.has_magic(source):
            yield source
            continue
        found = sorted(globbing.glob(source, recursive=True))
        if not found:
            msg = f"no file matches {source!r}"
            raise ConfigurationError(msg)
        yield from found


class _Load:
    """One `load`: every document on its own, so that each becomes a file and none stops another."""

    def __init__(self, form: Format, out: Path | None, settings: Settings) -> None:
        self.form = form
        self.out = out
        self.settings = settings
        self.failed = 0
        self.read = 0
        self.written: set[Path] = set()

    @property
    def exit_code(self) -> ExitCode:
        if not self.failed:
            return ExitCode.OK
        return ExitCode.PAGES_FAILED if self.read else ExitCode.NOTHING_READ

    def run(self, given: list[str]) -> None:
        from deepseek_ocr_loaders.source import expand  # noqa: PLC0415 - loads the PDF library

        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            for source in given:
                for document in expand(source):
                    self._one([document], self._target(str(document), source))
        else:
            self._one([document for source in given for document in expand(source)], None)

    def _target(self, document: str, given: str) -> Path:
        assert self.out is not None  # noqa: S101 - the caller sees to it
        name = PurePosixPath(urlsplit(document).path).name if "://" in document else document
        path = Path(name)
        if "://" not in document and Path(given).is_dir():
            inside = path.relative_to(given)
        else:
            inside = Path(path.name or "document")
        target = self.out / inside.with_name(inside.name + SUFFIXES[self.form])
        if target in self.written:  # the same name from two places
            mark = hashlib.sha256(document.encode()).hexdigest()[:8]
            target = target.with_name(f"{inside.name}.{mark}{SUFFIXES[self.form]}")
        self.written.add(target)
        return target

    def _one(self, documents: list[object], target: Path | None) -> None:
        from deepseek_ocr_loaders import bridge, export  # noqa: PLC0415 - loads the PDF library
        from deepseek_ocr_loaders.pipeline import read_documents  # noqa: PLC0415
        from deepseek_ocr_loaders.report import RunReport  # noqa: PLC0415

        report = RunReport()
        read = bridge.iterate(lambda: read_documents(documents, self.settings, report=report))
        try:
            with closing(read), _output(target) as file:  # type: ignore[type-var]
                for piece in export.write(read, self.form):
                    file.write(piece)
                    file.flush()
        except (ServerError, AuthenticationError, ModelNotFoundError, ConfigurationError):
            raise
        except DeepSeekOCRError as error:
            if self.settings.on_error == "raise":
                raise
            errors.print(f"[red]{error}[/red]", highlight=False, soft_wrap=True)
            self.failed += 1
        finally:
            self._account(report, target)

    def _account(self, report: RunReport, target: Path | None) -> None:
        failed = report.statuses.get("failed", 0)
        self.failed += failed
        self.read += len(report.pages) - failed
        where = f" -> {target}" if target is not None else ""
        errors.print(f"{report}{where}", highlight=False, markup=False, soft_wrap=True)


class _output:  # noqa: N801 - used as a function
    """A file that appears under its name only when it is whole; stdout where there is no name."""

    def __init__(self, target: Path | None) -> None:
        self.target = target

    def __enter__(self) -> TextIO:
        if self.target is None:
            self.file = sys.stdout
            return self.file
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.part = self.target.with_name(self.target.name + ".part")
        self.file = self.part.open("w", encoding="utf-8", newline="\n")
        return self.file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.target is None:
            return
        self.file.close()
        if kind is None:
            os.replace(self.part, self.target)  # noqa: PTH105 - atomic, over an old one too
        else:
            self.part.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> None:
    """Run the command line; errors of this package end it with a line and an exit code."""
    try:
        app(args=argv, standalone_mode=True)
    except ConfigurationError as error:
        _fail(error, ExitCode.USAGE)
    except (ServerError, AuthenticationError, ModelNotFoundError) as error:
        _fail(error, ExitCode.SERVER)
    except DeepSeekOCRError as error:
        _fail(error, ExitCode.NOTHING_READ)
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # `… | head` is a wish to stop, not a fault.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.OK)


def _fail(error: DeepSeekOCRError, code: ExitCode) -> None:
    errors.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
    log_tail = getattr(error, "log_tail", "")
    if log_tail and log_tail not in str(error):
        errors.print(log_tail, highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)
