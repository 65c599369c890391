"""Questions to a chat server of the tests, through the engine as the recipe sets it."""

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.core.storage import ModelRef
from pipeline.recipe.serving import EndpointServing
from pipeline.serving.chat import EndpointEngine
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import PROBES, Answer, AnswerRequest, Decoding, Sampling

from .chat_server import KEY, NAME, Change, ChatServer, HttpRequest, HttpResponse, chat_server

MODEL = ModelRef(uri="elsewhere", digest="sha256:0f")
SERVING = EndpointServing(champion=NAME, candidate="other-7b", in_flight=8, timeout_s=20).model_copy(
    update={"attempts": 3}
)
SAMPLING = Sampling(temperature=1.0, max_completion_tokens=8)
PROBE_QUESTIONS = 3 * len(PROBES)
REQUESTS = [
    AnswerRequest(key=f"{n}", messages=[{"role": "user", "content": f"Question {n}?"}], seed=1000 + n)
    for n in range(40)
]  # fmt: skip


def asked_of(
    server: ChatServer, requests: list[AnswerRequest] = REQUESTS, settings: EndpointServing = SERVING,
    sampling: Sampling = SAMPLING, key: str = KEY, arm: str = "champion", log: Callable[[str], None] = print,
) -> tuple[Decoding, dict[str, Answer]]:  # fmt: skip
    answers: dict[str, Answer] = {}
    with EndpointEngine(settings, Endpoint(server.url, key), log, backoff_s=0.001).open(arm, MODEL) as session:
        session.answer(requests, sampling, lambda answer: answers.update({answer.key: answer}))
    return session.decoding, answers


def after_probes(change: Change) -> Change:
    """The server turns bad once it has been accepted."""

    def changed(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        return change(server, request, place - PROBE_QUESTIONS) if place >= PROBE_QUESTIONS else None

    return changed


def always(respond: Callable[[dict[str, Any]], HttpResponse]) -> Change:
    return lambda server, request, place: respond(request.body)


def refuse(change: Change, settings: EndpointServing = SERVING) -> str:
    """The words of a refusal before anything was asked but the probes."""
    with chat_server(change) as server:
        engine = EndpointEngine(settings, Endpoint(server.url, KEY), print, backoff_s=0.001)
        with pytest.raises(ValueError) as refused, engine.open("champion", MODEL):
            pytest.fail("it was accepted")
    return str(refused.value)
