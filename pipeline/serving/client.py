"""HTTP to a model's server, as engines and the judge speak it: bounded in number, time and size, and tried again. It
follows no redirect, uses no proxy of the environment, and logs no body and no key."""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import cache
from typing import NamedTuple, Protocol, TypeVar

import httpx2

from pipeline.serving.endpoint import Endpoint

MAX_WAIT_S = 30.0
CONNECT_S = 10.0
GIVE_UP_AFTER = 20
"""Questions in a row without any answer, from which on a server counts as lost."""


class HttpFault(StrEnum):
    """Why there is no whole response."""

    UNREACHABLE = "no connection"
    BROKEN = "the connection broke"
    TIMEOUT = "no answer within the time limit"
    TOO_LARGE = "a response beyond the size limit"


class HttpReply(NamedTuple):
    """A response, or why there is none. `body` is empty where the caller did not ask for that of this status."""

    status: int = 0
    body: bytes = b""
    retry_after: str | None = None
    fault: HttpFault | None = None

    @property
    def unavailable(self) -> bool:
        """Whether the server says that it may answer later."""
        return self.status in (408, 429) or self.status >= 500


class HttpClient:
    """One server's connections, which live in one event loop. `timeout_s` bounds a whole exchange, a body that trickles
    too. `slots` bounds what is in flight: who sends holds one. `most_bytes`: of a response's body."""

    def __init__(self, endpoint: Endpoint, in_flight: int, timeout_s: float, most_bytes: int) -> None:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Content-Type": "application/json"}
        if endpoint.api_key:
            headers["Authorization"] = f"Bearer {endpoint.api_key}"
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(None, connect=min(CONNECT_S, timeout_s)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=in_flight),
            verify=system_certificates(),
            follow_redirects=False,
            trust_env=False,
        )
        self._timeout_s, self._most_bytes = timeout_s, most_bytes
        self.slots = asyncio.Semaphore(in_flight)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def exchange(
        self, method: str, url: str, content: bytes = b"", bodies: Collection[int] = (200,)
    ) -> HttpReply:
        """One request. `bodies`: statuses whose body is read."""
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.stream(method, url, content=content) as response,
            ):
                return await self._received(response, bodies)
        except TimeoutError:
            return HttpReply(fault=HttpFault.TIMEOUT)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return HttpReply(fault=HttpFault.UNREACHABLE)
        except httpx2.TransportError:
            return HttpReply(fault=HttpFault.BROKEN)

    async def _received(self, response: httpx2.Response, bodies: Collection[int]) -> HttpReply:
        status, wait = response.status_code, response.headers.get("Retry-After")
        if status not in bodies:
            return HttpReply(status, retry_after=wait)
        body = bytearray()
        async for chunk in response.aiter_raw():  # never inflated: a compressed body is not JSON
            body += chunk
            if len(body) > self._most_bytes:
                return HttpReply(status, retry_after=wait, fault=HttpFault.TOO_LARGE)
        return HttpReply(status, bytes(body), wait)


class Repeatable(Protocol):
    """What came of one attempt: whether another one may get past it, and when the server wants it."""

    @property
    def may_pass(self) -> bool: ...

    @property
    def retry_after(self) -> str | None: ...


R = TypeVar("R", bound=Repeatable)


async def repeated(attempt: Callable[[], Awaitable[R]], attempts: int, backoff_s: float) -> R:
    """What the last of up to `attempts` attempts came to; each one waits for `wait_s` after the one before."""
    done = await attempt()
    for number in range(1, attempts):
        if not done.may_pass:
            break
        await asyncio.sleep(wait_s(number, done.retry_after, backoff_s))
        done = await attempt()
    return done


def wait_s(attempt: int, retry_after: str | None, backoff_s: float) -> float:
    """Seconds before the next attempt: what the server asks for, else exponential with full jitter; never over 30."""
    with suppress(ValueError, TypeError):  # neither seconds nor a date, or a date without a zone
        if retry_after and retry_after.isascii() and retry_after.isdigit():
            return min(float(retry_after[:9]), MAX_WAIT_S)
        if retry_after:
            asked = (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds()
            return min(max(asked, 0.0), MAX_WAIT_S)
    return random.uniform(0, min(backoff_s * 2**attempt, MAX_WAIT_S))


@cache
def system_certificates() -> ssl.SSLContext:
    """Not httpx2's own: a cluster's own authority is among the system's."""
    return ssl.create_default_context()
