"""One model behind an OpenAI-compatible server: which reply is an answer, which is an error of one question, and which
refuses the server as a whole."""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from pipeline.core.conversation import in_one_form, to_request
from pipeline.core.storage import ModelRef, digest_json
from pipeline.recipe.serving import EndpointServing, HttpServing
from pipeline.serving.client import (
    GIVE_UP_AFTER,
    SHOWN_CHARS,
    AskingLoop,
    HttpClient,
    HttpReply,
    open_asking_loop,
    read_completion,
    repeated,
    shown,
    strict_json,
)
from pipeline.serving.endpoint import Endpoint, check_endpoint
from pipeline.serving.inference import (
    PROBES,
    Answer,
    AnswerRequest,
    Decoding,
    Sampling,
    unanswerable,
    with_progress,
)

MOST_BYTES = 16 << 20
"""Of a response: an answer of a million tokens has some four."""
BACKOFF_S = 0.5
PROMPT_REFUSED = (400, 413, 422)
"""Statuses that say something of one question, not of the server."""

PROBE_SAMPLING = Sampling(temperature=1.0, max_completion_tokens=16, skip_unanswerable=True)
PROBE_SEEDS = (20_011, 10_007)
ELSEWHERE = "Serve the models with one that does, or set evaluation.serving.kind to transformers or vllm."
"""What to do about a server that cannot be asked."""


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
        self._where = f"The server at {self._url}"
        self._http = HttpClient(served.endpoint, settings.in_flight, settings.timeout_s, MOST_BYTES)
        self._lost_in_a_row = 0

    async def aclose(self) -> None:
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
                    f"{self._where} left the last {GIVE_UP_AFTER} questions without an answer ({detail}). What was "
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
                f"{self._where} answers as {completion.model[:100]!r} where {self.served.name!r} was asked: nothing "
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
        """Of the server; empty where it does not say. Raises RuntimeError for a server that is lost."""
        url = f"{self._url.removesuffix('/v1')}/version"
        reply = await self._asked("GET", url, b"")
        if reply.fault is not None or reply.unavailable:
            raise RuntimeError(f"{url} fails ({reply.fault or f'HTTP {reply.status}'}). See to the server, run again.")
        with suppress(ValueError, TypeError, LookupError):
            return str(strict_json(reply.body)["version"])[:100]
        return ""

    async def _asked(self, method: str, url: str, body: bytes) -> HttpReply:
        async def attempt() -> HttpReply:
            async with self._http.slots:
                return await self._http.exchange(method, url, body, (200, 401, 403, 404, *PROMPT_REFUSED))

        return await repeated(attempt, self._settings.attempts, self._backoff_s)

    def _refusal(self, reply: HttpReply) -> str:
        words = f" ({self._shown(reply.body)})" if reply.body else ""
        problem = f"{self._where} refuses the question with HTTP {reply.status}{words}."
        if reply.status in (401, 403):
            return f"{problem} Set SERVING_API_KEY to a key that may ask the model {self.served.name!r}."
        if reply.status == 404:
            return (
                f"{problem} Set SERVING_URL to the root of its API, which mostly ends in /v1, and "
                f"{self.served.set_by} to a model that it serves (now {self.served.name!r})."
            )
        return f"{problem} Set SERVING_URL to the root of an API that answers chat completions itself."

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
        take = with_progress(done, len(requests), self._log)
        self._loop.all(requests, lambda request: self._loop.client.draw(request, sampling), lambda _, got: take(got))


def _error(request: AnswerRequest, reply: HttpReply, detail: str) -> Answer:
    return Answer(
        key=request.key, text="", tokens=0, prompt_tokens=0, stop="error", latency_s=reply.seconds, detail=detail
    )


class EndpointEngine:
    """Servers that others keep: any that speaks OpenAI's chat completions and draws by seed, which the probe
    conversations prove before anything else is asked. Which weights it has is what the recipe says by a name."""

    def __init__(
        self, settings: EndpointServing, endpoint: Endpoint, log: Callable[[str], None], backoff_s: float = BACKOFF_S
    ) -> None:
        check_endpoint(endpoint, "The evaluation's", "SERVING")
        self._settings, self._endpoint, self._log, self._backoff_s = settings, endpoint, log, backoff_s

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Generator[ChatSession]:
        """Raises ValueError for a server that is none, RuntimeError for one that cannot be reached."""
        name = {"champion": self._settings.champion, "candidate": self._settings.candidate}[arm]
        served = ServedModel(self._endpoint, name, f"evaluation.serving.{arm}")
        client = ChatClient(served, self._settings, backoff_s=self._backoff_s)
        with open_asking_loop(client, self._settings.in_flight) as loop:
            yield ChatSession(loop, self._decoding(loop), self._log)

    def _decoding(self, loop: AskingLoop[ChatClient]) -> Decoding:
        prompt_tokens = self._probe(loop)
        (version,) = loop.all([None], lambda _: loop.client.version(), None)
        return Decoding(
            engine="endpoint",
            version=version or "unknown",
            device="unknown",
            dtype="unknown",
            stop_ids=(),
            context=None,
            tokens_digest=digest_json(["prompt_tokens", prompt_tokens]),
        )

    def _probe(self, loop: AskingLoop[ChatClient]) -> list[int | None]:
        """Tokens of each probe's prompt as the server counts them; None for one that its template refuses. Raises
        ValueError for a server whose replies are no answers, or that does not draw by seed."""
        first, again, other = (self._round(loop, seed) for seed in (PROBE_SEEDS[0], *PROBE_SEEDS))
        answered = [place for place, answer in enumerate(first) if answer.stop != "refused"]
        if not answered:
            raise ValueError(
                f"The server at {self._endpoint.url} answers none of the probe conversations: {first[0].detail}. "
                f"{ELSEWHERE}"
            )
        texts = [
            [answers[place].text or answers[place].detail for place in answered] for answers in (first, again, other)
        ]
        if texts[0] != texts[1] or texts[0] == texts[2]:
            how = "in two ways under one seed" if texts[0] != texts[1] else "in one way under two seeds"
            raise ValueError(
                f"The endpoint does not draw by seed: the server at {self._endpoint.url} answered {len(answered)} "
                f"questions {how} at temperature 1. {ELSEWHERE}"
            )
        return [None if answer.stop == "refused" else answer.prompt_tokens for answer in first]

    def _round(self, loop: AskingLoop[ChatClient], seed: int) -> list[Answer]:
        """Each probe under one seed."""
        requests = [AnswerRequest(key=str(place), messages=probe, seed=seed) for place, probe in enumerate(PROBES)]
        answers = loop.all(requests, lambda request: loop.client.draw(request, PROBE_SAMPLING), None)
        if failed := [answer for answer in answers if answer.stop == "error"]:
            raise ValueError(
                f"The server at {self._endpoint.url} cannot be asked: {failed[0].detail}. See to it, or set "
                f"SERVING_URL to one that answers. {ELSEWHERE}"
            )
        return answers
