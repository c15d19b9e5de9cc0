"""What the site needs beyond MkDocs: pages that lie outside `docs/`, and links that leave it.

The same Markdown is read in the repository and on the site. Pages of the root that belong to the
site are added to it; a link to any other file of the repository stays as its name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
ADDED = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("examples/*.ipynb"))),
)

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
# `python notest` is a word for our tests; MkDocs takes it for an unknown option of the block.
_FENCE = re.compile(r"^(?P<indent>\s*)```(?P<language>\w+) notest$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root and the notebooks."""
    for name in ADDED:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(
    markdown: str,
    page: Page,
    config: MkDocsConfig,  # noqa: ARG001 - the names are MkDocs'
    files: Files,
) -> str:
    """Point links at where the target is on the site; keep only the text where it is not on it."""
    # Where the file lies in the repository, from which its links are meant.
    uri = page.file.src_uri
    folder = (ROOT / uri if uri in ADDED else ROOT / "docs" / uri).parent

    def mend(link: re.Match[str]) -> str:
        target = link["target"]
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        path = (folder / target).resolve()
        for base in (ROOT / "docs", ROOT):
            if path.is_relative_to(base):
                name = path.relative_to(base).as_posix()
                if files.get_file_from_path(name) is not None:
                    return f"[{link['text']}]({name}{link['anchor'] or ''})"
        # A wrong link within docs/ is left for MkDocs to complain about.
        return link["text"] if path.exists() and not path.is_relative_to(ROOT / "docs") else link[0]

    return _FENCE.sub(r"\g<indent>```\g<language>", _LINK.sub(mend, markdown))
