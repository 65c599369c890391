"""The embedded production: a champion answers simulated users, logged as a Langfuse blob-storage export. All but the
completions is drawn from (seed, champion, day), so writing a day again gives the same bytes. While a rollout runs, the
users ask through the gateway: OpenAI chat completions."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store, write_atomically
from pipeline.demo import export
from pipeline.demo.desk import traffic as desk
from pipeline.demo.desk.requests import draw
from pipeline.demo.export import Exported, LoggedCall, TrafficClaim
from pipeline.demo.task import problems
from pipeline.recipe.sources import DemoSource
from pipeline.rollout.fold import read_state
from pipeline.rollout.gateway.process import running_address
from pipeline.serving.inference import Messages, Sampling
from pipeline.serving.transformers_engine import Sampler

FIRST_DAY = date(2026, 1, 5)
GROUP = 4
"""Requests of each prompt."""
MAX_TOKENS = 32

PEOPLE = 2_000
"""A few per cent of them are enough to judge a canary by."""
IN_FLIGHT = 64
TIMEOUT_S = 60.0

ANSWER_KNOWN, THUMB, HONEST_THUMB = 0.85, 0.40, 0.85


def ensure_days(
    root: Path, champion: ModelRef, source: DemoSource, sample: Sampler, log: Callable[[str], None]
) -> Path:
    """The export root, after `champion` has served its days: the next `days` dates that no champion has claimed."""
    claim = _claim(Store(root / "claims"), champion, source)
    for day in claim.days:
        observations, scores = (root / folder / f"{day}.jsonl.gz" for folder in ("observations_v2", "scores"))
        if observations.exists() and scores.exists():
            continue
        log(f"traffic: champion {champion.digest[:12]} serves {claim.traces_per_day} requests on {day}")
        rows = (desk.serve if claim.desk else _serve)(claim, day, champion, sample)
        # Scores first: a day counts as published once its observations are there.
        write_atomically(scores, export.gzipped(rows.scores))
        write_atomically(observations, export.gzipped(rows.observations))
    return root


def _claim(store: Store, champion: ModelRef, source: DemoSource) -> TrafficClaim:
    """The champion's claim. Claims are numbered and created if absent, so no date has two champions."""
    number, last = 0, FIRST_DAY - timedelta(days=1)
    while True:
        name = f"{number:05d}.json"
        known = store.read(name, TrafficClaim)
        if known is None:
            dates = tuple((last + timedelta(days=n)).isoformat() for n in range(1, source.days + 1))
            claim = TrafficClaim(
                champion=champion.digest,
                days=dates,
                traces_per_day=source.traces_per_day,
                seed=source.seed,
                desk=source.desk if source.world == "desk" else None,
            )
            if store.create(name, claim):
                return claim
            continue
        if known.champion == champion.digest:
            return known
        number, last = number + 1, date.fromisoformat(known.days[-1])


def _serve(claim: TrafficClaim, day: str, champion: ModelRef, sample: Sampler) -> Exported:
    key = f"{claim.seed}/{champion.digest}/{day}"
    rng = random.Random(key)
    number = export.seed_of(key)
    wanted = -(-claim.traces_per_day // GROUP)
    asked = [(problem, problem.prompt + export.personal_sentence(rng)) for problem in problems(number, "train", wanted)]
    prompts: list[Messages] = [[{"role": "user", "content": prompt}] for _, prompt in asked]
    sampling = Sampling(samples=GROUP, temperature=1.0, max_completion_tokens=MAX_TOKENS, seed=number)
    answers = sample(champion, prompts, sampling)
    served = [
        (problem, messages, answer)
        for (problem, _), messages, group in zip(asked, prompts, answers, strict=True)
        for answer in group
    ]
    served = served[: claim.traces_per_day]
    rng.shuffle(served)
    people = export.users(claim.seed)
    seconds = sorted(rng.uniform(0, 86_000) for _ in served)
    rows = Exported([], [])
    for second, (problem, messages, answer) in zip(seconds, served, strict=True):
        moment = datetime.combine(date.fromisoformat(day), time()) + timedelta(seconds=round(second, 3))
        user = rng.choice(people)
        more = {"expected_answer": problem.answer} if rng.random() < ANSWER_KNOWN else {}
        row = export.observation(rng, champion, LoggedCall(moment, user, messages, answer, more))
        rows.observations.extend(export.exported(rng, row))
        if row["output"] is not None and rng.random() < THUMB:
            right = answer.text.rpartition("####")[2].strip().rstrip(".") == problem.answer
            up = right if rng.random() < HONEST_THUMB else not right
            rows.scores.append(json.dumps(export.thumb(rng, row, moment, up)))
    return rows


class UserRequest(NamedTuple):
    user: str
    messages: Messages
    metadata: dict[str, str]
    max_tokens: int


def requests_of(source: DemoSource, key: str, count: int) -> list[UserRequest]:
    """`count` requests of the world's users; the same key draws the same."""
    rng = random.Random(key)
    asked = list(_asked(source, rng, export.seed_of(key), count))
    rng.shuffle(asked)
    people = export.users(source.seed, PEOPLE)
    requests: list[UserRequest] = []
    for messages, more in asked[:count]:
        user = rng.choice(people)
        metadata = {"region": user.region, **more}
        if user.consent is not None:
            metadata["user_consent"] = user.consent
        if rng.random() < export.CONFIDENTIAL:
            metadata["confidential"] = "true"
        tokens = desk.MAX_TOKENS if source.world == "desk" else MAX_TOKENS
        requests.append(UserRequest(user.id, messages, metadata, tokens))
    return requests


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


def ask(url: str, requests: Sequence[UserRequest], in_flight: int = IN_FLIGHT) -> int:
    """Send the requests to `url`, the root of an OpenAI-compatible API, and wait for every answer; how many got
    none."""
    import httpx2

    def answered(request: UserRequest) -> bool:
        fields = {"messages": request.messages, "metadata": request.metadata, "max_tokens": request.max_tokens}
        asked, headers = {"model": "model", **fields}, {"x-user-id": request.user}
        try:
            return client.post(f"{url}/chat/completions", json=asked, headers=headers).status_code == 200
        except httpx2.HTTPError:
            return False

    limits = httpx2.Limits(max_connections=in_flight)
    with (
        httpx2.Client(timeout=TIMEOUT_S, limits=limits, trust_env=False) as client,
        ThreadPoolExecutor(in_flight) as pool,
    ):
        return list(pool.map(answered, requests)).count(False)


def with_users(
    store: Store, model_name: str, source: DemoSource, requests: int, log: Callable[[str], None]
) -> Callable[[float], None]:
    """A wait of so many seconds, in which users ask the gateway while a canary has traffic."""

    def wait(seconds: float) -> None:
        end, state = monotonic() + seconds, read_state(store, model_name)
        address = running_address(store.path(layout.gateway(model_name)))
        if address is not None and state.canary_weight:
            sent = requests_of(source, f"users of {state.rollout} at {state.epoch}", requests)
            log(f"users: {len(sent)} requests, {ask(f'{address.url}/v1', sent)} without an answer")
        sleep(max(0.0, end - monotonic()))

    return wait
