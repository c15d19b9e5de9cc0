"""The body of a chat request → what is asked for; refuses what vLLM refuses, in its words."""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from dataclasses import dataclass, field
from typing import Any

from PIL import Image, ImageOps

from deepseek_ocr_loaders.engines.embedded.tokens import MAX_MODEL_LEN

__all__ = ["MAX_BODY_BYTES", "MAX_PIXELS", "Ask", "Refusal", "open_picture", "parse"]

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A request is no longer than this; a page at the size that the model looks at has about 1 MB."""

MAX_PIXELS = 64_000_000
"""A picture has no more pixels than this; an A4 page at 600 dpi has 35 million."""


class Refusal(Exception):  # noqa: N818 - it is an answer, not a defect
    """A request that is answered with an error of vLLM's shape.

    Args:
        message: What is wrong with it.
        status: The HTTP status.
        kind: vLLM's word for it.
        param: The field that is wrong, where it is one.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        """Give the JSON body of the reply."""
        error = {
            "message": str(self),
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        return {"error": error}


@dataclass(frozen=True, slots=True)
class Ask:
    """One page to read.

    Attributes:
        picture: The encoded picture.
        prompt: The words that came with it.
        max_tokens: Where the answer is cut; None leaves it to the context.
        skip_special_tokens: Whether tags are taken out of the answer; vLLM's default is true.
    """

    picture: bytes = field(repr=False)
    prompt: str
    max_tokens: int | None
    skip_special_tokens: bool


def parse(body: bytes, *, model: str) -> Ask:
    """Read the body of a request.

    Args:
        body: JSON, as for vLLM's `/v1/chat/completions`. Fields that steer a language model
            (`temperature`, `vllm_xargs`, `repetition_detection`, `seed`, …) change nothing here.
        model: The id that is served.

    Raises:
        Refusal: It cannot be answered.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        msg = f"JSON decode error: {error}"
        raise Refusal(msg) from None
    if not isinstance(data, dict):
        msg = "the body must be a JSON object"
        raise Refusal(msg)
    asked_model = data.get("model")
    if asked_model is not None and asked_model != model:
        msg = f"The model `{asked_model}` does not exist. Valid aliases: {model}."
        raise Refusal(msg, status=404, kind="NotFoundError", param="model")
    if data.get("stream"):
        msg = "this engine gives the page in one piece: stream must be false"
        raise Refusal(msg, param="stream")
    if data.get("n") not in (None, 1):
        msg = f"n must be 1 when using greedy sampling, got {data['n']!r}."
        raise Refusal(msg, param="n")
    _check_temperature(data.get("temperature"))
    prompt, addresses = _contents(data.get("messages"))
    return Ask(
        picture=_picture_bytes(addresses),
        prompt=prompt,
        max_tokens=_max_tokens(data),
        skip_special_tokens=data.get("skip_special_tokens", True) is not False,
    )


def _check_temperature(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        msg = f"temperature must be a number, got {value!r}."
        raise Refusal(msg, param="temperature")
    if value < 0:
        msg = f"temperature must be non-negative, got {value}."
        raise Refusal(msg, param="temperature")


def _max_tokens(data: dict[str, Any]) -> int | None:
    name = "max_tokens" if data.get("max_completion_tokens") is None else "max_completion_tokens"
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} must be an integer, got {value!r}."
        raise Refusal(msg, param=name)
    if value < 1:
        msg = f"{name} must be at least 1, got {value}."
        raise Refusal(msg, param=name)
    return min(value, MAX_MODEL_LEN)


def _contents(messages: object) -> tuple[str, list[str]]:
    """Give the words and the picture addresses of all messages, each in order."""
    if not isinstance(messages, list) or not messages:
        msg = "messages must be a list of at least one message"
        raise Refusal(msg, param="messages")
    words: list[str] = []
    addresses: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            msg = "each message must be an object with a role"
            raise Refusal(msg, param="messages")
        content = message.get("content")
        if isinstance(content, str):
            words.append(content)
        elif isinstance(content, list):
            for part in content:
                _add_part(part, words, addresses)
        elif content is not None:
            msg = "content must be a string or a list of parts"
            raise Refusal(msg, param="messages")
    return "\n".join(words), addresses


def _add_part(part: object, words: list[str], addresses: list[str]) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind == "text" and isinstance(part.get("text"), str):
        words.append(part["text"])
        return
    if isinstance(part, dict) and kind == "image_url":
        place = part.get("image_url")
        address = place.get("url") if isinstance(place, dict) else None
        if isinstance(address, str):
            addresses.append(address)
            return
    msg = f"Unknown part type: {kind!r}; parts are text with text, and image_url with url"
    raise Refusal(msg, param="messages")


def _picture_bytes(addresses: list[str]) -> bytes:
    if len(addresses) > 1:
        msg = "At most 1 image(s) may be provided in one prompt."
        raise Refusal(msg, param="image")
    if not addresses:
        msg = "this engine only reads pictures: add one image_url part with a data URL"
        raise Refusal(msg, param="image")
    address = addresses[0]
    if address[:5].lower() != "data:":
        # vLLM would fetch it; a server that reads other people's documents should not.
        msg = "The URL must be a data URL: this engine fetches nothing."
        raise Refusal(msg, param="image")
    head, comma, data = address.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        msg = "Only base64 data URLs are supported for now."
        raise Refusal(msg, param="image")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        msg = f"Failed to load image: {error}"
        raise Refusal(msg, param="image") from None


def open_picture(data: bytes) -> Image.Image:
    """Decode a picture to upright RGB on white, as vLLM does.

    Raises:
        Refusal: It is no picture, is broken, or has too many pixels.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            # Before anything is decoded: the header alone says how much memory it would take.
            if image.width * image.height <= MAX_PIXELS:
                image.load()
                return _on_white(ImageOps.exif_transpose(image))
            size = f"{image.width}x{image.height}"
    except Image.DecompressionBombError as error:
        raise Refusal(str(error), param="image") from None
    except Exception as error:  # noqa: BLE001 - decoders raise anything on hostile bytes
        msg = f"Failed to load image: {type(error).__name__}: {error}"
        raise Refusal(msg, param="image") from None
    msg = f"Image dimensions {size} exceed the maximum of {MAX_PIXELS} pixels."
    raise Refusal(msg, param="image")


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")
