# ruff: noqa: RUF001 - these are signs of maths, not letters that look like others
r"""Markdown, HTML and LaTeX → plain text that keeps every word and drops the markup.

Tables become lines with tabs between the cells. Maths becomes what can be written in a line:
`\frac{1}{3}` is `1/3`, `\leq` is `≤`, a command without a sign of its own keeps its name.
"""

from __future__ import annotations

import html
import re

from deepseek_ocr_loaders.markup import outer_tables
from deepseek_ocr_loaders.tables import html_to_rows

__all__ = ["math_spans", "to_plain_text"]

_DELIMITER = re.compile(r"\\\\|\\[()\[\]]")

_TAG = re.compile(
    r"</?(?:a|b|big|blockquote|center|code|del|div|em|font|h[1-6]|hr|i|img|ins|li|mark|ol|p|pre|s|"
    r"small|span|strike|strong|sub|sup|table|tbody|td|tfoot|th|thead|tr|u|ul)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")

_LINE_START = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?)", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n`]*$\n?", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,})$\n?", re.MULTILINE)
_PIPE_RULE = re.compile(r"^[ \t]*\|?[ \t:|-]*-{3}[ \t:|-]*\|[ \t:|-]*$\n?", re.MULTILINE)
_PIPE_ROW = re.compile(r"^[ \t]*\|(.*)\|[ \t]*$", re.MULTILINE)
_CELL_BORDER = re.compile(r"[ \t]*(?<!\\)\|[ \t]*")
_LINK = re.compile(r"(!?)\[([^\[\]\n]*)\]\(<?([^()<>\s]+)>?\)")
_STRONG = re.compile(r"(\*\*|__)(?=\S)([^*_\n]+)(?<=\S)\1")
_EMPHASIS = re.compile(r"(?<![\w*])\*(?=\S)([^*\n]+)(?<=\S)\*(?![\w*])")
_CODE = re.compile(r"(`{1,2})([^`\n]+)\1")
_ESCAPED = re.compile(r"\\([*_#|`~>])")

_FRACTION = re.compile(r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_ROOT = re.compile(r"\\sqrt\s*\{([^{}]*)\}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}(?:\{[clr|@ ]*\})?")
_COMMAND = re.compile(r"\\([A-Za-z]+)(\s?)|\\(.)", re.DOTALL)


def _words(listed: str) -> list[str]:
    return listed.split()


_SILENT = frozenset(
    _words("""
    bar big Big bigg Bigg bigl Bigl bigr Bigr bm boldsymbol displaystyle emph hat hbox label left
    limits mathbb mathbf mathcal mathfrak mathit mathop mathrm mathsf mathtt mbox mit nolimits
    operatorname overline pmb right rm scriptstyle tag text textbf textit textrm textsc textsf
    textstyle texttt textup tilde underline vec widehat widetilde
    """)
)
_PAIRS = _words("""
    alpha α beta β gamma γ delta δ epsilon ε varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι
    kappa κ lambda λ mu μ nu ν xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi φ varphi φ chi χ psi ψ
    omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Phi Φ Psi Ψ Omega Ω times × cdot ·
    div ÷ pm ± mp ∓ ast * star ⋆ circ ° bullet • leq ≤ le ≤ geq ≥ ge ≥ neq ≠ ne ≠ approx ≈ equiv ≡
    sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ in ∈ notin ∉
    ni ∋ cup ∪ cap ∩ setminus ∖ emptyset ∅ forall ∀ exists ∃ neg ¬ land ∧ wedge ∧ lor ∨ vee ∨ to →
    rightarrow → leftarrow ← Rightarrow ⇒ Leftarrow ⇐ leftrightarrow ↔ Leftrightarrow ⇔ mapsto ↦
    uparrow ↑ downarrow ↓ sum ∑ prod ∏ int ∫ oint ∮ partial ∂ nabla ∇ infty ∞ ldots … dots … cdots ⋯
    vdots ⋮ ddots ⋱ prime ′ angle ∠ perp ⊥ parallel ∥ mid | vert | lvert | rvert | Vert ‖ lVert ‖
    rVert ‖ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ degree ° hbar ℏ ell ℓ Re ℜ Im ℑ
    oplus ⊕ otimes ⊗ triangle △ square □ checkmark ✓ dagger † copyright © coloneqq := eqqcolon =:
""")
_SIGNS = dict(zip(_PAIRS[::2], _PAIRS[1::2], strict=True))


def to_plain_text(text: str) -> str:
    r"""Give the words of a piece of the model's markdown, without any markup.

    Args:
        text: Markdown with HTML tables and with maths in `\(…\)` and `\[…\]`.
    """
    pieces: list[str] = []
    at = 0
    for start, end in outer_tables(text):
        pieces += (_plain(text[at:start]).rstrip(), html_to_rows(text[start:end]))
        at = end
    rest = _plain(text[at:])
    pieces.append(rest.strip() if pieces else rest)
    return "\n".join(_math(piece) for piece in pieces if piece)


def math_spans(text: str) -> list[tuple[int, int, bool]]:
    r"""Give start, end and whether it is displayed of each `\(…\)` and `\[…\]`."""
    spans: list[tuple[int, int, bool]] = []
    opened: re.Match[str] | None = None
    for found in _DELIMITER.finditer(text):
        if found[0] in {r"\(", r"\["}:
            opened = found
        elif opened is not None and found[0] == {r"\(": r"\)", r"\[": r"\]"}[opened[0]]:
            spans.append((opened.start(), found.end(), opened[0] == r"\["))
            opened = None
    return spans


def _plain(text: str) -> str:
    """Take HTML and markdown away; maths stays as it is."""
    pieces: list[str] = []
    at = 0
    text = _FENCE.sub("", _RULE.sub("", _PIPE_RULE.sub("", text)))
    text = _PIPE_ROW.sub(lambda row: _CELL_BORDER.sub("\t", row[1].strip()), text)
    text = _LINE_START.sub("", text)
    for start, end, _ in math_spans(text):
        pieces += (_inline(text[at:start]), text[start:end])
        at = end
    pieces.append(_inline(text[at:]))
    return "".join(pieces)


def _inline(text: str) -> str:
    text = _TAG.sub("", _BREAK.sub("\n", text))
    text = _LINK.sub(lambda link: link[2] if link[1] else f"{link[2]} {link[3]}", text)
    text = _CODE.sub(r"\2", _EMPHASIS.sub(r"\1", _STRONG.sub(r"\2", text)))
    text = _ESCAPED.sub(r"\1", text)
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)


def _math(text: str) -> str:
    pieces: list[str] = []
    at = 0
    for start, end, _ in math_spans(text):
        pieces += (text[at:start], _formula(text[start + 2 : end - 2]).strip())
        at = end
    pieces.append(text[at:])
    return "".join(pieces)


def _formula(latex: str) -> str:
    latex = _ENVIRONMENT.sub("", latex)
    # From the inside out: what nests deeper than this keeps its words, in another order of signs.
    for _ in range(4):
        latex = _FRACTION.sub(lambda parts: f"{_group(parts[1])}/{_group(parts[2])}", latex)
        latex = _ROOT.sub(lambda parts: f"√{_group(parts[1])}", latex)
    latex = _COMMAND.sub(_command, latex).replace("~", " ").replace("&", " ")
    return re.sub(r"[ \t]+", " ", latex.translate(_BRACES))


def _group(part: str) -> str:
    part = part.strip()
    return part if re.fullmatch(r"\w+|\\[A-Za-z]+", part) else f"({part})"


# Braces that are printed (`\{`) wait as other characters until those that group are gone.
_BRACES = {ord("{"): None, ord("}"): None, 0xE000: "{", 0xE001: "}"}


def _command(found: re.Match[str]) -> str:
    name, space, sign = found.groups()
    if sign is not None:
        shown = {"{": "\ue000", "}": "\ue001", "\\": "\n", "!": "", "|": "‖"}
        return shown.get(sign, " " if sign in ",;: \n" else sign)
    if name in {"quad", "qquad"}:
        return " "
    if name in _SILENT:
        return ""
    if name in _SIGNS:
        return f"{_SIGNS[name]}{space}"
    return f"{name} "
