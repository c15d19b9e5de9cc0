"""What a run can be told, validated once.

Loader, parser, reader and command line pass their keyword arguments to `Settings`, so a name
means the same in all four. `Options` is the same list for type checkers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from deepseek_ocr_loaders.errors import ConfigurationError
from deepseek_ocr_loaders.page_ranges import Pages
from deepseek_ocr_loaders.prompts import prompt_text

if TYPE_CHECKING:
    from typing import Self

    from deepseek_ocr_loaders.server import DeepSeekOCRServer

__all__ = ["Options", "Settings"]

Mode = Literal["page", "document", "element"]
Output = Literal["markdown", "text", "raw"]
Tables = Literal["html", "markdown"]
Math = Literal["latex", "dollars"]
Images = Literal["drop", "placeholder", "save"]
Ocr = Literal["always", "auto"]
Detail = Literal["high", "low"]
Furniture = Literal["keep", "drop"]
OnError = Literal["raise", "skip", "record"]
EngineName = Literal["auto", "vllm", "docker", "rapidocr"]
Rotation = Literal[0, 90, 180, 270]
RotateHook = Callable[[Any, int], int]
"""Called with the drawn page (a `PIL.Image.Image`) and its number from 1; gives degrees to turn."""


def _addresses(value: object) -> object:
    if value is None or value == "":
        return ()
    if value == []:
        msg = "base_url is an empty list: name a server, or leave it out to have one started"
        raise ValueError(msg)
    return (value,) if isinstance(value, str) else value


def _secret(value: object) -> object:
    # An empty key is what an unset variable looks like in a shell script or a compose file.
    return None if value == "" else value


class Settings(BaseModel):
    """Everything that a run can be told; all of it optional.

    Raises:
        ConfigurationError: A value that cannot be used; the message names the parameter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    # What is read, and how it comes out.
    mode: Annotated[Mode, Field(description="One Document a page, a document, or an element.")] = (
        "page"
    )
    page_separator: Annotated[
        str, Field(description='Between the pages of one Document, for mode="document".')
    ] = "\n\n"
    pages: Annotated[
        Pages, Field(description='Which pages, counted from 1: "1-3,7,10-" or a list.')
    ] = None
    prompt: Annotated[
        str,
        Field(description="markdown, ocr, free, figure, describe, or a text of your own."),
    ] = "markdown"
    output: Annotated[
        Output, Field(description="Markdown, plain text, or what the model said, byte for byte.")
    ] = "markdown"
    tables: Annotated[Tables, Field(description="Tables as HTML or as pipe tables.")] = "html"
    math: Annotated[Math, Field(description=r"Maths in \\(…\\) as it comes, or in dollars.")] = (
        "latex"
    )
    images: Annotated[
        Images, Field(description="Pictures on the page: dropped, marked, or saved and linked.")
    ] = "drop"
    image_dir: Annotated[Path | None, Field(description="Where saved pictures go.")] = None
    furniture: Annotated[
        Furniture, Field(description="Headers, footers and page numbers: kept or dropped.")
    ] = "keep"
    layout: Annotated[
        bool, Field(description="Blocks and boxes as one JSON string in the metadata.")
    ] = False

    # How a page is drawn, and whether it is sent.
    ocr: Annotated[
        Ocr, Field(description="auto: a page with a sound text layer is read from it, not sent.")
    ] = "always"
    detail: Annotated[
        Detail, Field(description="low: one global view of 640 pixels, for simple pages.")
    ] = "high"
    skip_blank: Annotated[
        bool, Field(description="A page without ink is not sent; it still yields a Document.")
    ] = True
    password: Annotated[
        SecretStr | None,
        BeforeValidator(_secret),
        Field(exclude=True, repr=False, description="Opens an encrypted PDF."),
    ] = None
    dpi: Annotated[
        int | None,
        Field(ge=36, le=1200, description="By default the size that the model looks at."),
    ] = None
    rotate: Annotated[
        Rotation | Mapping[int, int] | RotateHook,
        Field(description="Degrees clockwise; also a mapping by page number, or a function."),
    ] = 0

    # What happens to a page that cannot be read, and how hard it is tried.
    on_error: Annotated[
        OnError, Field(description="A page that fails: ends the run, is left out, is recorded.")
    ] = "raise"
    retries: Annotated[
        int, Field(ge=0, le=100, description="Further tries of a request that can heal.")
    ] = 3
    timeout: Annotated[
        float, Field(gt=0, description="Seconds for the answer to a page once it is sent.")
    ] = 600.0
    cache: Annotated[
        bool | Path, Field(description="Keep finished pages: off, on, or a folder.")
    ] = False
    max_concurrency: Annotated[
        int | None,
        Field(ge=1, le=4096, description="Pages at the server at once; its own limit by default."),
    ] = None
    show_progress: Annotated[bool, Field(description="A progress bar that counts pages.")] = False
    on_page: Annotated[
        Callable[..., None] | None,
        Field(exclude=True, repr=False, description="Called with a PageReport for each page."),
    ] = None

    # Who reads it.
    server: Annotated[
        Any, Field(exclude=True, repr=False, description="A DeepSeekOCRServer of your own.")
    ] = None
    base_url: Annotated[
        tuple[str, ...],
        BeforeValidator(_addresses),
        Field(description="A server that someone else runs; several share the pages."),
    ] = ()
    api_key: Annotated[
        SecretStr | None,
        BeforeValidator(_secret),
        Field(exclude=True, repr=False, description="The key of that server."),
    ] = None
    model: Annotated[
        str | None, Field(description="The served name; found out if there is only one.")
    ] = None
    engine: Annotated[
        EngineName, Field(description="Who reads if no address is given; auto decides.")
    ] = "auto"

    # Downloads, where the source is an address.
    max_download_bytes: Annotated[int, Field(ge=1, description="Limit of one download.")] = (
        512 * 1024 * 1024
    )
    download_timeout: Annotated[float, Field(gt=0, description="Seconds for one download.")] = 120.0
    allow_private_addresses: Annotated[
        bool, Field(description="Let downloads reach private and loopback addresses.")
    ] = False

    @classmethod
    def create(cls, options: Mapping[str, Any]) -> Self:
        """Build from keyword arguments, and from the environment for what is not given.

        Args:
            options: Names and values as in `Options`; None means the default.

        Raises:
            ConfigurationError: An unknown name or a value that cannot be used.
        """
        given = {name: value for name, value in options.items() if value is not None}
        unknown = sorted(set(given) - set(cls.model_fields))
        if unknown:
            msg = f"unknown parameter {', '.join(unknown)}; known are " + ", ".join(
                cls.model_fields
            )
            raise ConfigurationError(msg)
        try:
            return cls(**{**_from_environment(given), **given})
        except ValidationError as error:
            raise ConfigurationError(_explain(error)) from None

    @field_serializer("base_url")
    def _no_address(self, value: tuple[str, ...]) -> list[str] | None:
        return list(value) or None  # an empty list is refused, because a user means something by it

    @field_serializer("image_dir", "cache")
    def _plain_path(self, value: object) -> object:
        return str(value) if isinstance(value, Path) else value

    @field_serializer("rotate")
    def _plain_rotation(self, value: object) -> object:
        if callable(value):
            msg = "rotate is a function, which cannot be written to JSON"
            raise ConfigurationError(msg)
        return value

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, value: str) -> str:
        prompt_text(value)
        return value

    @field_validator("base_url")
    @classmethod
    def _check_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_normalise_address(address) for address in value)

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.images == "save" and self.image_dir is None:
            msg = 'images="save" needs image_dir, the folder for the pictures'
            raise ValueError(msg)
        if self.server is not None and self.base_url:
            msg = "give either server or base_url, not both"
            raise ValueError(msg)
        return self

    def __repr__(self) -> str:
        changed = {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if field.repr and getattr(self, name) != field.default
        }
        return "Settings(" + ", ".join(f"{k}={v!r}" for k, v in changed.items()) + ")"


def _normalise_address(address: str) -> str:
    text = address.strip().rstrip("/")
    if not text.startswith(("http://", "https://")):
        msg = "base_url must start with http:// or https://, for example http://127.0.0.1:8000/v1"
        raise ValueError(msg)
    if "?" in text or "#" in text:
        msg = "base_url must end with the path: no ? and no #"
        raise ValueError(msg)
    if "@" in text.split("/")[2]:
        msg = "base_url must not contain a user name or password: pass the key as api_key"
        raise ValueError(msg)
    for tail in ("/chat/completions", "/v1"):
        text = text.removesuffix(tail)
    return text.rstrip("/") + "/v1"


def _from_environment(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("api_key", "model", "engine"):
        if value := os.environ.get(f"DEEPSEEK_OCR_{name.upper()}"):
            found[name] = value
    # A server object or an address in the call wins over an address in the environment.
    addresses = os.environ.get("DEEPSEEK_OCR_BASE_URL", "").split(",")
    if "server" not in given and "base_url" not in given and any(map(str.strip, addresses)):
        found["base_url"] = tuple(part.strip() for part in addresses if part.strip())
    if value := os.environ.get("DEEPSEEK_OCR_CACHE"):
        words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
        found["cache"] = words.get(value.lower(), value)
    return found


def _explain(error: ValidationError) -> str:
    lines = []
    for detail in error.errors(include_url=False, include_input=False):
        name = str(detail["loc"][0]) if detail["loc"] else ""
        text = detail["msg"].removeprefix("Value error, ")
        lines.append(f"{name}: {text}" if name and not text.startswith(name) else text)
    return "; ".join(dict.fromkeys(lines))


class Options(TypedDict, total=False):
    """The keyword arguments of loader, parser and reader; see `docs/parameters.md`."""

    mode: Mode
    page_separator: str
    pages: str | int | list[int] | None
    prompt: str
    output: Output
    tables: Tables
    math: Math
    images: Images
    image_dir: str | Path | None
    furniture: Furniture
    layout: bool
    ocr: Ocr
    detail: Detail
    skip_blank: bool
    password: str | SecretStr | None
    dpi: int | None
    rotate: int | Mapping[int, int] | RotateHook
    on_error: OnError
    retries: int
    timeout: float
    cache: bool | str | Path
    max_concurrency: int | None
    show_progress: bool
    on_page: Callable[..., None] | None
    server: DeepSeekOCRServer | None
    base_url: str | list[str] | None
    api_key: str | SecretStr | None
    model: str | None
    engine: EngineName
    max_download_bytes: int
    download_timeout: float
    allow_private_addresses: bool
