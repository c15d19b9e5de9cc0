"""The prompts that DeepSeek-OCR was trained on; words added to them break them."""

from __future__ import annotations

from deepseek_ocr_loaders.errors import ConfigurationError

__all__ = ["PROMPTS", "is_grounded", "locate", "prompt_text"]

PROMPTS = {
    "markdown": "<|grounding|>Convert the document to markdown.",
    "ocr": "<|grounding|>OCR this image.",
    "free": "Free OCR.",
    "figure": "Parse the figure.",
    "describe": "Describe this image in detail.",
}
"""By short name, as the model's own README gives them."""

_RESERVED = ("<image>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")


def locate(text: str) -> str:
    """Give the prompt that asks for the place of `text` on the page.

    Args:
        text: What to look for, as it stands on the page; without the model's own tags.

    Raises:
        ConfigurationError: The text is empty or contains a tag of the model.
    """
    if not text.strip():
        msg = "locate() needs the text to look for"
        raise ConfigurationError(msg)
    if "<|" in text:
        msg = f"locate() cannot look for a text that contains the model's own tags: {text[:80]!r}"
        raise ConfigurationError(msg)
    return f"Locate <|ref|>{text}<|/ref|> in the image."


def prompt_text(prompt: str) -> str:
    """Give the words that are sent for a short name, or a prompt of the user's own as it is.

    Raises:
        ConfigurationError: The prompt is empty, or holds a token that the server itself sets.
    """
    text = PROMPTS.get(prompt, prompt)
    if not text.strip():
        msg = "prompt is empty: use one of " + ", ".join(PROMPTS) + ", or a text of your own"
        raise ConfigurationError(msg)
    for token in _RESERVED:
        if token in text:
            msg = f"prompt must not contain {token!r}: the server puts it in by itself"
            raise ConfigurationError(msg)
    return text


def is_grounded(prompt: str) -> bool:
    """Tell whether the model is expected to answer with boxes."""
    text = PROMPTS.get(prompt, prompt)
    return "<|grounding|>" in text or text.startswith("Locate <|ref|>")
