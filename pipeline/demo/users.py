"""The simulated users of an embedded world, asking over HTTP: what goes through the gateway while a rollout runs.

Owns who asks what, from a key, and that a request is one that a real client sends: an OpenAI chat completion with the
user's id in a header and what the application knows in its metadata. Refuses to grade an answer and to leave thumbs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipeline.demo import export
from pipeline.demo.desk.requests import draw
from pipeline.demo.desk.traffic import MAX_TOKENS as DESK_TOKENS
from pipeline.demo.task import problems
from pipeline.demo.traffic import ANSWER_KNOWN, GROUP, MAX_TOKENS
from pipeline.recipe.traces import DemoSource
from pipeline.serving.inference import Messages

if TYPE_CHECKING:
    import aiohttp

PEOPLE = 2_000
"""Who ask while a rollout runs: a few percent of them are enough people to judge a canary by."""
IN_FLIGHT = 64
TIMEOUT_S = 60.0


class UserRequest(NamedTuple):
    """One question: who asks, what, and what the application knows of it."""

    user: str
    messages: Messages
    metadata: dict[str, str]
    max_tokens: int


class AskedCounts(NamedTuple):
    """How many requests were sent, and how many got no answer."""

    sent: int
    failed: int


def requests_of(source: DemoSource, key: str, count: int) -> list[UserRequest]:
    """`count` requests of the world's users; the same key draws the same."""
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) >> 1
    rng = random.Random(key)
    asked = list(_asked(source, rng, number, count))
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
    """Send them to `url` (the root of an OpenAI-compatible API), so many at once, and wait for every answer."""
    return asyncio.run(_ask_all(url, requests, in_flight))


async def _ask_all(url: str, requests: Iterable[UserRequest], in_flight: int) -> AskedCounts:
    import aiohttp

    waiting = iter(requests)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        counts = await asyncio.gather(*(_ask_in_turn(session, url, waiting) for _ in range(in_flight)))
    return AskedCounts(sum(count.sent for count in counts), sum(count.failed for count in counts))


async def _ask_in_turn(session: aiohttp.ClientSession, url: str, waiting: Iterator[UserRequest]) -> AskedCounts:
    import aiohttp

    sent = failed = 0
    for request in waiting:
        sent += 1
        body = {
            "model": "model",
            "messages": request.messages,
            "metadata": request.metadata,
            "max_tokens": request.max_tokens,
        }
        try:
            async with session.post(f"{url}/chat/completions", json=body, headers={"x-user-id": request.user}) as reply:
                await reply.read()
                failed += reply.status != 200
        except (aiohttp.ClientError, TimeoutError):
            failed += 1
    return AskedCounts(sent, failed)
