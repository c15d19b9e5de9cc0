from __future__ import annotations

import re

from support.markdown import ROOT

from deepseek_ocr_loaders import layout
from deepseek_ocr_loaders.documents import EXCLUDED_KEYS
from deepseek_ocr_loaders.page import PageStatus

PAGE = (ROOT / "docs" / "documents.md").read_text(encoding="utf-8")


def _keys(heading: str) -> list[str]:
    """Give the names in the first column of the first table under a heading."""
    section = PAGE.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_the_table_has_every_key_of_the_metadata() -> None:
    # What is not excluded from embeddings is what the page says of LlamaIndex.
    visible = ["file_name", "page_label", "element_type", "heading_path"]
    assert sorted(_keys("## Metadata")) == sorted([*EXCLUDED_KEYS, *visible])
    named = ", ".join(f"`{name}`" for name in visible[:-1]) + f" and `{visible[-1]}`"
    assert f"In LlamaIndex all but {named} are in" in PAGE


def test_the_table_has_every_status() -> None:
    assert sorted(_keys("### `ocr_status`")) == sorted(status.value for status in PageStatus)


def test_the_table_has_every_key_of_the_layout() -> None:
    told = re.findall(r"^- (.+?):", layout.__doc__ or "", re.MULTILINE)
    names = [name for line in told for name in re.findall(r"`(\w+)`", line)]
    assert len(names) == 9
    assert sorted(_keys("## Layout")) == sorted(names)
