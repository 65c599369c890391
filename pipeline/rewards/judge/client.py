"""One question over HTTP: within the budget, the deadline, the concurrency and the size that were set, or not at all.

What may pass (no connection, 408, 429, 5xx) is tried again after a while; everything else abstains at once. Owns what a
request counts as: what the server says it took, else the most that it can have taken once it was sent. Refuses to
follow redirects, to use the environment's proxies, to inflate compressed bodies, and to log a body or a key.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, NamedTuple, Self

import httpx2

from pipeline.recipe.rewards import Judge
from pipeline.rewards.judge.answers import JudgeReason, Messages
from pipeline.rewards.judge.budget import Budget, TokenUsage
from pipeline.rewards.judge.endpoint import Endpoint
from pipeline.rewards.judge.prompt import AnswerSchema
from pipeline.rewards.judge.replies import read_reply

MAX_WAIT_S = 30.0
CONNECT_S = 10.0
GIVE_UP_AFTER = 20
"""Questions in a row without any answer, from which on each gets one attempt, until one is answered."""

NOTHING = TokenUsage(0, 0)
_LOST = (JudgeReason.UNREACHABLE, JudgeReason.UNAVAILABLE)


class JudgeResponse(NamedTuple):
    """The model's text or the reason why there is none, and what all attempts took together."""

    content: str | None
    reason: JudgeReason | None
    tokens: int
    usd: float


class _Exchange(NamedTuple):
    """One request and its response. `used` is None where only the most that it can have taken is known."""

    content: str | None
    reason: JudgeReason | None
    used: TokenUsage | None = NOTHING
    status: int = 0
    retry_after: str | None = None


class JudgeClient:
    """An endpoint's connections. Lives in one event loop; the budget is touched there alone."""

    def __init__(
        self, endpoint: Endpoint, settings: Judge, budget: Budget, log: Callable[[str], None], backoff_s: float
    ) -> None:
        self._settings, self._budget, self._log, self._backoff_s = settings, budget, log, backoff_s
        self._url = f"{endpoint.url.rstrip('/')}/chat/completions"
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Content-Type": "application/json"}
        if endpoint.api_key:
            headers["Authorization"] = f"Bearer {endpoint.api_key}"
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(None, connect=min(CONNECT_S, settings.timeout_s)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=settings.concurrency),
            verify=_certificates(),
            follow_redirects=False,
            trust_env=False,
        )
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._settled = asyncio.Event()
        self._in_flight = 0
        self._lost_in_a_row = 0
        self._takes_schema: bool | None = None  # None: not known yet
        self._seen: set[int] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._http.aclose()

    async def ask(self, messages: Messages, form: AnswerSchema) -> JudgeResponse:
        """The pinned model's text, or the reason why there is none."""
        tokens, usd = 0, 0.0

        async def exchange(structured: bool) -> _Exchange:
            nonlocal tokens, usd
            body = self._body(messages, form if structured else None)
            done, counted = await self._exchange(body)
            tokens, usd = tokens + counted.total, usd + self._budget.usd(counted)
            return done

        attempts = 1 if self._lost_in_a_row >= GIVE_UP_AFTER else self._settings.attempts
        done = await self._with_schema_or_without(exchange)
        for attempt in range(1, attempts):
            if done.reason not in _LOST:
                break
            await asyncio.sleep(wait_s(attempt, done.retry_after, self._backoff_s))
            done = await self._with_schema_or_without(exchange)
        self._lost_in_a_row = self._lost_in_a_row + 1 if done.reason in _LOST else 0
        return JudgeResponse(done.content, done.reason, tokens, usd)

    async def _with_schema_or_without(self, exchange: Callable[[bool], Awaitable[_Exchange]]) -> _Exchange:
        """Many servers refuse `response_format`: if the first one fails with it alone, none has it again."""
        structured = self._takes_schema is not False
        done = await exchange(structured)
        if structured and self._takes_schema is None and done.status in (400, 422):
            done = await exchange(False)
            if done.status == 200 and self._takes_schema is None:
                self._takes_schema = False
                self._log("judge: the endpoint refuses response_format; asking without it, reading as strictly")
        elif structured and done.status == 200:
            self._takes_schema = True
        return done

    async def _exchange(self, body: bytes) -> tuple[_Exchange, TokenUsage]:
        """One request, if the budget allows the most that it can take; and what it counts as."""
        # No tokenizer makes more tokens than bytes, and the body's JSON outweighs a chat template's tags.
        most = TokenUsage(len(body), self._settings.max_completion_tokens)
        async with self._slots:
            if not await self._hold(most):
                return _Exchange(None, JudgeReason.BUDGET), NOTHING
            used = most  # a request that is cancelled may have been billed
            try:
                done = await self._send(body)
                used = most if done.used is None else done.used
            finally:
                self._budget.settle(most, used)
                self._in_flight -= 1
                self._settled.set()
        if done.status not in (0, 200, *self._seen):
            self._seen.add(done.status)
            self._log(f"judge: HTTP {done.status} from {self._url}")
        return done, used

    async def _hold(self, most: TokenUsage) -> bool:
        """False only if the request could pass the budget even after all that is in flight was settled."""
        while not self._budget.hold(most):
            if not self._in_flight:
                return False
            self._settled.clear()
            await self._settled.wait()
        self._in_flight += 1
        return True

    async def _send(self, body: bytes) -> _Exchange:
        try:
            async with (
                asyncio.timeout(self._settings.timeout_s),
                self._http.stream("POST", self._url, content=body) as response,
            ):
                return await self._received(response)
        except TimeoutError:
            return _Exchange(None, JudgeReason.TIMEOUT, None)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return _Exchange(None, JudgeReason.UNREACHABLE)
        except httpx2.TransportError:  # it broke under way
            return _Exchange(None, JudgeReason.UNREACHABLE, None)

    async def _received(self, response: httpx2.Response) -> _Exchange:
        status = response.status_code
        if 300 <= status < 400:
            return _Exchange(None, JudgeReason.REDIRECT, status=status)
        if status in (408, 429) or status >= 500:
            wait = response.headers.get("Retry-After")
            return _Exchange(None, JudgeReason.UNAVAILABLE, status=status, retry_after=wait)
        if status != 200:
            return _Exchange(None, JudgeReason.HTTP, status=status)
        body = bytearray()
        async for chunk in response.aiter_raw():  # never inflated: a compressed body is not JSON
            body += chunk
            if len(body) > self._settings.max_response_bytes:
                return _Exchange(None, JudgeReason.TOO_LARGE, None, status)
        reply = read_reply(bytes(body), self._settings.model)
        return _Exchange(reply.content, reply.reason, reply.usage, status)

    def _body(self, messages: Messages, form: AnswerSchema | None) -> bytes:
        asked: dict[str, Any] = {
            "model": self._settings.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self._settings.max_completion_tokens,
        }
        if form is not None:
            schema = {"name": form.name, "strict": True, "schema": form.schema}
            asked["response_format"] = {"type": "json_schema", "json_schema": schema}
        return json.dumps(asked, ensure_ascii=False).encode()


@cache
def _certificates() -> ssl.SSLContext:
    """The system's, not httpx2's own: a cluster's own authority is among them."""
    return ssl.create_default_context()


def wait_s(attempt: int, retry_after: str | None, backoff_s: float) -> float:
    """Seconds before the next attempt: what the server asks for, else exponential with full jitter; never over 30."""
    asked = _seconds(retry_after) if retry_after else None
    if asked is not None:
        return min(max(asked, 0.0), MAX_WAIT_S)
    return random.uniform(0, min(backoff_s * 2**attempt, MAX_WAIT_S))


def _seconds(retry_after: str) -> float | None:
    """Of an HTTP Retry-After: seconds, or a date."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:9])
    try:
        return (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):  # no date, or one without a zone
        return None
