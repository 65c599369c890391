"""HTTP to a model's server, as engines and the judge speak it: bounded in number, time and size, and tried again. It
follows no redirect, and logs no body and no key. A reply that leaves open what was answered, how it ended or how many
tokens it took is refused. A client lives in an event loop (`AskingLoop`) that runs while the caller waits."""

import asyncio
import json
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from enum import StrEnum
from functools import cache
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import httpx2

from pipeline.core.conversation import received
from pipeline.serving.endpoint import Endpoint

MAX_WAIT_S = 30.0
CONNECT_S = 10.0
GIVE_UP_AFTER = 20
"""Questions in a row without any answer, from which on a server counts as lost."""
SHOWN_CHARS = 300
"""Of a server's words, in an error message."""


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
    seconds: float = 0.0

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may get a response."""
        return self.unavailable or self.fault in (HttpFault.UNREACHABLE, HttpFault.BROKEN, HttpFault.TIMEOUT)

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
        )
        self._timeout_s, self._most_bytes = timeout_s, most_bytes
        self.slots = asyncio.Semaphore(in_flight)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def exchange(
        self, method: str, url: str, content: bytes = b"", bodies: Collection[int] = (200,)
    ) -> HttpReply:
        """One request. `bodies`: statuses whose body is read."""
        begun = time.monotonic()
        return (await self._exchange(method, url, content, bodies))._replace(seconds=time.monotonic() - begun)

    async def _exchange(self, method: str, url: str, content: bytes, bodies: Collection[int]) -> HttpReply:
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.stream(method, url, content=content) as response,
            ):
                return await self._received(response, bodies)
        except TimeoutError:
            return HttpReply(fault=HttpFault.TIMEOUT)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError):
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
    if retry_after and retry_after.isascii() and retry_after.isdigit():
        return min(float(retry_after[:9]), MAX_WAIT_S)
    return random.uniform(0, min(backoff_s * 2**attempt, MAX_WAIT_S))


@cache
def system_certificates() -> ssl.SSLContext:
    """Not httpx2's own: a cluster's own authority is among the system's."""
    return ssl.create_default_context()


class Completion(NamedTuple):
    """One answer, and the model that the server says it is of."""

    model: str
    text: str
    tokens: int
    prompt_tokens: int
    stop: Literal["stop", "length"]
    thought: str = ""
    """Where no answer came after it: then `text` is empty, and `stop` is length."""


def read_completion(body: bytes) -> Completion:
    """Raises ValueError with what is wrong with the reply."""
    try:
        reply = strict_json(body.decode())
    except ValueError as error:
        raise ValueError(f"a body that is not JSON ({error}): {shown(body)}") from None
    if not isinstance(reply, dict) or "error" in reply:
        raise ValueError(f"HTTP 200 with the body of an error: {shown(body)}")
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        number = len(choices) if isinstance(choices, list) else "no list of"
        raise ValueError(f"{number} choices where one was asked for")
    match choices[0]:
        case {
            "message": {"content": None | "", "reasoning_content": str(thought)}
            | {"content": None | "", "reasoning": str(thought)},
            "finish_reason": "stop" | "length",
        } if not choices[0]["message"].get("tool_calls"):
            prompt_tokens, tokens = _usage(reply.get("usage"))
            return Completion(str(reply.get("model")), "", tokens, prompt_tokens, "length", thought)
        case {"message": {"tool_calls": [_, *_]}, "finish_reason": "tool_calls" | "stop"} | {
            "message": {"content": str()},
            "finish_reason": "stop" | "length",
        } if isinstance((message := choices[0]["message"]).get("content"), str | None) and isinstance(
            message.get("tool_calls"), list | None
        ):
            finish = choices[0]["finish_reason"]
            prompt_tokens, tokens = _usage(reply.get("usage"))
            return Completion(
                model=str(reply.get("model")),
                text=received(message.get("content"), message.get("tool_calls") or []),
                tokens=tokens,
                prompt_tokens=prompt_tokens,
                stop="length" if finish == "length" else "stop",
            )
        case {"message": {"content": str()}, **rest}:
            raise ValueError(f"an answer whose finish_reason is {rest.get('finish_reason')!r}, not stop or length")
        case _:
            raise ValueError("a choice without a text")


def strict_json(text: str) -> Any:
    """The value of a JSON text as RFC 8259 has it. Raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError as error:  # a text of opening brackets
        raise ValueError("nested too deeply") from error


def shown(body: bytes) -> str:
    """A server's message on one line, cut; of an error as OpenAI's API has it, its words alone."""
    text = body.decode(errors="replace")
    try:
        reply = strict_json(text)
    except ValueError:
        reply = None
    match reply:
        case {"error": {"message": str(message)}} | {"error": str(message)} | {"message": str(message)}:
            text = message
        case _:
            pass
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def _usage(usage: object) -> tuple[int, int]:
    """Tokens of the prompt and of the answer."""
    match usage:
        case {"prompt_tokens": int(prompt), "completion_tokens": int(tokens)} if (
            not isinstance(prompt, bool) and not isinstance(tokens, bool) and prompt > 0 and tokens >= 0
        ):
            return prompt, tokens
        case _:
            raise ValueError("no usage: how many tokens prompt and answer took is not stated")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


C = TypeVar("C")
Q = TypeVar("Q")
A = TypeVar("A")


class AskingLoop(Generic[C]):
    """The loop and the client that lives in it."""

    def __init__(self, runner: asyncio.Runner, client: C, concurrency: int) -> None:
        self._runner, self.client, self._concurrency = runner, client, concurrency

    def all(
        self, asked: Sequence[Q], answer: Callable[[Q], Awaitable[A]], done: Callable[[int, A], None] | None
    ) -> list[A]:
        """Every answer, in the order of the questions. A `done` or an `answer` that raises ends the asking. `done` is
        called in this thread, before another question takes the answer's place: a kill costs at most the answers of as
        many questions as may be in flight."""
        answers: dict[int, A] = {}
        places = iter(range(len(asked)))

        async def work() -> None:
            for place in places:
                answers[place] = await answer(asked[place])
                if done is not None:
                    done(place, answers[place])

        async def ask() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(asked), self._concurrency)):
                    group.create_task(work())

        try:
            self._runner.run(ask())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return [answers[place] for place in range(len(asked))]


@contextmanager
def open_asking_loop(client: AbstractAsyncContextManager[C], concurrency: int) -> Generator[AskingLoop[C]]:
    """The client, opened in a loop of its own until the block ends."""
    with asyncio.Runner() as runner:
        opened = runner.run(client.__aenter__())
        try:
            yield AskingLoop(runner, opened, concurrency)
        finally:
            runner.run(client.__aexit__(None, None, None))
