"""Short questions to a server on this machine, with the standard library only.

The supervisor must start at once, and an HTTP library alone would double its start.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Model", "health", "models", "version"]


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of `/v1/models`.

    Attributes:
        id: The name to send.
        owned_by: Who serves it.
        reader: What really reads; the id where the server does not say.
        max_model_len: Tokens of prompt and answer together.
        max_num_seqs: Pages that the server works on at once.
    """

    id: str
    owned_by: str
    reader: str
    max_model_len: int | None
    max_num_seqs: int | None

    @classmethod
    def parse(cls, entry: Any) -> Model | None:
        """Read an entry; None where it is none."""
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            return None

        def number(name: str) -> int | None:
            value = entry.get(name)
            if isinstance(value, bool) or not isinstance(value, int):
                return None
            return value if value > 0 else None

        owner, reader = entry.get("owned_by"), entry.get("reader")
        return cls(
            id=entry["id"],
            owned_by=owner if isinstance(owner, str) else "",
            reader=reader if isinstance(reader, str) and reader else entry["id"],
            max_model_len=number("max_model_len"),
            max_num_seqs=number("max_num_seqs"),
        )

    @classmethod
    def parse_all(cls, body: Any) -> list[Model]:
        """Read the body of `/v1/models`; what is no entry is left out."""
        entries = body.get("data") if isinstance(body, dict) else None
        found = map(cls.parse, entries) if isinstance(entries, list) else ()
        return [model for model in found if model is not None]


def _get(port: int, path: str, key: str, timeout: float) -> tuple[int, bytes]:
    # http.client knows no proxy variables, which would lead a loopback address astray.
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read(1_000_000)
    finally:
        connection.close()


def health(port: int, *, timeout: float = 3.0) -> int | str:
    """Ask `/health`: the status, or `refused` (nobody listens) or `silent` (no reply in time)."""
    try:
        return _get(port, "/health", "", timeout)[0]
    except (ConnectionRefusedError, ConnectionResetError):
        return "refused"
    except (OSError, http.client.HTTPException):
        return "silent"


def models(port: int, key: str, *, timeout: float = 5.0) -> tuple[int, list[Model]]:
    """Ask `/v1/models`: the status (0 for no reply) and what is served."""
    try:
        status, body = _get(port, "/v1/models", key, timeout)
        return status, Model.parse_all(json.loads(body)) if status == 200 else []
    except (OSError, http.client.HTTPException, ValueError):
        return 0, []


def version(port: int, key: str, *, timeout: float = 5.0) -> str | None:
    """Ask `/version`; None where the server does not say."""
    try:
        status, body = _get(port, "/version", key, timeout)
        value = json.loads(body).get("version") if status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return None
    return value if isinstance(value, str) else None
