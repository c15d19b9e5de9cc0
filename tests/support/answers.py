"""Answers of the model, put together piece by piece."""

from __future__ import annotations

import re
from pathlib import Path

from deepseek_ocr_loaders.answer import interpret
from deepseek_ocr_loaders.page import PageResult, PageStatus, SourceInfo

DATA = Path(__file__).parents[1] / "data"

TAGS = re.compile(r"<\|ref\|>[^<]*<\|/ref\|>|<\|det\|>[^<]*<\|/det\|>")


def ref(content: str) -> str:
    return f"<|ref|>{content}<|/ref|>"


def det(content: str) -> str:
    return f"<|det|>{content}<|/det|>"


def block(label: str, box: object, text: str = "") -> str:
    return f"{ref(label)}{det(f'[{list(box)}]')}\n{text}  \n\n"  # type: ignore[call-overload]


def squeezed(text: str) -> str:
    """The text without white space: what must not get lost."""
    return "".join(text.split())


def real_pages() -> list[str]:
    """The answers for the 22 pages of the published sample of DeepSeek-OCR's output."""
    text = (DATA / "real_output_22_pages.mmd").read_text(encoding="utf-8")
    return text.split("<--- Page Split --->\n")[:-1]


def source_info(**changes: object) -> SourceInfo:
    values: dict[str, object] = {
        "source": "folder/paper.pdf",
        "file_name": "paper.pdf",
        "content_hash": "ab" * 32,
        "kind": "pdf",
        "total_pages": 22,
        "properties": {"creationdate": "2024-01-01T00:00:00Z", "creator": "", "producer": "pdfTeX"},
    }
    return SourceInfo(**(values | changes))  # type: ignore[arg-type]


def page_result(raw: str | None, index: int = 0, **changes: object) -> PageResult:
    """The page that an answer makes, as the pipeline hands it on."""
    prompt = str(changes.pop("prompt", "markdown"))
    reason = str(changes.pop("finish_reason", "stop"))
    answer = interpret(raw, finish_reason=reason, has_ink=True, prompt=prompt)
    values: dict[str, object] = {
        "index": index,
        "label": str(index + 1),
        "width": 1280,
        "height": 1920,
        "status": answer.status,
        "blocks": answer.blocks,
        "raw": raw or "",
        "engine": "vllm",
        "model": "deepseek-ai/DeepSeek-OCR",
        "grounded": answer.grounded,
    }
    return PageResult(**(values | changes))  # type: ignore[arg-type]


def failed_page(error: Exception, index: int = 0) -> PageResult:
    return PageResult(
        index=index,
        label=str(index + 1),
        status=PageStatus.FAILED,
        error=error,  # type: ignore[arg-type]
    )
