"""Downloads: limits, redirects, and no way into a private network."""

from __future__ import annotations

import gzip
import ipaddress
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from support.documents import opened, pdf_bytes

from deepseek_ocr_loaders import fetch as fetch_module
from deepseek_ocr_loaders.errors import (
    BlockedAddressError,
    DownloadError,
    SourceTooLargeError,
    UnsupportedSourceError,
)
from deepseek_ocr_loaders.fetch import is_public, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

PDF = pdf_bytes()


class Site:
    """A server that answers by path and remembers what it was asked."""

    def __init__(self, host: str) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.stop = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
                getattr(site, self.path.strip("/").partition("?")[0].partition("/")[0])(self)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://{host}:{self.port}"
        self.target = ""
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def send(self, to: Any, body: bytes, code: int = 200, **headers: str) -> None:
        to.send_response(code)
        to.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            to.send_header(name.replace("_", "-"), value)
        to.end_headers()
        to.wfile.write(body)

    def ok(self, to: Any) -> None:
        self.send(to, PDF, content_type="text/plain")

    def missing(self, to: Any) -> None:
        self.send(to, b"<html>", 404)

    def go(self, to: Any) -> None:
        self.send(to, b"", 302, location=self.target)

    def loop(self, to: Any) -> None:
        self.send(to, b"", 301, location="/loop")

    def login(self, to: Any) -> None:
        self.send(to, b"<!doctype html><html>Please log in</html>")

    def announced(self, to: Any) -> None:
        to.send_response(200)
        to.send_header("content-length", str(10**12))
        to.end_headers()

    def endless(self, to: Any) -> None:
        to.send_response(200)
        to.send_header("connection", "close")
        to.end_headers()
        while not self.stop.is_set():
            to.wfile.write(b"x" * 65536)

    def zipped(self, to: Any) -> None:
        self.send(to, gzip.compress(b"\0" * 50_000_000), content_encoding="gzip")

    def drip(self, to: Any) -> None:
        to.send_response(200)
        to.send_header("content-length", "1000")
        to.end_headers()
        while not self.stop.wait(0.1):
            to.wfile.write(b"x")
            to.wfile.flush()

    def dripping_headers(self, to: Any) -> None:
        while not self.stop.wait(0.1):
            to.wfile.write(b"H")
            to.wfile.flush()

    def short(self, to: Any) -> None:
        to.send_response(200)
        to.send_header("content-length", "100000")
        to.end_headers()
        to.wfile.write(PDF)
        to.close_connection = True

    def close(self) -> None:
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site("127.0.0.1")
    yield site
    site.close()


@pytest.fixture
def inner() -> Iterator[Site]:
    """A server inside a private network."""
    site = Site("127.0.0.2")
    yield site
    site.close()


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 127.0.0.1 stand for a public address."""
    monkeypatch.setattr(
        fetch_module,
        "is_public",
        lambda address: str(address) == "127.0.0.1" or is_public(address),
    )


def test_download(site: Site, public: None) -> None:
    with opened(f"{site.url}/ok/paper%20one.pdf?key=secret#page=2") as document:
        assert document.info.source == f"{site.url}/ok/paper%20one.pdf"
        assert document.info.file_name == "paper one.pdf"
        assert document.info.total_pages == 1
    path, headers = site.seen[0]
    assert path == "/ok/paper%20one.pdf?key=secret"
    assert headers["host"] == f"127.0.0.1:{site.port}"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "0x7f.0.0.1", "2130706433"])
def test_private_address_is_refused_before_anything_is_sent(site: Site, host: str) -> None:
    with pytest.raises(BlockedAddressError, match="allow_private_addresses"):
        opened(f"http://{host}:{site.port}/ok")
    assert not site.seen


def test_private_address_can_be_allowed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy in the environment is no way to the loopback address.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for host in ("127.0.0.1", "localhost"):
        with opened(f"http://{host}:{site.port}/ok", allow_private_addresses=True) as document:
            assert document.info.total_pages == 1
        assert site.seen.pop()[1]["host"] == f"{host}:{site.port}"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1",
        "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::",
        "2002:a9fe:a9fe::1", "2001:0:7f00:1:0:0:0:0", "2001:db8::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let every name resolve to the next answer; the last one stays."""
    asked: list[str] = []
    left = list(answers)

    def getaddrinfo(host: str, port: int, *args: Any, **kw: Any) -> list[Any]:
        asked.append(host)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [
            (socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port))
            for a in found
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_name_that_resolves_to_a_private_address_is_refused(
    inner: Site, public: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in (["127.0.0.2"], ["127.0.0.1", "127.0.0.2"], ["127.0.0.1", "::1"]):
        resolve_to(monkeypatch, answer)
        with pytest.raises(BlockedAddressError, match=r"files\.example"):
            opened(f"http://files.example:{inner.port}/ok")
    assert not inner.seen


def test_name_is_resolved_once_and_the_checked_address_is_used(
    site: Site, public: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A name server may answer with a private address the second time.
    asked = resolve_to(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])
    with opened(f"http://files.example:{site.port}/ok/a.pdf") as document:
        assert document.info.total_pages == 1
    assert asked.count("files.example") == 1
    assert site.seen[0][1]["host"] == f"files.example:{site.port}"


def test_redirects_are_followed(site: Site, public: None) -> None:
    site.target = "/ok/final.pdf?x=1"
    with opened(f"{site.url}/go?a") as document:
        assert document.info.source == f"{site.url}/go"
        assert document.info.file_name == "final.pdf"


@pytest.mark.parametrize("target", ["http://127.0.0.2:{port}/ok", "//127.0.0.2:{port}/ok"])
def test_redirect_into_a_private_network_is_refused(
    site: Site, inner: Site, public: None, target: str
) -> None:
    site.target = target.format(port=inner.port)
    with pytest.raises(BlockedAddressError):
        opened(f"{site.url}/go")
    assert len(site.seen) == 1
    assert not inner.seen


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://x/a", "gopher://x", "data:,x", "http://", "http://[x"]
)
def test_redirect_to_another_scheme_is_refused(site: Site, public: None, target: str) -> None:
    site.target = target
    with pytest.raises(DownloadError):
        opened(f"{site.url}/go")


def test_redirect_loop_ends(site: Site, public: None) -> None:
    with pytest.raises(DownloadError, match="redirects more than"):
        opened(f"{site.url}/loop")
    assert len(site.seen) == 6


def test_password_goes_to_its_own_host_only(site: Site, inner: Site) -> None:
    site.target = f"{inner.url}/ok"
    url = site.url.replace("://", "://user:p%40ss@")
    with opened(f"{url}/go", allow_private_addresses=True) as document:
        assert document.info.source == f"{site.url}/go"
    assert site.seen[0][1]["authorization"].startswith("Basic ")
    assert "authorization" not in inner.seen[0][1]


def test_error_status(site: Site, public: None) -> None:
    with pytest.raises(DownloadError, match="404") as caught:
        opened(f"{site.url}/missing?token=secret")
    assert caught.value.status_code == 404
    assert "secret" not in str(caught.value) + repr(vars(caught.value))


def test_login_page_is_named(site: Site, public: None) -> None:
    with pytest.raises(UnsupportedSourceError, match="web page"):
        opened(f"{site.url}/login/report.pdf")


@pytest.mark.parametrize("path", ["announced", "endless", "zipped"])
def test_download_that_is_too_large(site: Site, public: None, path: str) -> None:
    with pytest.raises(SourceTooLargeError, match="max_download_bytes=1000000"):
        opened(f"{site.url}/{path}", max_download_bytes=1_000_000)


@pytest.mark.parametrize("path", ["drip", "dripping_headers"])
def test_slow_download_ends_in_time(site: Site, public: None, path: str) -> None:
    started = time.monotonic()
    with pytest.raises(DownloadError, match=r"download_timeout=0\.5 s"):
        opened(f"{site.url}/{path}", download_timeout=0.5)
    assert time.monotonic() - started < 60


def test_connection_that_breaks(site: Site, public: None) -> None:
    with pytest.raises(DownloadError, match="could not be downloaded"):
        opened(f"{site.url}/short?token=secret")


def test_nobody_listens(public: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(DownloadError, match="could not be downloaded"):
        opened(f"http://127.0.0.1:{port}/a.pdf")


@pytest.mark.parametrize(
    "url", ["http://", "https://", "http://[::1", "http:///a.pdf", "http://x:99999/"]
)
def test_address_that_is_none(url: str) -> None:
    with pytest.raises(DownloadError):
        opened(url)


async def test_download_works_inside_a_running_loop(site: Site, public: None) -> None:
    with opened(f"{site.url}/ok") as document:
        assert document.info.total_pages == 1


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://u:p@x.org:8443/a/b.pdf?X-Amz-Signature=1#f", "https://x.org:8443/a/b.pdf"),
        ("s3://key:secret@bucket/a.pdf", "s3://bucket/a.pdf"),
        ("/tmp/what?.pdf", "/tmp/what?.pdf"),
        ("http://[::1/a?secret", "http://"),
    ],
)
def test_names_hold_no_secret(url: str, clean: str) -> None:
    assert without_secrets(url) == clean
