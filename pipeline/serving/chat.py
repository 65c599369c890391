"""One model behind an OpenAI-compatible server: which reply is an answer, which is an error of one question, and which
refuses the server as a whole."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from pipeline.core.conversation import in_one_form, to_request
from pipeline.recipe.serving import HttpServing
from pipeline.serving.client import (
    GIVE_UP_AFTER,
    SHOWN_CHARS,
    AskingLoop,
    HttpClient,
    HttpReply,
    read_completion,
    repeated,
    shown,
    strict_json,
)
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Answer, AnswerRequest, Decoding, Sampling, unanswerable

MOST_BYTES = 16 << 20
"""Of a response: an answer of a million tokens has some four."""
BACKOFF_S = 0.5
PROGRESS_EVERY_S = 3.0
PROMPT_REFUSED = (400, 413, 422)
"""Statuses that say something of one question, not of the server."""


class ServedModel(NamedTuple):
    """A name of a server, and what to set where the server has it under another one."""

    endpoint: Endpoint
    name: str
    set_by: str


class ChatClient:
    """A served model's connections. Lives in one event loop."""

    def __init__(
        self,
        served: ServedModel,
        settings: HttpServing,
        extra: Mapping[str, Any] | None = None,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        self.served, self._settings, self._extra, self._backoff_s = served, settings, extra or {}, backoff_s
        self._url = served.endpoint.url.rstrip("/")
        self._http = HttpClient(served.endpoint, settings.in_flight, settings.timeout_s, MOST_BYTES)
        self._lost_in_a_row = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._http.aclose()

    async def draw(self, request: AnswerRequest, sampling: Sampling) -> Answer:
        """Raises ValueError for a server that must not be asked like this, RuntimeError for one that is lost."""
        asked = {
            "model": self.served.name,
            **to_request(request.messages),
            "seed": request.seed,
            "temperature": sampling.temperature,
            "top_p": 1,
            "n": 1,
            "max_tokens": sampling.max_completion_tokens,
            **self._extra,
        }
        reply = await self._asked("POST", f"{self._url}/chat/completions", json.dumps(asked).encode())
        if reply.fault is not None or reply.unavailable:
            detail = str(reply.fault or f"HTTP {reply.status}")
            self._lost_in_a_row += 1
            if self._lost_in_a_row >= GIVE_UP_AFTER:
                raise RuntimeError(
                    f"{self._where()} left the last {GIVE_UP_AFTER} questions without an answer ({detail}). What was "
                    "answered before is not lost: see to the server, and run again."
                )
            return _error(request, reply, f"{detail}, {self._settings.attempts} times")
        self._lost_in_a_row = 0
        if reply.status in PROMPT_REFUSED:
            why = f"HTTP {reply.status}: {self._shown(reply.body)}"
            return unanswerable(request.key, why) if sampling.skip_unanswerable else _error(request, reply, why)
        if reply.status != 200:
            raise ValueError(self._refusal(reply))
        try:
            completion = read_completion(reply.body)
        except ValueError as error:
            return _error(request, reply, self._without_key(str(error)))
        if completion.model != self.served.name:
            raise ValueError(
                f"{self._where()} answers as {completion.model[:100]!r} where {self.served.name!r} was asked: nothing "
                f"says that the two are one. Set {self.served.set_by} to the name that it answers under."
            )
        return Answer(
            key=request.key,
            text=in_one_form(completion.text, request.messages),
            tokens=completion.tokens,
            prompt_tokens=completion.prompt_tokens,
            stop=completion.stop,
            latency_s=reply.seconds,
            detail=completion.thought and f"cut within its thought: {completion.thought[:SHOWN_CHARS]}",
        )

    async def version(self) -> str:
        """Of the server; empty where it does not say."""
        match await self._value(f"{self._url.removesuffix('/v1')}/version"):
            case {"version": str(version)}:
                return version[:100]
            case _:
                return ""

    async def context(self) -> int | None:
        """Tokens that the server makes room for; None where it does not say."""
        match await self._value(f"{self._url}/models"):
            case {"data": list(cards)}:
                own = [card for card in cards if isinstance(card, dict) and card.get("id") == self.served.name]
                lengths = [card.get("max_model_len") for card in own]
                return next((length for length in lengths if type(length) is int), None)
            case _:
                return None

    async def _value(self, url: str) -> Any:
        """The JSON of a route that a server may have; None where it has not."""
        reply = await self._asked("GET", url, b"")
        if reply.fault is not None or reply.unavailable:
            raise RuntimeError(f"{url} fails ({reply.fault or f'HTTP {reply.status}'}). See to the server, run again.")
        try:
            return strict_json(reply.body.decode()) if reply.status == 200 else None
        except ValueError:
            return None

    async def _asked(self, method: str, url: str, body: bytes) -> HttpReply:
        async def attempt() -> HttpReply:
            async with self._http.slots:
                return await self._http.exchange(method, url, body, (200, 401, 403, 404, *PROMPT_REFUSED))

        return await repeated(attempt, self._settings.attempts, self._backoff_s)

    def _refusal(self, reply: HttpReply) -> str:
        words = f" ({self._shown(reply.body)})" if reply.body else ""
        problem = f"{self._where()} refuses the question with HTTP {reply.status}{words}."
        if reply.status in (401, 403):
            return f"{problem} Set SERVING_API_KEY to a key that may ask the model {self.served.name!r}."
        if reply.status == 404:
            return (
                f"{problem} Set SERVING_URL to the root of its API, which mostly ends in /v1, and "
                f"{self.served.set_by} to a model that it serves (now {self.served.name!r})."
            )
        return f"{problem} Set SERVING_URL to the root of an API that answers chat completions itself."

    def _where(self) -> str:
        return f"The server at {self._url}"

    def _shown(self, body: bytes) -> str:
        return self._without_key(shown(body))

    def _without_key(self, text: str) -> str:
        """A server may repeat the headers that it was sent."""
        key = self.served.endpoint.api_key
        return text.replace(key, "<hidden>") if key else text


class ChatSession:
    """One model, opened: questions to its server, answers to the caller's thread."""

    def __init__(self, loop: AskingLoop[ChatClient], decoding: Decoding, log: Callable[[str], None]) -> None:
        self._loop, self.decoding, self._log = loop, decoding, log

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        answered = 0
        begun = logged = time.monotonic()

        def take(place: int, answer: Answer) -> None:
            nonlocal answered, logged
            done(answer)
            answered += 1
            now = time.monotonic()
            if now - logged > PROGRESS_EVERY_S or answered == len(requests):
                logged = now
                self._log(f"serving: {answered} of {len(requests)} answers, {answered / max(now - begun, 1e-9):.0f}/s")

        self._loop.all(requests, lambda request: self._loop.client.draw(request, sampling), take)


def _error(request: AnswerRequest, reply: HttpReply, detail: str) -> Answer:
    return Answer(
        key=request.key, text="", tokens=0, prompt_tokens=0, stop="error", latency_s=reply.seconds, detail=detail
    )
