from __future__ import annotations

import base64
import io
import json
import struct
import zlib

import pytest
from PIL import Image

from deepseek_ocr_loaders.engines.embedded.request import (
    MAX_PIXELS,
    Ask,
    Refusal,
    open_picture,
    parse,
)


def picture(kind: str = "PNG", mode: str = "RGB", color: object = "white") -> bytes:
    data = io.BytesIO()
    Image.new(mode, (8, 4), color).save(data, kind)
    return data.getvalue()


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def image_part(address: object = None) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": address or url(picture())}}


def text_part(text: str = "Free OCR.") -> dict[str, object]:
    return {"type": "text", "text": text}


def user(*parts: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": list(parts)}]


def read(**fields: object) -> Ask:
    body = {"model": "m", "messages": user(image_part(), text_part()), **fields}
    return parse(json.dumps(body).encode(), model="m")


def test_reads_the_same_request_as_vllm() -> None:
    ask = read(
        temperature=0,
        skip_special_tokens=False,
        max_tokens=7000,
        seed=1,
        vllm_xargs={"ngram_size": 30, "window_size": 90, "whitelist_token_ids": [128821, 128822]},
        repetition_detection={"max_pattern_size": 64, "min_pattern_size": 1, "min_count": 20},
    )
    assert ask == Ask(picture(), "Free OCR.", max_tokens=7000, skip_special_tokens=False)


def test_special_tokens_are_skipped_unless_told_otherwise_as_in_vllm() -> None:
    assert read().skip_special_tokens
    assert read(skip_special_tokens=True).skip_special_tokens


def test_the_prompt_may_stand_before_the_picture() -> None:
    assert read(messages=user(text_part("a"), image_part())).prompt == "a"


def test_max_completion_tokens_wins_and_is_bounded_by_the_context() -> None:
    assert read(max_tokens=5, max_completion_tokens=9).max_tokens == 9
    assert read(max_tokens=10**9).max_tokens == 8192
    assert read().max_tokens is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": user(image_part(), image_part(), text_part())}, "At most 1 image"),
        ({"messages": user(text_part())}, "one image_url part"),
        ({"messages": [{"role": "user", "content": url(picture())}]}, "one image_url part"),
        ({"messages": user(text_part(url(picture())))}, "one image_url part"),
        ({"messages": user(image_part("http://127.0.0.1:1/a.png"))}, "fetches nothing"),
        ({"messages": user(image_part("https://example.org/a.png"))}, "fetches nothing"),
        ({"messages": user(image_part("file:///etc/hostname"))}, "fetches nothing"),
        ({"messages": user(image_part("/etc/hostname"))}, "fetches nothing"),
        ({"messages": user(image_part("data:image/png;base64"))}, "base64"),
        ({"messages": user(image_part("data:image/png,%89PNG"))}, "base64"),
        ({"messages": user(image_part("data:image/png;base64,@@@"))}, "Failed to load image"),
        ({"messages": user({"type": "image_url", "image_url": "data:,"})}, "Unknown part"),
        ({"messages": user({"type": "image_url"})}, "Unknown part"),
        ({"messages": user({"type": "text", "text": 3})}, "Unknown part"),
        ({"messages": user({"type": "video_url", "video_url": {"url": "x"}})}, "Unknown part"),
        ({"messages": user("words")}, "Unknown part"),
        ({"messages": []}, "messages"),
        ({"messages": "Free OCR."}, "messages"),
        ({"messages": ["Free OCR."]}, "role"),
        ({"messages": [{"content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": 7}]}, "content"),
        ({"n": 2}, "n must be 1"),
        ({"n": 0}, "n must be 1"),
        ({"stream": True}, "stream"),
        ({"max_tokens": 0}, "at least 1, got 0"),
        ({"max_tokens": -5}, "at least 1"),
        ({"max_tokens": "100"}, "integer"),
        ({"max_tokens": True}, "integer"),
        ({"temperature": -1}, "non-negative"),
        ({"temperature": "hot"}, "number"),
    ],
)
def test_refuses_with_400_and_says_why(fields: dict[str, object], words: str) -> None:
    with pytest.raises(Refusal, match=words) as caught:
        read(**fields)
    error = caught.value.body()["error"]
    assert error["code"] == caught.value.status == 400
    assert error["type"] == "BadRequestError"
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b"[1]", b'"x"', b"\xff\xfe", b"[" * 90000]
)
def test_refuses_what_is_no_json_object(body: bytes) -> None:
    with pytest.raises(Refusal):
        parse(body, model="m")


def test_refuses_another_model_with_404_and_names_the_right_one() -> None:
    with pytest.raises(Refusal, match=r"`other` does not exist.*m") as caught:
        read(model="other")
    assert caught.value.body()["error"] == {
        "message": str(caught.value),
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


def test_a_refusal_does_not_repeat_the_picture() -> None:
    with pytest.raises(Refusal) as caught:
        read(messages=user(image_part(url(b"x" * 5000) + "@")))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_opens_every_usual_kind_of_picture(kind: str) -> None:
    image = open_picture(picture(kind))
    assert (image.mode, image.size) == ("RGB", (8, 4))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
def test_gives_rgb_for_every_mode(mode: str) -> None:
    kind = "TIFF" if mode in {"CMYK", "F"} else "PNG"
    assert (
        open_picture(picture(kind, mode, 0 if mode in {"1", "L", "P", "I;16", "F"} else None)).mode
        == "RGB"
    )


def test_what_is_transparent_is_white() -> None:
    assert open_picture(picture("PNG", "RGBA", (0, 0, 0, 0))).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("orientation", [3, 5, 6, 8])
def test_fault_24_the_camera_s_orientation_is_applied_once(orientation: int) -> None:
    image = Image.new("RGB", (60, 20), "white")
    exif = image.getexif()
    exif[0x0112] = orientation
    data = io.BytesIO()
    image.save(data, "JPEG", exif=exif)
    assert open_picture(data.getvalue()).size == ((60, 20) if orientation == 3 else (20, 60))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"%PDF-1.7\n",
        b"<svg/>",
        picture()[:40],
        picture("JPEG")[:200],
        b"\x89PNG\r\n\x1a\n",
    ],
)
def test_refuses_a_broken_picture(data: bytes) -> None:
    with pytest.raises(Refusal, match="Failed to load image") as caught:
        open_picture(data)
    assert caught.value.status == 400


@pytest.mark.parametrize("side", [8100, 20000])
def test_fault_16_a_bomb_is_refused_by_its_header(side: int) -> None:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    assert side * side > MAX_PIXELS
    with pytest.raises(Refusal, match="pixels") as caught:
        open_picture(bomb)
    assert caught.value.status == 400
