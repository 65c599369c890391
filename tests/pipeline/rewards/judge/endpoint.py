"""The chat server of the tests as a judge: what it answers, as well or as badly as a test wants."""

import json
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from pipeline.recipe.rewards import Judge
from pipeline.rewards.findings import JudgeSpending
from pipeline.rewards.judge import Endpoint, JudgeRequest, JudgeSession, open_judge
from tests.pipeline.serving.chat_server import KEY as KEY
from tests.pipeline.serving.chat_server import ChatServer as Server
from tests.pipeline.serving.chat_server import HttpRequest as Request
from tests.pipeline.serving.chat_server import HttpResponse as Said
from tests.pipeline.serving.chat_server import as_json
from tests.pipeline.serving.chat_server import chat_server as serving

MODEL = "examiner-7b"
QUESTION = [{"role": "user", "content": "Say a number."}]
JUDGE = Judge(model=MODEL, digest="sha256:0f", timeout_s=20, concurrency=4, attempts=3)
Answer = Callable[[Server, Request, int], Said]
"""The response to a request; the number says how many came before it."""


def completion(
    content: str | None, *, finish: str = "stop", model: str = MODEL, usage: object = (90, 10), **message: Any
) -> Said:
    """A chat completion as OpenAI's API has it. `usage`: a pair of counts, or what stands in their place."""
    if isinstance(usage, tuple):
        usage = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return as_json({"id": "c-1", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage})


def scored(score: object, **more: Any) -> Said:
    return completion(json.dumps({"rationale": "because", "score": score}), **more)


def preferring(winner: object) -> Said:
    return completion(json.dumps({"rationale": "because", "winner": winner}))


def always(said: Said) -> Answer:
    return lambda server, request, place: said


def in_turn(*said: Said) -> Answer:
    """One after the other; the last one stays."""
    return lambda server, request, place: said[min(place, len(said) - 1)]


def parts(request: Request) -> dict[str, str]:
    """The fenced data of a request, by name."""
    text = request.body["messages"][-1]["content"]
    result = re.findall(r"^=== (\w{16}) BEGIN (.+?) ===\n(.*?)\n=== \1 END \2 ===$", text, re.DOTALL | re.MULTILINE)
    return {name: json.loads(data) for _, name, data in result}


def asked(n: int) -> list[JudgeRequest]:
    return [JudgeRequest(QUESTION, str(place)) for place in range(n)]


def by_number(server: Server, request: Request, place: int) -> Said:
    """The completion's own number, as a score of 1 to 5."""
    return scored(int(parts(request)["answer to be scored"]) % 5 + 1)


@contextmanager
def judging(
    answer: Answer,
    settings: Judge = JUDGE,
    spent: JudgeSpending | None = None,
    log: Callable[[str], None] = lambda line: None,
    key: str = "",
) -> Generator[tuple[Server, JudgeSession]]:
    """A server and the judge that asks it."""
    with (
        serving(answer) as server,
        open_judge(Endpoint(server.url, key), settings, spent, log, backoff_s=0.0001) as judge,
    ):
        yield server, judge
