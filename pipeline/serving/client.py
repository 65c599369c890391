"""HTTP to a model's server, as engines and the judge speak it: bounded in number, time and size, and tried again. It
follows no redirect, and logs no body and no key. A reply that leaves open what was answered, how it ended or how many
tokens it took is refused. A client lives in an event loop (`AskingLoop`) that runs while the caller waits."""

import asyncio
import json
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import httpx2
import msgspec

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
            verify=ssl.create_default_context(),  # not httpx2's: a cluster's own authority is among the system's
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
                status, wait, body = response.status_code, response.headers.get("Retry-After"), bytearray()
                if status in bodies:
                    async for chunk in response.aiter_raw():  # never inflated: a compressed body is not JSON
                        body += chunk
                        if len(body) > self._most_bytes:
                            return HttpReply(status, retry_after=wait, fault=HttpFault.TOO_LARGE)
                return HttpReply(status, bytes(body), wait)
        except TimeoutError:
            return HttpReply(fault=HttpFault.TIMEOUT)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError):
            return HttpReply(fault=HttpFault.UNREACHABLE)
        except httpx2.TransportError:
            return HttpReply(fault=HttpFault.BROKEN)


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


class Completion(NamedTuple):
    """One answer, and the model that the server says it is of."""

    model: str
    text: str
    tokens: int
    prompt_tokens: int
    stop: Literal["stop", "length"]
    thought: str = ""
    """Where no answer came after it: then `text` is empty, and `stop` is length."""


class _ReplyMessage(msgspec.Struct):
    content: str | None = None
    tool_calls: list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _DrawnChoice(msgspec.Struct):
    message: _ReplyMessage
    finish_reason: Literal["stop", "length", "tool_calls"]


class _ReplyUsage(msgspec.Struct):
    prompt_tokens: Annotated[int, msgspec.Meta(gt=0)]
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)]


class _Reply(msgspec.Struct):
    choices: Annotated[list[_DrawnChoice], msgspec.Meta(min_length=1, max_length=1)]
    usage: _ReplyUsage
    model: str | None = None


def read_completion(body: bytes) -> Completion:
    """Raises ValueError with what is wrong with the reply."""
    try:
        reply = msgspec.json.decode(body, type=_Reply)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"HTTP 200 with a body that is no answer ({error}): {shown(body)}") from None
    message, finish = reply.choices[0].message, reply.choices[0].finish_reason
    thought = "" if message.content or message.tool_calls else message.reasoning_content or message.reasoning or ""
    if finish == "tool_calls" and not message.tool_calls:
        raise ValueError("an answer whose finish_reason is 'tool_calls', without calls")
    if message.content is None and not message.tool_calls and not thought:
        raise ValueError("a choice without a text")
    return Completion(
        model=str(reply.model),
        text="" if thought else received(message.content, message.tool_calls or []),
        tokens=reply.usage.completion_tokens,
        prompt_tokens=reply.usage.prompt_tokens,
        stop="length" if finish == "length" or thought else "stop",
        thought=thought,
    )


def strict_json(text: str | bytes) -> Any:
    """The value of a JSON text in which no key stands twice. Raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError as error:  # a text of opening brackets
        raise ValueError("nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields


def shown(body: bytes) -> str:
    """A server's message on one line, cut; of an error as OpenAI's API has it, its words alone."""
    text = body.decode(errors="replace")
    try:
        reply = strict_json(body)
    except ValueError:
        reply = None
    match reply:
        case {"error": {"message": str(message)}} | {"error": str(message)} | {"message": str(message)}:
            text = message
        case _:
            pass
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


class Connected(Protocol):
    async def aclose(self) -> None: ...


C = TypeVar("C", bound=Connected)
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
def open_asking_loop(client: C, concurrency: int) -> Generator[AskingLoop[C]]:
    """The client in a loop of its own; it is closed when the block ends."""
    with asyncio.Runner() as runner:
        try:
            yield AskingLoop(runner, client, concurrency)
        finally:
            runner.run(client.aclose())
