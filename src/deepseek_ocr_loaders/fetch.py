"""A file from an http(s) address, without letting the address reach into a private network.

A document that names its own address could otherwise read the cloud's metadata service or a
neighbour's printer. So every hop is resolved here, every address that it resolves to must be
public, and the connection goes to exactly the address that was checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from deepseek_ocr_loaders.errors import BlockedAddressError, DownloadError, SourceTooLargeError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from deepseek_ocr_loaders.settings import Settings

__all__ = ["fetch", "is_public", "without_secrets"]

_MOST_REDIRECTS = 5
_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def without_secrets(address: str) -> str:
    """Give an address without user name, password, query and fragment; a path as it is."""
    if "://" not in address:
        return address
    try:
        parts = urlsplit(address)
    except ValueError:
        return address.partition("://")[0] + "://"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def is_public(address: _Address) -> bool:
    """Tell whether an IP address is on the public internet, also where it wraps an IPv4 one."""
    if isinstance(address, ipaddress.IPv6Address):
        teredo = address.teredo
        wrapped = address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)
        if wrapped is None and address in _NAT64:
            wrapped = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(wrapped)
    return address.is_global and not address.is_multicast


def fetch(url: str, settings: Settings) -> tuple[bytes, str]:
    """Give the bytes at an http(s) address, and the file name in the address they came from.

    Raises:
        BlockedAddressError: It leads, itself or by redirect, to an address that is not public.
        SourceTooLargeError: It is larger than `max_download_bytes`.
        DownloadError: It cannot be had, or not within `download_timeout` seconds in all.
    """
    # A thread of its own, because the caller may be inside an event loop.
    with ThreadPoolExecutor(1, "deepseek-ocr-fetch") as pool:
        return pool.submit(asyncio.run, _fetch(url, settings)).result()


async def _fetch(url: str, settings: Settings) -> tuple[bytes, str]:
    label = without_secrets(url)
    try:
        # One limit for everything: limits per read would let a slow server go on for ever.
        async with asyncio.timeout(settings.download_timeout):
            return await _follow(url, settings, label)
    except TimeoutError:
        msg = f"{label} did not arrive within download_timeout={settings.download_timeout:g} s"
        raise DownloadError(msg, source=label) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        # Its text may hold the whole address; the kind of error is enough.
        msg = f"{label} could not be downloaded ({type(error).__name__}): is the address right?"
        raise DownloadError(msg, source=label) from None


async def _follow(url: str, settings: Settings, label: str) -> tuple[bytes, str]:
    first = _split(url, label)
    current = first
    for _ in range(_MOST_REDIRECTS + 1):
        body = await _get(current, first, settings, label)
        if isinstance(body, bytes):
            name = unquote(current.path).rpartition("/")[2]
            return body, name or unquote(first.path).rpartition("/")[2]
        following = _split(urljoin(urlunsplit(current), body), label)
        if current.scheme == "https" and following.scheme == "http":
            msg = f"{label} redirects from https to http, which is not followed"
            raise DownloadError(msg, source=label)
        current = following
    msg = f"{label} redirects more than {_MOST_REDIRECTS} times"
    raise DownloadError(msg, source=label)


def _split(url: str, label: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        msg = f"{label} leads to an address that is neither http:// nor https://, so it is not read"
        raise DownloadError(msg, source=label)
    return parts


async def _get(
    parts: SplitResult, first: SplitResult, settings: Settings, label: str
) -> bytes | str:
    """Give the body, or the target of the redirect."""
    host = parts.hostname or ""
    port = parts.port or _PORTS[parts.scheme]
    private = settings.allow_private_addresses
    # A proxy resolves names itself, so only what is written in the address can be checked.
    proxy = None if _is_local(host) or proxy_bypass(host) else getproxies().get(parts.scheme)
    target = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="")
    headers = {"accept-encoding": "identity", "user-agent": "deepseek-ocr-loaders"}
    extensions: dict[str, str] = {}
    if proxy is None:
        address = await _resolve(host, port, allow_private=private, label=label)
        headers["host"] = target.netloc
        extensions["sni_hostname"] = host
        target = target._replace(
            netloc=f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        )
    elif (literal := _literal(host)) is not None and not private:
        _check(literal, label)
    same_origin = (parts.scheme, host, port) == (
        first.scheme,
        first.hostname,
        first.port or _PORTS[first.scheme],
    )
    auth = (
        (unquote(first.username), unquote(first.password or ""))
        if first.username and same_origin
        else None
    )
    async with (
        # The environment's proxies, netrc and the like are decided on above, with the real host.
        httpx2.AsyncClient(
            trust_env=False, proxy=proxy, timeout=settings.download_timeout
        ) as client,
        client.stream(
            "GET", urlunsplit(target), headers=headers, extensions=extensions, auth=auth
        ) as reply,
    ):
        if reply.is_redirect:
            return reply.headers["location"]
        if not reply.is_success:
            msg = f"{label} answered with HTTP status {reply.status_code}"
            raise DownloadError(msg, source=label, status_code=reply.status_code)
        return await _read(reply, settings.max_download_bytes, label)


async def _read(reply: httpx2.Response, most: int, label: str) -> bytes:
    announced = reply.headers.get("content-length", "")
    body = bytearray()
    if not (announced.isascii() and announced.isdigit() and int(announced) > most):
        async for chunk in reply.aiter_bytes():
            body += chunk
            if len(body) > most:
                break
        else:
            return bytes(body)
    msg = f"{label} is larger than max_download_bytes={most}"
    raise SourceTooLargeError(msg, source=label)


def _is_local(host: str) -> bool:
    literal = _literal(host)
    return host == "localhost" or (literal is not None and literal.is_loopback)


def _literal(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


async def _resolve(host: str, port: int, *, allow_private: bool, label: str) -> str:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]
    if not allow_private:
        for address in addresses:
            _check(address, label)
    # IPv4 first: a machine without IPv6 still resolves IPv6 addresses.
    return str(min(addresses, key=lambda address: address.version))


def _check(address: _Address, label: str) -> None:
    if not is_public(address):
        msg = (
            f"{label} leads to an address that is not on the public internet, so it is not read; "
            "allow_private_addresses=True allows it"
        )
        raise BlockedAddressError(msg, source=label)
