"""The command line: `load`, the server's `serve`, `stop`, `status`, `doctor`, and `cache`."""

from __future__ import annotations

import glob as globbing
import hashlib
import inspect
import json
import logging
import os
import sys
from contextlib import closing
from enum import IntEnum
from functools import partial
from importlib.metadata import version
from io import TextIOWrapper
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import typer
from rich.console import Console
from typer.core import TyperGroup

from deepseek_ocr_loaders.errors import (
    AuthenticationError,
    ConfigurationError,
    DeepSeekOCRError,
    MissingExtraError,
    ModelNotFoundError,
    ServerError,
)
from deepseek_ocr_loaders.export import SUFFIXES, Format, format_of, is_file_name, write
from deepseek_ocr_loaders.report import RunReport
from deepseek_ocr_loaders.settings import EngineName, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TextIO

    from pydantic.fields import FieldInfo

    from deepseek_ocr_loaders.cache import PageCache
    from deepseek_ocr_loaders.documents import DocumentData
    from deepseek_ocr_loaders.server.control import ServerStatus

__all__ = ["ExitCode", "app", "main"]

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


class _Program(TyperGroup):
    """Ends with a line and an exit code where a command fails, in place of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DeepSeekOCRError as error:
            _say(error)
            code = _exit_code(error)
        except KeyboardInterrupt:
            errors.print("interrupted")
            code = ExitCode.INTERRUPTED
        except BrokenPipeError:
            # `… | head` is a wish to stop, not a fault; the rest of the buffer has no reader.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = ExitCode.OK
        except OSError as error:
            errors.print(f"error: {error}", style="red", highlight=False, markup=False)
            code = ExitCode.USAGE
        raise typer.Exit(code)


def _exit_code(error: DeepSeekOCRError) -> ExitCode:
    if isinstance(error, (ConfigurationError, MissingExtraError)):
        return ExitCode.USAGE
    if isinstance(error, (ServerError, AuthenticationError, ModelNotFoundError)):
        return ExitCode.SERVER
    return ExitCode.NOTHING_READ


def _say(error: DeepSeekOCRError) -> None:
    errors.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
    log_tail = getattr(error, "log_tail", "")
    if log_tail and log_tail not in str(error):
        errors.print(log_tail, highlight=False, markup=False, soft_wrap=True)


app = typer.Typer(
    cls=_Program,
    help="Read PDFs and scans with DeepSeek-OCR.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="The pages that were kept on disk.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

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
        info = typer.Option(
            flag,
            help=_help(field),
            envvar=_SECRETS.get(name),
            show_default=False,
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


def _help(field: FieldInfo) -> str:
    # The option itself has no default, so that the environment can give one.
    default = field.default
    if isinstance(default, bool) or not isinstance(default, (str, int, float)):
        return field.description or ""
    return f"{field.description} Default: {json.dumps(default).strip(chr(34))}."


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    command.__signature__ = signature.replace(parameters=own + _options())  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in own + _options()}
    return command


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        typer.echo(f"deepseek-ocr-loaders {version('deepseek-ocr-loaders')}")
        raise typer.Exit


class _Lines(logging.Handler):
    """Log records as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        style = "red" if record.levelno >= logging.ERROR else ""
        text = f"{record.levelname.lower()}: {self.format(record)}"
        errors.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


@app.callback()
def _main(
    context: typer.Context,
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is done.")] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    lines = _Lines()
    loggers = [logging.getLogger(name) for name in ("deepseek_ocr_loaders", "py.warnings")]
    for logger in loggers:
        logger.addHandler(lines)
        context.call_on_close(partial(logger.removeHandler, lines))
    loggers[0].setLevel(logging.INFO if verbose else logging.WARNING)
    logging.captureWarnings(capture=True)
    context.call_on_close(partial(logging.captureWarnings, capture=False))


@app.command()
@_with_settings
def load(
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files, folders, globs, addresses.")
    ],
    *,
    form: Annotated[
        Format | None,
        typer.Option("--format", "-f", help="What is written; markdown, or as --out ends."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="A folder, for one file a document, or a file (.md, .txt, .json, .jsonl) for all. "
            "Default: stdout.",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Read documents and write their text, or Documents with metadata as JSON."""
    if options.get("show_progress") is None:
        options["show_progress"] = sys.stderr.isatty()
    options = {name: value for name, value in options.items() if value not in (None, [])}
    options["cache"] = {"on": True, "off": False}.get(
        options.get("cache", ""), options.get("cache")
    )
    form = form or (format_of(out) if out is not None else None) or "markdown"
    job = _Load(_expand_globs(sources), form, out, Settings.create(options))
    try:
        job.run()
    except DeepSeekOCRError as error:
        _say(error)
        code = _exit_code(error)
        raise typer.Exit(
            ExitCode.PAGES_FAILED if code is ExitCode.NOTHING_READ and job.pages_read else code
        ) from error
    finally:
        errors.print(str(job.report), highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(ExitCode.PAGES_FAILED if job.anything_failed else ExitCode.OK)


def _expand_globs(given: list[str]) -> list[str]:
    """Give each source once; globs that the shell has left alone are looked up."""
    sources: list[str] = []
    for source in given:
        if "://" in source or not source.strip():  # the run says what is wrong with an empty one
            sources.append(source)
        elif Path(source).exists() or not globbing.has_magic(source):
            sources.append(str(Path(source)))
        elif found := sorted(globbing.glob(source, recursive=True)):  # noqa: PTH207 - any root
            sources += found
        else:
            msg = f"no file matches {source!r}"
            raise ConfigurationError(msg)
    return list(dict.fromkeys(sources))


class _Load:
    """One `load`: all documents in one run, to stdout, to one file, or to a file each."""

    def __init__(
        self, sources: list[str], form: Format, out: Path | None, settings: Settings
    ) -> None:
        self.sources = sources
        self.form = form
        self.out = out
        self.settings = settings
        if out is not None and out.is_file() and not is_file_name(out):
            msg = f"--out {out} is a file: name a folder, or a file that ends in " + ", ".join(
                SUFFIXES.values()
            )
            raise ConfigurationError(msg)
        self.report = RunReport()
        self.written: set[Path] = set()

    @property
    def pages_read(self) -> int:
        return len(self.report.pages) - self.report.statuses.get("failed", 0)

    @property
    def anything_failed(self) -> bool:
        return bool(self.report.failed_documents or self.report.statuses.get("failed"))

    def run(self) -> None:
        from deepseek_ocr_loaders import bridge  # noqa: PLC0415 - loads the PDF library
        from deepseek_ocr_loaders.pipeline import all_wanted, read_documents  # noqa: PLC0415
        from deepseek_ocr_loaders.source import expand  # noqa: PLC0415

        documents = bridge.iterate(
            lambda: read_documents(expand(self.sources), self.settings, report=self.report)
        )
        with all_wanted(), closing(documents):  # type: ignore[type-var]
            if self.out is None or is_file_name(self.out):
                self._write(documents, self.out)
                return
            self.out.mkdir(parents=True, exist_ok=True)
            for source, pages in groupby(documents, key=lambda page: page.metadata["source"]):
                target = self._target(str(source))
                self._write(pages, target)
                errors.print(f"{source} -> {target}", highlight=False, markup=False, soft_wrap=True)

    def _write(self, documents: Iterable[DocumentData], target: Path | None) -> None:
        with _output(target) as file:
            for piece in write(documents, self.form):
                file.write(piece)
                file.flush()

    def _target(self, source: str) -> Path:
        assert self.out is not None  # noqa: S101 - the caller sees to it
        if "://" in source:
            inside = Path(PurePosixPath(urlsplit(source).path).name or "document")
        else:
            above = [folder for folder in self.sources if Path(source).is_relative_to(folder)]
            inside = Path(source).relative_to(above[0]) if above else Path(source)
            inside = inside if inside.name else Path(Path(source).name)
        target = self.out / inside.with_name(inside.name + SUFFIXES[self.form])
        if target in self.written:  # the same name from two places
            mark = hashlib.sha256(source.encode(errors="surrogateescape")).hexdigest()[:8]
            target = target.with_name(f"{inside.name}.{mark}{SUFFIXES[self.form]}")
        self.written.add(target)
        return target


class _output:  # noqa: N801 - used as a function
    """A file that appears under its name only when it is whole; stdout where there is no name."""

    def __init__(self, target: Path | None) -> None:
        self.target = target

    def __enter__(self) -> TextIO:
        # Half a surrogate pair, which JSON can carry and UTF-8 cannot, is written as JSON does it.
        if self.target is None:
            self.file = sys.stdout
            if isinstance(self.file, TextIOWrapper):
                self.file.reconfigure(encoding="utf-8", errors="backslashreplace")
            return self.file
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.part = self.target.with_name(self.target.name + ".part")
        self.file = self.part.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")
        return self.file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.target is None:
            return
        self.file.close()
        if kind is None:
            os.replace(self.part, self.target)  # noqa: PTH105 - atomic, over an old one too
        else:
            self.part.unlink(missing_ok=True)


# --- the server ------------------------------------------------------------------------------


@app.command()
def serve(
    extra_args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENT...]", help="For the engine, as vLLM takes them."),
    ] = None,
    *,
    engine: Annotated[
        EngineName, typer.Option(envvar="DEEPSEEK_OCR_ENGINE", help="What is started.")
    ] = "auto",
    model: Annotated[
        str | None, typer.Option(envvar="DEEPSEEK_OCR_MODEL", help="A hub id or a local folder.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="A free one by default.")] = None,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Share of the GPU's memory, over 0 to 1.")
    ] = None,
    data_parallel_size: Annotated[int, typer.Option(help="Copies of the model, one a GPU.")] = 1,
    tensor_parallel_size: Annotated[int, typer.Option(help="GPUs that share one copy.")] = 1,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For the engine's environment.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Image and tag, for docker.")] = None,
    image_tar: Annotated[
        Path | None, typer.Option(help="What `docker save` wrote, for docker without network.")
    ] = None,
    offline: Annotated[bool, typer.Option(help="Ask no model hub and no registry.")] = False,
    start_timeout: Annotated[
        float, typer.Option(help="Seconds to wait until it is ready.")
    ] = 1800.0,
    detach: Annotated[
        bool, typer.Option("--detach", help="Come back when it is ready, and leave it up.")
    ] = False,
) -> None:
    """Keep a server up that all loaders of this user on this machine find, until Ctrl-C."""
    from deepseek_ocr_loaders.server import DeepSeekOCRServer, control  # noqa: PLC0415

    given: dict[str, Any] = {
        "port": port,
        "gpu_memory_utilization": gpu_memory_utilization,
        "data_parallel_size": data_parallel_size,
        "tensor_parallel_size": tensor_parallel_size,
        "image": image,
        "offline": offline,
    }
    variables = dict(_variable(text) for text in env or ())
    # It holds the rules for these, and starts nothing yet.
    DeepSeekOCRServer(engine=engine, model=model, extra_args=extra_args or (), **given)
    options = control.options_of(
        engine,
        model,
        extra_args=tuple(extra_args or ()),
        env=tuple(sorted(variables.items())),
        image_tar=image_tar.expanduser().absolute() if image_tar else None,
        **given,
    )
    errors.print(f"starting {options.engine} with {options.model}", highlight=False, markup=False)

    def say(ready: list[control.ServerStatus]) -> None:
        until = "until deepseek-ocr-loaders stop" if detach else "until Ctrl-C"
        logs = ", ".join(found.log_file for found in ready)
        errors.print(f"ready {until}; log: {logs}", highlight=False, soft_wrap=True)
        typer.echo(ready[0].base_url)  # loaders find the others by themselves

    control.serve(options, detach=detach, start_timeout=start_timeout, on_ready=say)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        msg = "--env wants NAME=VALUE"  # what was given may be a secret
        raise ConfigurationError(msg)
    return name, value


@app.command()
def stop() -> None:
    """End every managed server of this user on this machine, whoever uses it."""
    from deepseek_ocr_loaders.server.control import stop_all  # noqa: PLC0415

    stopped = stop_all()
    for found in stopped:
        typer.echo(f"stopped {_server(found)}")
    if not stopped:
        typer.echo("no managed server is running")


AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command()
def status(*, as_json: AsJson = False) -> None:
    """Show the managed servers of this user on this machine."""
    from deepseek_ocr_loaders.server import control  # noqa: PLC0415

    servers = control.status()
    if as_json:
        typer.echo(json.dumps([found.as_dict() for found in servers], indent=2))
        return
    for found in servers:
        typer.echo(_server(found))
    if not servers:
        typer.echo("no managed server is running")


def _server(found: ServerStatus) -> str:
    parts = [f"{found.engine} {found.model}: {found.phase}"]
    if found.alive:
        kept = ", kept up" if found.kept else ""
        parts += [found.stage, f"{found.base_url}, pid {found.pid}, {len(found.users)} users{kept}"]
    return "; ".join([*filter(None, [*parts, found.message]), f"log: {found.log_file}"])


@app.command()
def doctor(
    *,
    model: Annotated[str | None, typer.Option(help="The model to look for.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at what reading needs on this machine, and say what to do about what is missing."""
    from deepseek_ocr_loaders.server import control  # noqa: PLC0415

    checks = control.doctor(model=model)
    if as_json:
        typer.echo(json.dumps([check.as_dict() for check in checks], indent=2))
    else:
        for check in checks:
            typer.echo(f"{check.status:7}  {check.name}: {check.detail}")
            if check.remedy:
                typer.echo(f"         -> {check.remedy}")
    raise typer.Exit(
        ExitCode.SERVER if any(check.status == "error" for check in checks) else ExitCode.OK
    )


# --- the cache -------------------------------------------------------------------------------

CacheFolder = Annotated[
    Path | None, typer.Option("--folder", help="By default what DEEPSEEK_OCR_CACHE says.")
]


@cache_app.command("info")
def cache_info(*, folder: CacheFolder = None) -> None:
    """Say where finished pages are kept, how many there are, and how large."""
    kept = _cache(folder)
    typer.echo(f"{kept.folder}: {len(kept)} pages, {kept.size / 1e6:.1f} MB")


@cache_app.command("clear")
def cache_clear(*, folder: CacheFolder = None) -> None:
    """Throw all finished pages away."""
    kept = _cache(folder)
    typer.echo(f"{kept.folder}: {kept.clear()} pages thrown away")


def _cache(folder: Path | None) -> PageCache:
    from deepseek_ocr_loaders.cache import PageCache, cache_folder  # noqa: PLC0415

    chosen = cache_folder(Settings.create({"cache": folder}).cache or True)
    assert chosen is not None  # noqa: S101 - it is not off
    return PageCache(chosen)


def main(argv: list[str] | None = None) -> None:
    """Run the command line and end the program with one of `ExitCode`."""
    app(args=argv)
