"""One question over HTTP: within the budget, the deadline, the concurrency and the size that were set, or not at all. A
request counts as what the server says it took, else as the most that it can have taken."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from pipeline.recipe.rewards import Judge
from pipeline.rewards.findings import JudgeSpending
from pipeline.rewards.judge.answers import Budget, JudgeReason, TokenUsage
from pipeline.serving.client import (
    GIVE_UP_AFTER,
    HttpClient,
    HttpFault,
    HttpReply,
    read_completion,
    repeated,
    shown,
    strict_json,
)
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Messages

NOTHING = TokenUsage(0, 0)
REFUSALS = (400, 401, 403, 404, 422)
"""Statuses by which an endpoint says that the request is wrong: its words say how."""
INSTEAD = {
    "max_tokens": "with max_completion_tokens",
    "temperature": "at its own, so that its word may vary",
    "response_format": "without it, reading as strictly",
}
"""Fields that an endpoint may refuse (OpenAI's reasoning models do so by name), and how it is asked then."""
_FAULTS: dict[HttpFault, tuple[JudgeReason, TokenUsage | None]] = {
    HttpFault.UNREACHABLE: (JudgeReason.UNREACHABLE, NOTHING),
    HttpFault.BROKEN: (JudgeReason.UNREACHABLE, None),
    HttpFault.TIMEOUT: (JudgeReason.TIMEOUT, None),
    HttpFault.TOO_LARGE: (JudgeReason.TOO_LARGE, None),
}
"""What a response that is not whole means, and what it took: None is the most that it can have taken."""


class JudgeReply(NamedTuple):
    """The model's text or the reason why there is none, of one request. `used` is None where only the most that it can
    have taken is known."""

    content: str | None
    reason: JudgeReason | None
    used: TokenUsage | None = NOTHING
    retry_after: str | None = None
    refused: str = ""
    """The field of the request that the endpoint does not take, where it names one."""

    @property
    def may_pass(self) -> bool:
        return self.reason in (JudgeReason.UNREACHABLE, JudgeReason.UNAVAILABLE)


class JudgeClient:
    """An endpoint's connections. Lives in one event loop; the budget is touched there alone."""

    def __init__(
        self, endpoint: Endpoint, settings: Judge, spent: JudgeSpending, log: Callable[[str], None], backoff_s: float
    ) -> None:
        self._settings, self._log, self._backoff_s = settings, log, backoff_s
        self._budget = Budget(settings, spent)
        self._url, self._key = f"{endpoint.url.rstrip('/')}/chat/completions", endpoint.api_key
        self._http = HttpClient(endpoint, settings.concurrency, settings.timeout_s, settings.max_response_bytes)
        self._lost_in_a_row = 0
        self._left_out = frozenset[str]()
        self._told: set[str] = set()
        self.quotes_refusals = False
        """Whether the endpoint's words about a request that it refuses are logged: while no user's text is asked about,
        which they may repeat."""

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(self, messages: Messages, schema: dict[str, Any]) -> tuple[JudgeReply, int, float]:
        """The last attempt's reply, and the tokens and dollars of all of them."""
        tokens, usd = 0, 0.0

        async def attempt() -> JudgeReply:
            """With all fields that are not known to be refused."""
            nonlocal tokens, usd
            while True:
                left_out = self._left_out
                reply, counted = await self._exchange(self._body(messages, schema, left_out))
                tokens, usd = tokens + counted.total, usd + self._budget.usd(counted)
                field = reply.refused
                if field not in INSTEAD or field in left_out:
                    return reply
                self._left_out |= {field}
                self._tell_once(field, f"the endpoint refuses {field}; asking {INSTEAD[field]}")

        # An endpoint that is lost gets one attempt for each question, until one is answered.
        attempts = 1 if self._lost_in_a_row >= GIVE_UP_AFTER else self._settings.attempts
        reply = await repeated(attempt, attempts, self._backoff_s)
        self._lost_in_a_row = self._lost_in_a_row + 1 if reply.may_pass else 0
        return reply, tokens, usd

    def _tell_once(self, about: str, words: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self._log(f"judge: {words}")

    def _body(self, messages: Messages, schema: dict[str, Any], left_out: frozenset[str]) -> bytes:
        limit = "max_completion_tokens" if "max_tokens" in left_out else "max_tokens"
        asked: dict[str, Any] = {
            "model": self._settings.model,
            "messages": messages,
            "temperature": 0,
            limit: self._settings.max_completion_tokens,
            "response_format": {"type": "json_schema", "json_schema": schema},
        }
        return json.dumps({k: v for k, v in asked.items() if k not in left_out}, ensure_ascii=False).encode()

    async def _exchange(self, body: bytes) -> tuple[JudgeReply, TokenUsage]:
        """One request, if the budget allows the most that it can take; and what it counts as."""
        # No tokenizer makes more tokens than bytes, and the body's JSON outweighs a chat template's tags.
        most = TokenUsage(len(body), self._settings.max_completion_tokens)
        async with self._http.slots:
            if not self._budget.hold(most):
                return JudgeReply(None, JudgeReason.BUDGET), NOTHING
            used = most  # a request that is cancelled may have been billed
            try:
                reply = self._read(await self._http.exchange("POST", self._url, body, (200, *REFUSALS)))
                if reply.used is not None:  # nobody is billed for more than was sent and could be answered
                    used = TokenUsage(*map(min, most, reply.used))
            finally:
                self._budget.settle(most, used)
        return reply, used

    def _read(self, reply: HttpReply) -> JudgeReply:
        status = reply.status
        if reply.fault is not None:
            reason, used = _FAULTS[reply.fault]
            return JudgeReply(None, reason, used)
        if status == 200:
            return self._completion(reply.body)
        refused = refused_field(reply.body)
        if refused not in INSTEAD:
            words = shown(reply.body) if self.quotes_refusals else ""
            quoted = f": {words.replace(self._key, '<hidden>') if self._key else words}" if words else ""
            self._tell_once(f"HTTP {status}", f"HTTP {status} from {self._url}{quoted}")
        reason = JudgeReason.UNAVAILABLE if reply.unavailable else JudgeReason.HTTP
        return JudgeReply(None, reason, NOTHING, reply.retry_after, refused)

    def _completion(self, body: bytes) -> JudgeReply:
        try:
            answer = read_completion(body)
        except ValueError:
            return JudgeReply(None, JudgeReason.MALFORMED, None)
        used = TokenUsage(answer.prompt_tokens, answer.tokens)
        if answer.model != self._settings.model:
            self._tell_once(
                answer.model,
                f"{self._settings.model!r} was asked and {answer.model[:80]!r} answered, which counts for nothing. "
                "Where that is the model that you mean, name it in rewards.judge.model",
            )
            return JudgeReply(None, JudgeReason.OTHER_MODEL, used)
        return (
            JudgeReply(None, JudgeReason.CUT, used) if answer.stop == "length" else JudgeReply(answer.text, None, used)
        )


def refused_field(body: bytes) -> str:
    """The field of the request that an error names, as OpenAI's API has it; "" where it names none."""
    try:
        return str(strict_json(body)["error"]["param"])
    except (ValueError, TypeError, KeyError):
        return ""
