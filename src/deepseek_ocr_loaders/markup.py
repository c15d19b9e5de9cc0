"""The model's answer → blocks: every character that is not a tag ends up in exactly one block.

The grammar is `<|ref|>LABEL<|/ref|><|det|>[[x1, y1, x2, y2], …]<|/det|>`, then the content up to
the next tag. The model errs, servers strip and cut, so every part of it may be missing, doubled,
damaged or in another place. Nothing here evaluates what the document says, and each character is
looked at a bounded number of times.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.page import COORDINATE_MAX, Block, Box
from deepseek_ocr_loaders.prompts import is_grounded, prompt_text

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "LABELS",
    "has_tags",
    "names_text",
    "outer_tables",
    "parse",
    "without_leaked_tokens",
]

# fmt: off
LABELS = frozenset({
    "abstract", "algorithm", "aside_text", "author", "caption", "chart", "chart_caption",
    "code", "content", "doc_title", "equation", "equation_number", "figure", "figure_caption",
    "figure_title", "footer", "footer_image", "footnote", "form", "formula", "formula_number",
    "handwriting", "header", "header_image", "image", "image_caption", "image_footnote",
    "isolate_formula", "list", "list_item", "logo", "number", "page_footer", "page_header",
    "page_number", "paragraph_title", "picture", "picture_caption", "reference", "references",
    "seal", "section_header", "signature", "stamp", "sub_title", "subtitle", "table",
    "table_caption", "table_footnote", "table_title", "text", "title", "toc", "vision_footnote",
    "watermark",
})
# fmt: on
"""Words seen as labels. There is no closed list: under the `markdown` prompt any word like these
is one. Under the other prompts, where a ref may hold text of the page, only these are."""

_TAG = re.compile(r"<\|(/?(?:ref|det))\|>")
# Byte-pair tokens of the tokenizer, with full-width bars; a document's own <|im_end|> is text.
_LEAKED = re.compile(r"<｜[A-Za-z▁_/ ]{1,48}｜>")
_LABEL = re.compile(r"[a-z][a-z0-9]{0,31}(?:[_-][a-z0-9]{1,31}){0,3}")
_TABLE = re.compile(r"<table\b[^<>]*>|</table\s*>", re.IGNORECASE)

# What is left of a closing or opening tag that lost some of its characters.
_CLOSER_DEBRIS = re.compile(r"[ \t]*(?:<\|?/?|\|?/)(?:ref|det)(?:\|?>|\|)?(?![a-z])")
_REF_DEBRIS = re.compile(r"(?:<\|?/?|\|?/)ref(?:\|?>|\|)?\s*\Z")
_OPENER_DEBRIS = re.compile(r"\A<?\|?ref\|?>")
_CUT_TAG = re.compile(r"<\|(?:/|/?(?:r|re|ref|d|de|det)\|?)\Z")

_BARE_BOXES = r"\[\[[-0-9., \[\]]{7,800}\]\]"
_BARE_LABELLED = re.compile(
    rf"^[ \t]*([A-Za-z][A-Za-z0-9_-]{{0,40}})[ \t]?({_BARE_BOXES})", re.MULTILINE
)
_BARE_TEXT = re.compile(rf"({_BARE_BOXES})[ \t]*\Z")
_BOXES_AT_START = re.compile(rf"[ \t]*({_BARE_BOXES})")
_BOXES_AT_END = re.compile(rf"\A\s*({_BARE_BOXES})\s*\Z")

# What is written as it should be; one box alone has its own, which takes half the time.
_FOUR_NUMBERS = r"([0-9]{1,3}), ?([0-9]{1,3}), ?([0-9]{1,3}), ?([0-9]{1,3})"
_ONE_BOX = re.compile(rf"\[\[{_FOUR_NUMBERS}\]\]")
_SOUND_GROUP = re.compile(_FOUR_NUMBERS)
_SOUND_BOX = r"\[[0-9]{1,3}(?:, ?[0-9]{1,3}){3}\]"
_SOUND_BOXES = re.compile(rf"[\s,]*\[{_SOUND_BOX}(?:, ?{_SOUND_BOX})*\]")
_INTEGER = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"(?<![0-9])(-?[0-9]{1,4})(?:\.[0-9]{1,9})?(?![0-9])")
_LONE_DASH = re.compile(r"-(?![0-9])")
_JUNK_MAX = 4
_BARE_GROUP = re.compile(r"[\[\]0-9,. \t-]*")
_BRACKET = re.compile(r"[\[\]]")
_SHALLOW_GROUP = re.compile(r"\[[^\[\]]*+(?:\[[^\[\]]*+\][^\[\]]*+)*+\]")
_INNER_GROUP = re.compile(r"\[([^\[\]]*)(?:\]|\Z)")
_LABEL_BEFORE_GROUP = re.compile(r"[\s,\]]*([A-Za-z][A-Za-z0-9_-]{0,40})?[ \t:]*(?=\[)")
_NO_TEXT = re.compile(r"[\s\[\],;:.()-]*")
_SPLICES_MAX = 8
_SHORTEST_BOX = len("[1,2,3,4")
_PAYLOAD_MAX = 16_384
"""Characters of one det tag that are read: twice what the longest answer could hold."""


def parse(raw: str, *, prompt: str = "markdown") -> tuple[Block, ...]:
    """Give the blocks of an answer, in its order.

    Args:
        raw: What the model said.
        prompt: The short name or the words that were sent. They decide what a ref holds: a label
            under `markdown`, text of the page under `ocr` and `locate(…)`.
    """
    raw = without_leaked_tokens(raw)
    refs_hold_text = names_text(prompt)
    if _TAG.search(raw) is None and is_grounded(prompt):
        drafts = _parse_bare(raw, refs_hold_text=refs_hold_text)
    else:
        drafts = _Parser(raw, refs_hold_text=refs_hold_text).run()
    if refs_hold_text:
        return _finish_named(drafts)
    blocks = (draft.finish(refs_hold_text=False) for draft in drafts)
    return tuple(block for block in blocks if block is not None)


def names_text(prompt: str) -> bool:
    """Tell whether a ref in the answer holds text of the page rather than a label."""
    words = prompt_text(prompt)
    return is_grounded(prompt) and words != prompt_text("markdown")


def has_tags(blocks: tuple[Block, ...]) -> bool:
    """Tell whether any block came with a tag."""
    return any(block.label or block.boxes or block.flags for block in blocks)


def without_leaked_tokens(raw: str) -> str:
    """Remove the tokenizer's own tokens (`<｜end▁of▁sentence｜>`), wherever they leaked to."""
    return _LEAKED.sub("", raw) if "<｜" in raw else raw


def outer_tables(text: str) -> list[tuple[int, int]]:
    """Give start and end of each HTML table that is closed and not inside another one."""
    if "</table" not in text.lower():
        return []
    opened: list[int] = []
    spans: list[tuple[int, int]] = []
    for tag in _TABLE.finditer(text):
        if tag[0][1] != "/":
            opened.append(tag.start())
        elif opened:
            start = opened.pop()
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, tag.end()))
    return spans


# --- boxes --------------------------------------------------------------------------------


class _Flagged:
    """Boxes, and what was wrong with them.

    The defaults are of the class: an adversarial answer makes a hundred thousand of these, and
    most of them need no box, or no flag.
    """

    boxes: list[Box] | None = None
    flags: tuple[str, ...] = ()

    def flag(self, name: str) -> None:
        if name not in self.flags:
            self.flags += (name,)


class _Det(_Flagged):
    """What the inside of a det tag says."""

    label: str | None = None
    rest = ""


def _read_det(payload: str) -> _Det:
    """Read `[[…], […]]`, also with a label before it, with junk in it, and with text after it."""
    det = _Det()
    if len(payload) > _PAYLOAD_MAX:
        det = _read_det(payload[:_PAYLOAD_MAX])
        det.flag("bad_box")
        det.rest += payload[_PAYLOAD_MAX:].lstrip("0123456789[], \t\n-")
        return det
    if _read_sound_boxes(payload, det):
        return det
    if "[" in payload:
        _read_groups(payload, det)
    else:
        _read_det_without_brackets(payload, det)
    return det


def _read_sound_boxes(payload: str, det: _Det) -> bool:
    """Read what is written as it should be, which is nearly always all there is."""
    if one := _ONE_BOX.fullmatch(payload):
        x1, y1, x2, y2 = map(int, one.groups())
        _add_box(x1, y1, x2, y2, det)
        return True
    if not _SOUND_BOXES.fullmatch(payload):
        return False
    numbers = map(int, _INTEGER.findall(payload))
    for x1, y1, x2, y2 in zip(numbers, numbers, numbers, numbers, strict=True):
        _add_box(x1, y1, x2, y2, det)
    return True


def _read_groups(payload: str, det: _Det) -> None:
    at = payload.index("[")
    before = payload[:at].strip().rstrip(":")
    if _any_label(before):
        det.label = _any_label(before)
    elif not _NO_TEXT.fullmatch(before):
        det.rest = before
    end = _group_end(payload, at)
    _read_boxes(payload[at:end], det)
    if end == len(payload):
        return
    # More groups, each perhaps with its label, as long as they are boxes: all else is text.
    while following := _LABEL_BEFORE_GROUP.match(payload, end):
        group_end = _group_end(payload, following.end())
        found = _Det()
        _read_boxes(payload[following.end() : group_end], found)
        if not found.boxes:
            break
        det.boxes = [*(det.boxes or ()), *found.boxes]
        for name in found.flags:
            det.flag(name)
        end = group_end
    after = payload[end:].lstrip("] \t,")
    if not _NO_TEXT.fullmatch(after):
        det.rest = f"{det.rest}\n{after}" if det.rest else after


def _read_det_without_brackets(payload: str, det: _Det) -> None:
    word = payload.strip()
    if not word:
        det.flag("no_box")
    elif _any_label(word):
        det.label = _any_label(word)
        det.flag("no_box")
    elif _is_prose(word):
        det.rest = payload
        det.flag("bad_box")
    else:
        _read_group(word, det)


def _group_end(payload: str, start: int) -> int:
    """Find the end of the bracket group that opens at `start`."""
    end = _balanced_end(payload, start)
    group = payload[start:end]
    if end and not ("\n" in group and _is_prose(group)):
        return end
    # Not balanced: it ends with its line, or before words on that line, so that none are lost.
    line_end = payload.find("\n", start)
    line_end = len(payload) if line_end < 0 else line_end
    numbers = _BARE_GROUP.match(payload, start, line_end)
    numbers_end = numbers.end() if numbers else start
    return numbers_end if _is_prose(payload[numbers_end:line_end]) else line_end


def _is_prose(text: str) -> bool:
    """Tell whether there is more than junk: text that a tag swallowed when its end got lost."""
    return len(text) > _JUNK_MAX and sum(map(str.isalpha, text)) > _JUNK_MAX


def _has_more_letters(text: str) -> bool:
    """Tell words with a number in them from coordinates with junk among them."""
    return sum(map(str.isalpha, text)) > 2 * sum(map(str.isdigit, text))


def _balanced_end(text: str, start: int) -> int:
    """Find where the bracket that opens at `start` closes; 0 where it does not."""
    if shallow := _SHALLOW_GROUP.match(text, start):  # nearly always, and faster
        return shallow.end()
    depth = 0
    for bracket in _BRACKET.finditer(text, start):
        depth += 1 if bracket[0] == "[" else -1
        if depth == 0:
            return bracket.end()
    return 0


def _read_boxes(group: str, det: _Det) -> None:
    for inner in _INNER_GROUP.finditer(group):
        # "[[" gives an empty inner part only where a bracket was doubled.
        if inner[1].strip() or group.strip("[] \t\n") == "":
            _read_group(inner[1], det)


def _read_group(inner: str, det: _Det) -> None:
    if sound := _SOUND_GROUP.fullmatch(inner):
        x1, y1, x2, y2 = map(int, sound.groups())
        _add_box(x1, y1, x2, y2, det)
        return
    parts = inner.split(",") if "," in inner else inner.split()
    numbers: list[int] = []
    repaired = False
    for part in parts:
        word = part.strip()
        if (
            len(word) <= 4 and word.isascii() and word.isdigit()
        ):  # faster than the expressions below
            numbers.append(int(word))
            continue
        found = _NUMBER.findall(_LONE_DASH.sub(" ", part)) if len(part) <= 24 else []
        junk = _NUMBER.sub("", part).strip()
        if len(found) > 1 or len(junk) > _JUNK_MAX or (not found and any(map(str.isdigit, junk))):
            det.flag("bad_box")
            return
        repaired = repaired or bool(junk)
        numbers += map(int, found)
    if len(numbers) != 4:
        det.flag("no_box" if not inner.strip() else "bad_box")
        return
    if repaired:
        det.flag("repaired_box")
    x1, y1, x2, y2 = numbers
    _add_box(x1, y1, x2, y2, det)


def _add_box(x1: int, y1: int, x2: int, y2: int, det: _Det) -> None:
    if not (0 <= x1 < x2 <= COORDINATE_MAX and 0 <= y1 < y2 <= COORDINATE_MAX):
        x1, y1, x2, y2 = _repaired(x1, y1, x2, y2, det)
    if det.boxes is None:
        det.boxes = [Box(x1, y1, x2, y2)]
    else:
        det.boxes.append(Box(x1, y1, x2, y2))


def _repaired(x1: int, y1: int, x2: int, y2: int, det: _Det) -> tuple[int, int, int, int]:
    """Give the corners inside the page and in order, and flag what was not."""
    given = (x1, y1, x2, y2)
    x1, y1, x2, y2 = (min(max(number, 0), COORDINATE_MAX) for number in given)
    if (x1, y1, x2, y2) != given:
        det.flag("clamped_box")
    if x1 > x2 or y1 > y2:
        det.flag("reversed_box")
        x1, x2, y1, y2 = min(x1, x2), max(x1, x2), min(y1, y2), max(y1, y2)
    if x1 == x2 or y1 == y2:
        det.flag("empty_box")
    return x1, y1, x2, y2


# --- blocks -------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _known_label(word: str) -> str | None:
    """Give the known label that `word` is, in lower case with underscores; else None."""
    known = word.strip().lower().replace("-", "_").replace(" ", "_") if len(word) <= 64 else ""
    return known if known in LABELS else None


@lru_cache(maxsize=256)
def _any_label(word: str) -> str | None:
    """Give the label that `word` is or might be; None where it is text."""
    known = _known_label(word)
    return known or (word.strip() if _LABEL.fullmatch(word.strip()) else None)


class _Draft(_Flagged):
    """A block while its answer is being read; `ref` may yet turn out to be text."""

    label: str | None = None
    body: list[str] | None = None
    has_text = False
    has_det = False
    det_line = False
    """True from a det tag to the end of its line."""

    def __init__(self, *, tagged: bool = False, ref: str | None = None) -> None:
        self.tagged = tagged
        self.ref = ref

    def add(self, text: str) -> None:
        if text:
            if self.body is None:
                self.body = [text]
            else:
                self.body.append(text)
            if not self.has_text and not text.isspace():
                self.has_text = True
            if self.det_line and "\n" in text:
                self.det_line = False

    def pop(self) -> None:
        """Take back what was added last."""
        self.body = (self.body or [])[:-1]
        self.has_text = any(not part.isspace() for part in self.body)

    def take(self, det: _Det) -> None:
        self.has_det = self.det_line = True
        self.label = self.label or det.label
        if det.boxes:
            if self.boxes is None:
                self.boxes = det.boxes
            else:
                self.boxes += det.boxes
        for name in det.flags:
            self.flag(name)
        if det.rest:
            self.add(det.rest)

    @property
    def awaits_det(self) -> bool:
        """Whether a det tag that comes now belongs to this block.

        A second one on the same line is one more box; on a new line it is another block.
        """
        return self.tagged and not self.has_text and (self.det_line or not self.has_det)

    def finish(self, *, refs_hold_text: bool) -> Block | None:
        label = self.label
        text = _trim("".join(self.body), after_tag=self.tagged) if self.body else ""
        if self.ref and (ref := self.ref.strip()):
            ref_label = None if refs_hold_text else _any_label(ref)
            if ref_label is None:
                text = f"{ref}\n{text}" if text else ref
                label = label or ("text" if refs_hold_text else None)
            else:
                label = ref_label
        if "<|" in text:
            text = _without_spliced_tags(text)
        if not (label or self.boxes or text or self.flags):
            return None
        boxes = tuple(self.boxes) if self.boxes else ()
        return Block(label, text, boxes, self.flags)


def _without_spliced_tags(text: str) -> str:
    """Remove tags that came together when what stood within them was removed."""
    for _ in range(_SPLICES_MAX):
        if (spliced := _TAG.sub("", text)) == text:
            break
        text = spliced.strip()
    return text


def _trim(text: str, *, after_tag: bool) -> str:
    """Take the blank lines around it away; the indentation of its first line stays."""
    text = text.rstrip()
    if not text or not text[0].isspace():
        return text
    margin = len(text) - len(text.lstrip())
    start = text.rfind("\n", 0, margin) + 1
    return text[start:] if start or not after_tag else text[margin:]


def _finish_named(drafts: Iterator[_Draft]) -> tuple[Block, ...]:
    """Finish drafts whose refs hold text, unless they turn out to hold labels all the same."""
    # A draft without a ref is finished at once: as a block it takes less room.
    started: list[_Draft | Block | None] = []
    named = known = 0
    known_with_text = False
    for draft in drafts:
        if draft.ref is None or not draft.ref.strip():
            started.append(draft.finish(refs_hold_text=True))
            continue
        started.append(draft)
        named += 1
        if _known_label(draft.ref):
            known += 1
            known_with_text = known_with_text or draft.has_text
    refs_hold_text = not (2 * known >= named and known_with_text)
    blocks = (
        start.finish(refs_hold_text=refs_hold_text) if isinstance(start, _Draft) else start
        for start in started
    )
    return tuple(block for block in blocks if block is not None)


class _Parser:
    """One pass over the tags of an answer."""

    def __init__(self, raw: str, *, refs_hold_text: bool) -> None:
        self.raw = raw
        self.refs_hold_text = refs_hold_text
        self.tags: list[tuple[str | None, int, int]] = [
            (tag[1], tag.start(), tag.end()) for tag in _TAG.finditer(raw)
        ]
        self.tags.append((None, len(raw), len(raw)))  # where the answer ends
        self.tables = outer_tables(raw)
        self.draft = _Draft()
        self.at = 0

    def run(self) -> Iterator[_Draft]:
        """Give each draft when it is complete, so that few of them are there at once."""
        raw, tags, draft = self.raw, self.tags, self.draft
        tables = iter(self.tables)
        nowhere = (len(raw) + 1, len(raw) + 1)
        table = next(tables, nowhere)
        index = 0
        while True:
            kind, start, end = tags[index]
            if kind is None:
                break
            while table[1] <= start:
                table = next(tables, nowhere)
            before = raw[self.at : start]
            if before:
                draft.add(before)
            self.at = end
            if table[0] <= start:
                index = self._in_table(kind, index)
            elif kind == "ref":
                index = self._ref(index)
            elif kind == "det":
                index = self._det(index)
            else:
                index = self._stray_closer(kind, index, before)
            if self.draft is not draft:
                yield draft
                draft = self.draft
        draft.add(_CUT_TAG.sub("", raw[self.at :]))
        yield draft

    def _open(self) -> _Draft:
        self.draft = _Draft(tagged=True)
        return self.draft

    def _ref(self, index: int) -> int:
        kind, start, end = self.tags[index + 1]
        content = self.raw[self.at : start]
        if kind == "/ref":
            self._open().ref = content
            self.at = end
            self._boxes_without_det(index + 1)
            return index + 2
        if kind == "det":
            self._open().ref = _without_debris(content)
            self.at = start
            return index + 1
        if not content or content.isspace():
            return index + 1
        # No closer. A first line that is a label is one; all else is text.
        line, newline, _ = content.partition("\n")
        word = _without_debris(line).strip()
        if kind is None and not newline:
            word = _CUT_TAG.sub("", word)
            cut = any(label.startswith(word) for label in LABELS)
        else:
            cut = False
        if cut and not self.refs_hold_text:
            self.at = start
            return index + 1
        draft = self._open()
        draft.flag("unclosed_ref")
        if self.refs_hold_text or (_any_label if newline else _known_label)(word):
            draft.ref = word
            self.at += len(line) + len(newline)
        return index + 1

    def _boxes_without_det(self, index: int) -> None:
        """Take `[[…]]` that follows a ref where both det tags got lost."""
        kind, start, _ = self.tags[index + 1]
        if kind in {"/det", "det"}:
            return
        if found := _BOXES_AT_START.match(self.raw, self.at, start):
            det = _read_det(found[1])
            if det.boxes:
                self.draft.take(det)
                self.at = found.end()

    def _det(self, index: int) -> int:
        kind, start, end = self.tags[index + 1]
        if not self.draft.awaits_det:
            self._open()
        if kind == "/det":
            self.draft.take(_read_det(self.raw[self.at : start]))
            self.at = end
            return index + 2
        # No closer: the payload ends with its brackets, or else with what can be part of it.
        content = self.raw[self.at : start]
        opening = _LABEL_BEFORE_GROUP.match(content) if "[" in content else None
        self.draft.flag("unclosed_det")
        if opening is None or (
            # Brackets on a later line are text, unless they hold nothing but numbers.
            "\n" in opening[0] and not _BOXES_AT_START.match(content, opening.end())
        ):
            return index + 1
        line_end = content.find("\n", opening.end())
        line = content if line_end < 0 else content[:line_end]
        stop = _balanced_end(line, opening.end()) if "]" in line else 0
        payload = content[:stop]
        if not stop:
            stop = _BARE_GROUP.match(line, opening.end()).end()  # type: ignore[union-attr]
            # Cut off in its last number, which may lack digits.
            payload = "" if kind is None and stop == len(content) else content[:stop]
        if len(payload) < _SHORTEST_BOX:
            self.draft.has_det = self.draft.det_line = True
            self.draft.flag("bad_box")
        else:
            det = _read_det(payload)
            group = payload[opening.end() :]
            if not det.boxes and _is_prose(group) and _has_more_letters(group):
                det.rest = group  # brackets of the text, not of a box
            self.draft.take(det)
        self.at += stop
        if debris := _CLOSER_DEBRIS.match(self.raw, self.at, start):
            self.at = debris.end()
        return index + 1

    def _stray_closer(self, kind: str, index: int, before: str) -> int:
        """Take a closer whose opener is missing: what stands before it may be its content."""
        draft = self.draft
        if not before:
            return index + 1
        if kind == "/det":
            found = _BOXES_AT_END.match(before) if len(before) < 1000 else None
            det = _read_det(found[1]) if found else None
            if det and det.boxes and draft.tagged and not draft.has_det:
                draft.pop()
                draft.take(det)
        elif not self.refs_hold_text and self.tags[index + 1][0] == "det":
            tail = before[before.rfind("\n") + 1 :][-80:].split()
            word = _OPENER_DEBRIS.sub("", tail[-1]) if tail else ""
            if _known_label(word):
                draft.pop()
                draft.add(before[: before.rfind(tail[-1])])
                self._open().ref = word
        return index + 1

    def _in_table(self, kind: str, index: int) -> int:
        """Keep a table in one block: tags inside it go, text inside them stays."""
        following, start, end = self.tags[index + 1]
        content = self.raw[self.at : start]
        if kind == "det" and following == "/det":
            self.draft.add(_read_det(content).rest)
            self.at = end
            return index + 2
        named = kind == "ref" and following == "/ref" and not self.refs_hold_text
        if named and _known_label(content):
            self.at = end
            return index + 2
        return index + 1


def _without_debris(content: str) -> str:
    """Take what is left of a damaged closing tag off the end of a ref."""
    return content[:-40] + _REF_DEBRIS.sub("", content[-40:]) if "ref" in content else content


def _parse_bare(raw: str, *, refs_hold_text: bool) -> Iterator[_Draft]:
    """Read `label[[x1, y1, x2, y2]]`: what is left of the tags where a server stripped them."""
    draft = _Draft()
    if "[[" not in raw:
        draft.add(_CUT_TAG.sub("", raw))
        yield draft
        return
    tables = outer_tables(raw)
    at = table = 0
    for start, end, ref, payload in _bare_tags(raw, refs_hold_text=refs_hold_text):
        while table < len(tables) and tables[table][1] <= start:
            table += 1
        inside = table < len(tables) and tables[table][0] <= start
        det = _read_det(payload)
        if inside or not det.boxes or det.rest:
            continue
        draft.add(raw[at:start])
        yield draft
        draft = _Draft(tagged=True, ref=ref)
        draft.take(det)
        draft.flag("bare_tag")
        at = end
    draft.add(raw[at:])
    yield draft


def _bare_tags(raw: str, *, refs_hold_text: bool) -> Iterator[tuple[int, int, str, str]]:
    """Give start, end, ref and payload of what may be a tag without its tokens."""
    if not refs_hold_text:
        for found in _BARE_LABELLED.finditer(raw):
            if _any_label(found[1]):
                yield found.start(), found.end(), found[1], found[2]
        return
    at = 0
    for line in raw.splitlines(keepends=True):
        stripped = line.rstrip()
        start = max(stripped.rfind("[["), 0)
        while start > 0 and stripped[start - 1] == "[":
            start -= 1
        if stripped.endswith("]]") and _BARE_TEXT.match(stripped, start):
            yield at, at + len(stripped), stripped[:start], stripped[start:]
        at += len(line)
