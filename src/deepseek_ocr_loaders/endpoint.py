"""Where pages are sent: one address that serves one model, and what is known of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pydantic import SecretStr

__all__ = ["Endpoint", "EndpointProvider", "Version", "release_of"]

Version = tuple[int, int]


def release_of(version: str | None) -> Version | None:
    """Read major and minor version; None where there is none (a build from source is `dev`)."""
    found = re.match(r"v?(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server that was found to be ready and to serve the model.

    Attributes:
        base_url: The address up to and including `/v1`.
        model: The id to send, as `/v1/models` lists it.
        engine: Who reads: `vllm` or `rapidocr`, or what a foreign server calls itself.
        reader: What really reads the page, for `ocr_model` (the model's id; for the embedded
            engine the names of its own models).
        version: The server's version, for example `0.26.0`; None where it does not say.
        max_model_len: Tokens of prompt and answer together; None where it does not say.
        max_concurrency: Pages that the server works on at once; None where it does not say.
        api_key: Sent as a bearer token.
        generation: Counts restarts of a managed server, so that a late error of the old process
            is not blamed on the new one.
        copy: Which of several managed servers of the same options it is, from 0.
    """

    base_url: str
    model: str
    engine: str
    reader: str
    version: str | None = None
    max_model_len: int | None = None
    max_concurrency: int | None = None
    api_key: SecretStr | None = field(default=None, repr=False)
    generation: int = 0
    copy: int = 0

    @property
    def release(self) -> Version | None:
        """Major and minor version; None where it is not known."""
        return release_of(self.version)

    @property
    def dies_of_small_pictures(self) -> bool:
        """True for vLLM 0.16 and 0.17, which a picture of one tile kills (vllm#36670)."""
        return self.engine == "vllm" and self.release in {(0, 16), (0, 17)}


class EndpointProvider(Protocol):
    """Something that gives the run a server to send pages to: managed, shared or foreign."""

    async def acquire(self) -> list[Endpoint]:
        """Give the ready servers, starting one if that is this provider's job.

        Raises:
            ServerError: There is none and there will be none.
        """

    async def recover(self, failed: Endpoint) -> Endpoint | None:
        """Wait until a server that stopped answering is ready again, and give its new address.

        Returns:
            The server after its restart; None where it was alive all the time, so that the
            fault was in the request or the network.

        Raises:
            ServerError: It is gone for good.
        """

    async def release(self) -> None:
        """Say that this run needs the server no more; it may be called twice."""
