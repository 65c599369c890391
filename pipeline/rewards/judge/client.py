"""One question over HTTP: within the budget, the deadline, the concurrency and the size that were set, or not at all.

A request counts as what the server says it took, else as the most that it can have taken.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Self

from pipeline.recipe.rewards import Judge
from pipeline.rewards.judge.answers import Budget, JudgeReason, TokenUsage
from pipeline.rewards.judge.prompt import AnswerSchema
from pipeline.serving.client import GIVE_UP_AFTER, HttpClient, HttpFault, HttpReply, repeated
from pipeline.serving.completion import shown, strict_json
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Messages

MOST_TOKENS = 10_000_000
"""Of one request that a server can be believed: no context window is that long."""

NOTHING = TokenUsage(0, 0)
REFUSALS = (400, 401, 403, 404, 422)
"""Statuses by which an endpoint says that the request is wrong: its words say how."""
REPLACED = {"max_tokens": "max_completion_tokens", "temperature": ""}
"""Fields that OpenAI's reasoning models refuse by name, and what is sent in their place."""
_FAULTS: dict[HttpFault, tuple[JudgeReason, TokenUsage | None]] = {
    HttpFault.UNREACHABLE: (JudgeReason.UNREACHABLE, NOTHING),
    HttpFault.BROKEN: (JudgeReason.UNREACHABLE, None),
    HttpFault.TIMEOUT: (JudgeReason.TIMEOUT, None),
    HttpFault.TOO_LARGE: (JudgeReason.TOO_LARGE, None),
}
"""What a response that is not whole means, and what it took: None is the most that it can have taken."""


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
    refused: str = ""
    """The field of the request that the endpoint does not take, where it names one."""

    @property
    def may_pass(self) -> bool:
        return self.reason in (JudgeReason.UNREACHABLE, JudgeReason.UNAVAILABLE)


class JudgeClient:
    """An endpoint's connections. Lives in one event loop; the budget is touched there alone."""

    def __init__(
        self, endpoint: Endpoint, settings: Judge, budget: Budget, log: Callable[[str], None], backoff_s: float
    ) -> None:
        self._settings, self._budget, self._log, self._backoff_s = settings, budget, log, backoff_s
        self._url, self._key = f"{endpoint.url.rstrip('/')}/chat/completions", endpoint.api_key
        self._http = HttpClient(endpoint, settings.concurrency, settings.timeout_s, settings.max_response_bytes)
        self._settled = asyncio.Event()
        self._in_flight = 0
        self._lost_in_a_row = 0
        self._takes_schema: bool | None = None  # None: not known yet
        self._refused: set[str] = set()
        self._seen: set[int] = set()
        self._others: set[str] = set()
        self.quotes_refusals = False
        """Whether the endpoint's words about a request that it refuses are logged: while no user's text is asked about,
        which they may repeat."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._http.aclose()

    async def ask(self, messages: Messages, form: AnswerSchema) -> JudgeResponse:
        """The pinned model's text, or the reason why there is none."""
        tokens, usd = 0, 0.0

        async def exchange(structured: bool) -> _Exchange:
            nonlocal tokens, usd
            while True:
                left_out = frozenset(self._refused)
                done, counted = await self._exchange(self._body(messages, form if structured else None))
                tokens, usd = tokens + counted.total, usd + self._budget.usd(counted)
                if done.refused not in REPLACED or done.refused in left_out:
                    return done
                self._leave_out(done.refused)

        # An endpoint that is lost gets one attempt for each question, until one is answered.
        attempts = 1 if self._lost_in_a_row >= GIVE_UP_AFTER else self._settings.attempts
        done = await repeated(lambda: self._with_schema_or_without(exchange), attempts, self._backoff_s)
        self._lost_in_a_row = self._lost_in_a_row + 1 if done.may_pass else 0
        return JudgeResponse(done.content, done.reason, tokens, usd)

    def _leave_out(self, field: str) -> None:
        if field not in self._refused:
            self._refused.add(field)
            instead = f"with {REPLACED[field]}" if REPLACED[field] else "at its own, so that its word may vary"
            self._log(f"judge: the endpoint refuses {field}; asking {instead}")

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
        async with self._http.slots:
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
        reply = await self._http.exchange("POST", self._url, body, (200, *REFUSALS))
        if reply.fault is not None:
            reason, used = _FAULTS[reply.fault]
            return _Exchange(None, reason, used, reply.status)
        self._log_refusal(reply)
        if reply.unavailable:
            return _Exchange(None, JudgeReason.UNAVAILABLE, status=reply.status, retry_after=reply.retry_after)
        return self._read(reply)

    def _log_refusal(self, reply: HttpReply) -> None:
        """Once for each status, but for what can be asked in another way."""
        if reply.status in (200, *self._seen) or refused_field(reply.body) in REPLACED:
            return
        self._seen.add(reply.status)
        words = shown(reply.body) if self.quotes_refusals else ""
        quoted = f": {words.replace(self._key, '<hidden>') if self._key else words}" if words else ""
        self._log(f"judge: HTTP {reply.status} from {self._url}{quoted}")

    def _read(self, reply: HttpReply) -> _Exchange:
        if reply.status != 200:
            reason = JudgeReason.REDIRECT if 300 <= reply.status < 400 else JudgeReason.HTTP
            return _Exchange(None, reason, status=reply.status, refused=refused_field(reply.body))
        content, reason, used, other = read_reply(reply.body, self._settings.model)
        if other and other not in self._others:
            self._others.add(other)
            self._log(
                f"judge: {self._settings.model!r} was asked and {other[:80]!r} answered, which counts for nothing. "
                "Where that is the model that you mean, name it in rewards.judge.model"
            )
        return _Exchange(content, reason, used, reply.status)

    def _body(self, messages: Messages, form: AnswerSchema | None) -> bytes:
        fields = {"temperature": 0, "max_tokens": self._settings.max_completion_tokens}
        replaced = {REPLACED[name] if name in self._refused else name: value for name, value in fields.items()}
        asked: dict[str, Any] = {"model": self._settings.model, "messages": messages, **replaced}
        asked.pop("", None)
        if form is not None:
            schema = {"name": form.name, "strict": True, "schema": form.schema}
            asked["response_format"] = {"type": "json_schema", "json_schema": schema}
        return json.dumps(asked, ensure_ascii=False).encode()


class Reply(NamedTuple):
    """The model's text, or why there is none; and the tokens that the server says it took, if it can be believed."""

    content: str | None
    reason: JudgeReason | None
    usage: TokenUsage | None
    other_model: str = ""
    """Who answered, where it was not the one that was asked."""


def refused_field(body: bytes) -> str:
    """The field of the request that an error names, as OpenAI's API has it; "" where it names none."""
    try:
        reply = strict_json(body.decode())
    except ValueError:
        return ""
    match reply:
        case {"error": {"param": str(field)}}:
            return field
        case _:
            return ""


def read_reply(body: bytes, model: str) -> Reply:
    """A chat completion of `model`, with exactly one choice that was finished."""
    try:
        reply = strict_json(body.decode())
    except ValueError:
        return Reply(None, JudgeReason.MALFORMED, None)
    if not isinstance(reply, dict):
        return Reply(None, JudgeReason.MALFORMED, None)
    usage = _usage(reply.get("usage"))
    match reply:
        case {"model": str(named), "choices": [{"message": dict(message), "finish_reason": str(finish)}]}:
            if named != model:
                return Reply(None, JudgeReason.OTHER_MODEL, usage, named)
            return Reply(*_content(message, finish), usage)
        case _:
            return Reply(None, JudgeReason.MALFORMED, usage)


def _content(message: dict[str, Any], finish: str) -> tuple[str | None, JudgeReason | None]:
    content = message.get("content")
    if message.get("refusal") or finish == "content_filter":
        return None, JudgeReason.DECLINED
    if finish == "length":
        return None, JudgeReason.CUT
    if finish != "stop" or not isinstance(content, str):
        return None, JudgeReason.MALFORMED
    return content, None


def _usage(usage: object) -> TokenUsage | None:
    match usage:
        case {"prompt_tokens": int(prompt), "completion_tokens": int(completion)} if (
            not isinstance(prompt, bool)
            and not isinstance(completion, bool)
            and prompt >= 0
            and completion >= 0
            and 0 < prompt + completion <= MOST_TOKENS
        ):
            return TokenUsage(prompt, completion)
        case _:
            return None
