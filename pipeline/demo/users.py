"""The simulated users of an embedded world: OpenAI chat completions through the gateway while a rollout runs."""

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pipeline.demo import export
from pipeline.demo.desk.requests import draw
from pipeline.demo.desk.traffic import MAX_TOKENS as DESK_TOKENS
from pipeline.demo.task import problems
from pipeline.demo.traffic import ANSWER_KNOWN, GROUP, MAX_TOKENS
from pipeline.recipe.traces import DemoSource
from pipeline.serving.inference import Messages

PEOPLE = 2_000
"""A few per cent of them are enough to judge a canary by."""
IN_FLIGHT = 64
TIMEOUT_S = 60.0


class UserRequest(NamedTuple):
    user: str
    messages: Messages
    metadata: dict[str, str]
    max_tokens: int


class AskedCounts(NamedTuple):
    sent: int
    failed: int
    """Without an answer."""


def requests_of(source: DemoSource, key: str, count: int) -> list[UserRequest]:
    """`count` requests of the world's users; the same key draws the same."""
    rng = random.Random(key)
    asked = list(_asked(source, rng, export.seed_of(key), count))
    rng.shuffle(asked)
    people = export.users(source.seed, PEOPLE)
    return [_by(rng, rng.choice(people), messages, more, source) for messages, more in asked[:count]]


def _asked(
    source: DemoSource, rng: random.Random, number: int, count: int
) -> Iterator[tuple[Messages, dict[str, str]]]:
    if source.world == "desk":
        for _ in range(count):
            request = draw(rng, "train")
            messages = request.messages
            messages[-1]["content"] += export.personal_sentence(rng)
            yield messages, {"contexts": json.dumps(request.contexts)}
        return
    for problem in problems(number, "train", -(-count // GROUP)):
        content = problem.prompt + export.personal_sentence(rng)
        for _ in range(GROUP):
            reference = {"expected_answer": problem.answer} if rng.random() < ANSWER_KNOWN else {}
            yield [{"role": "user", "content": content}], reference


def _by(
    rng: random.Random, user: export.User, messages: Messages, more: dict[str, str], source: DemoSource
) -> UserRequest:
    metadata = {"region": user.region, **more}
    if user.consent is not None:
        metadata["user_consent"] = user.consent
    if rng.random() < export.CONFIDENTIAL:
        metadata["confidential"] = "true"
    return UserRequest(user.id, messages, metadata, DESK_TOKENS if source.world == "desk" else MAX_TOKENS)


def ask(url: str, requests: Sequence[UserRequest], in_flight: int = IN_FLIGHT) -> AskedCounts:
    """Send the requests to `url`, the root of an OpenAI-compatible API, and wait for every answer."""
    return asyncio.run(_ask_all(url, requests, in_flight))


async def _ask_all(url: str, requests: Iterable[UserRequest], in_flight: int) -> AskedCounts:
    import httpx2

    waiting, sent, failed = iter(requests), 0, 0

    async def ask_in_turn() -> None:
        nonlocal sent, failed
        for request in waiting:
            sent += 1
            fields = {"messages": request.messages, "metadata": request.metadata, "max_tokens": request.max_tokens}
            headers = {"x-user-id": request.user}
            try:
                reply = await client.post(f"{url}/chat/completions", json={"model": "model", **fields}, headers=headers)
                failed += reply.status_code != 200
            except httpx2.HTTPError:
                failed += 1

    limits = httpx2.Limits(max_connections=in_flight)
    async with httpx2.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(ask_in_turn() for _ in range(in_flight)))
    return AskedCounts(sent, failed)
