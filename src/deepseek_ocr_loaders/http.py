"""What all HTTP of this package has in common: certificates read once, no proxy for loopback."""

from __future__ import annotations

import ipaddress
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

__all__ = ["is_loopback", "tls"]


@cache
def tls() -> ssl.SSLContext:
    """Give the certificates to trust; loading them takes 30 to 90 ms, so all clients share them."""
    import httpx2  # noqa: PLC0415 - 0.2 s that a managed server does not need

    return httpx2.create_ssl_context()


def is_loopback(url: str) -> bool:
    """Say whether an address is of this machine, where a proxy has no business."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
