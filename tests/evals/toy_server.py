"""The chat server of the tests with a model that adds: right or wrong by the seed, as often as a test wants."""

import random
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tests.pipeline.serving.chat_server import KEY as KEY
from tests.pipeline.serving.chat_server import ChatServer, HttpRequest, HttpResponse, as_json, chat_server


class ToyServer:
    """`skills`: share of right answers by model name."""

    def __init__(self, skills: dict[str, float]) -> None:
        self.url, self.skills = "", skills
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()

    def reply(self, server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
        body = request.body
        self.keys.add(request.headers.get("Authorization", ""))
        question = body["messages"][-1]["content"]
        dice = random.Random(repr((question, body.get("seed"))))
        text = f"It may be {dice.random()}"
        if sum := re.fullmatch(r"What is (\d+) and (\d+)\?", question):
            self.requests.append(body)
            number = int(sum[1]) + int(sum[2])
            text = f"It is {number if dice.random() < self.skills[body['model']] else number + 1}"
        words = text.split()
        said = words[: body.get("max_tokens") or body.get("max_completion_tokens") or 99]
        finish = "length" if len(said) < len(words) else "stop"
        message = {"role": "assistant", "content": " ".join(said)}
        usage = {"prompt_tokens": 7, "completion_tokens": len(said), "total_tokens": 7 + len(said)}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        reply = {"id": "c-1", "object": "chat.completion", "created": 0, "model": body["model"]}
        return as_json({**reply, "choices": [choice], "usage": usage})


@contextmanager
def toy_server(skills: dict[str, float]) -> Generator[ToyServer]:
    toy = ToyServer(skills)
    with chat_server(toy.reply) as server:
        toy.url = server.url
        yield toy
