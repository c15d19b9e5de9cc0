"""Documents as files: markdown, text, JSON, and JSON lines that can be read back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from deepseek_ocr_loaders.documents import DocumentData

__all__ = ["SUFFIXES", "Format", "format_of", "is_file_name", "read_jsonl", "write"]

Format = Literal["markdown", "text", "json", "jsonl"]

SUFFIXES: dict[Format, str] = {
    "markdown": ".md",
    "text": ".txt",
    "json": ".json",
    "jsonl": ".jsonl",
}


def format_of(path: Path) -> Format | None:
    """Give the format that a file name stands for by its end; None where it stands for none."""
    formats: dict[str, Format] = {suffix: form for form, suffix in SUFFIXES.items()}
    return formats.get(path.suffix.lower())


def is_file_name(path: Path) -> bool:
    """Tell whether a path is to be a file rather than a folder: by its end, if it is not there."""
    return format_of(path) is not None and not path.is_dir()


def write(documents: Iterable[DocumentData], form: Format) -> Iterator[str]:
    """Give the pieces of text that make up the file, one or more for each Document.

    Args:
        documents: In the order in which they are to stand.
        form: `markdown` and `text` hold the texts with a blank line between them, `json` one
            array, `jsonl` one object a line. The objects have the keys of a LangChain Document
            (`id`, `page_content`, `metadata`), so `Document(**json.loads(line))` reads one back.
    """
    if form == "json":
        before = "[\n"
        for document in documents:
            yield before + _to_json(document)
            before = ",\n"
        yield "[]\n" if before == "[\n" else "\n]\n"
    elif form == "jsonl":
        for document in documents:
            yield _to_json(document) + "\n"
    else:
        before = ""
        for document in documents:
            yield before + document.text.strip("\n") + "\n"
            before = "\n"


def _to_json(document: DocumentData) -> str:
    value = {"id": document.id, "page_content": document.text, "metadata": document.metadata}
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # Some readers of lines take these for the end of one; they stand only inside of strings.
    return text.translate(_LINE_ENDS)


_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


def read_jsonl(lines: Iterable[str]) -> Iterator[DocumentData]:
    """Give the Documents that `write(…, "jsonl")` wrote; empty lines are passed over.

    Raises:
        ValueError: A line that is not such an object.
    """
    from deepseek_ocr_loaders.documents import DocumentData  # noqa: PLC0415 - rarely wanted

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            text, metadata, id_ = value["page_content"], value["metadata"], value["id"]
        except (ValueError, KeyError, TypeError) as error:
            msg = f"line {number} is no Document: {type(error).__name__}: {error}"
            raise ValueError(msg) from None
        yield DocumentData(id=id_, text=text, metadata=metadata)
