"""The embedded production: a champion served to simulated users, logged as a Langfuse blob-storage export.

Owns who asks, who agrees, what goes wrong and which dates a champion serves: a claim, made once, in the export's
`claims/`. Refuses to govern anything; the rows are as dirty as real ones. All but the completions is drawn from (seed,
champion, day), latencies included, so a second writing of a day gives the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.demo.task import Problem, problems
from pipeline.recipe.traces import DemoSource
from pipeline.serving.inference import Answer, Messages, Sampling
from pipeline.serving.sample import Sampler
from pipeline.storage import ModelRef, Record, Store, write_atomically

FIRST_DAY = date(2026, 1, 5)
USERS = 200
GROUP = 4
"""Times that each prompt is asked: rewards are compared within such a group."""
MAX_TOKENS = 32

CONSENT, ANSWER_KNOWN, THUMB, HONEST_THUMB = 0.85, 0.85, 0.40, 0.85
PERSONAL, FAILED, EXPORTED_TWICE, MALFORMED = 0.04, 0.02, 0.015, 0.005
EU, CONFIDENTIAL, SLOW = 0.02, 0.01, 0.005
PERSONAL_SENTENCES = (
    " Write to {name}.{n}@example.com.",
    " Call me at +44 20 7946 0{n:03d}.",
    " My card is 4111 1111 1111 1111.",
    " My IBAN is GB82 WEST 1234 5698 7654 32.",
    " I am on 192.0.2.{octet}.",
    " My number is 219-09-{n:04d}.",
)


class TrafficClaim(Record):
    """The dates that one champion serves, and how much."""

    champion: str
    days: tuple[str, ...]
    traces_per_day: int
    seed: int


class _User(NamedTuple):
    id: str
    consent: str | None
    region: str


def ensure_days(
    root: Path, champion: ModelRef, source: DemoSource, sample: Sampler, log: Callable[[str], None]
) -> Path:
    """The export root, after `champion` has served its days: the next `days` dates that no champion has claimed.

    Days that are published already are not sampled again; a claim stands as it was first made.
    """
    claim = _claim(Store(root / "claims"), champion, source)
    for day in claim.days:
        observations, scores = (root / folder / f"{day}.jsonl.gz" for folder in ("observations_v2", "scores"))
        if observations.exists() and scores.exists():
            continue
        log(f"traffic: champion {champion.digest[:12]} serves {claim.traces_per_day} requests on {day}")
        asked, score_lines = _serve(claim, day, champion, sample)
        # Scores first: a day is there once its observations are, and its feedback must not be missing then.
        write_atomically(scores, _gzipped(score_lines))
        write_atomically(observations, _gzipped(asked))
    return root


def _claim(store: Store, champion: ModelRef, source: DemoSource) -> TrafficClaim:
    """The champion's claim. Claims are numbered and made by create-if-absent, so no date has two champions."""
    number, last = 0, FIRST_DAY - timedelta(days=1)
    while True:
        name = f"{number:05d}.json"
        known = store.read(name, TrafficClaim)
        if known is None:
            dates = tuple((last + timedelta(days=n)).isoformat() for n in range(1, source.days + 1))
            claim = TrafficClaim(
                champion=champion.digest, days=dates, traces_per_day=source.traces_per_day, seed=source.seed
            )
            if store.create(name, claim):
                return claim
            continue
        if known.champion == champion.digest:
            return known
        number, last = number + 1, date.fromisoformat(known.days[-1])


def _serve(claim: TrafficClaim, day: str, champion: ModelRef, sample: Sampler) -> tuple[list[str], list[str]]:
    """The lines of a day's observations and scores."""
    key = f"{claim.seed}/{champion.digest}/{day}"
    rng = random.Random(key)
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) >> 1
    wanted = -(-claim.traces_per_day // GROUP)
    asked = [(problem, _prompt(rng, problem)) for problem in problems(number, "train", wanted)]
    prompts: list[Messages] = [[{"role": "user", "content": prompt}] for _, prompt in asked]
    sampling = Sampling(samples=GROUP, temperature=1.0, max_completion_tokens=MAX_TOKENS, seed=number)
    answers = sample(champion, prompts, sampling)
    served = [(*ask, answer) for ask, group in zip(asked, answers, strict=True) for answer in group]
    served = served[: claim.traces_per_day]
    rng.shuffle(served)
    users = _users(claim.seed)
    seconds = sorted(rng.uniform(0, 86_000) for _ in served)
    observations: list[str] = []
    scores: list[str] = []
    for second, (problem, prompt, answer) in zip(seconds, served, strict=True):
        moment = datetime.combine(date.fromisoformat(day), time()) + timedelta(seconds=round(second, 3))
        row = _observation(rng, moment, rng.choice(users), (problem, prompt), answer, champion)
        observations += _exported(rng, row)
        if row["output"] is not None and rng.random() < THUMB:
            scores.append(json.dumps(_thumb(rng, row, moment, _is_right(answer.text, problem.answer))))
    return observations, scores


def _prompt(rng: random.Random, problem: Problem) -> str:
    if rng.random() >= PERSONAL:
        return problem.prompt
    sentence = rng.choice(PERSONAL_SENTENCES)
    name = rng.choice(("alice", "bruno", "chen", "dana"))
    return problem.prompt + sentence.format(name=name, n=rng.randint(100, 999), octet=rng.randint(1, 254))


def _users(seed: int) -> list[_User]:
    """The same people ask every champion. A no is an absent key as often as it is a false one."""
    rng = random.Random(f"users/{seed}")
    return [
        _User(
            id=f"user-{n:03d}",
            consent="true" if rng.random() < CONSENT else rng.choice([None, "false"]),
            region="eu" if rng.random() < EU else "us",
        )
        for n in range(USERS)
    ]


def _observation(
    rng: random.Random,
    moment: datetime,
    user: _User,
    asked: tuple[Problem, str],
    answer: Answer,
    champion: ModelRef,
) -> dict[str, Any]:
    problem, prompt = asked
    # Drawn whatever they decide, so that one row's fate does not shift the draws of the next.
    known, secret, failed, slow = (rng.random() for _ in range(4))
    latency_s = 0.05 + 0.01 * answer.tokens + rng.expovariate(20) + (180.0 if slow < SLOW else 0.0)
    metadata = {"region": user.region, "finish_reason": "stop" if answer.finished else "length"}
    if user.consent is not None:
        metadata["user_consent"] = user.consent
    if known < ANSWER_KNOWN:
        metadata["expected_answer"] = problem.answer
    if secret < CONFIDENTIAL:
        metadata["confidential"] = "true"
    error = failed < FAILED
    end = moment + timedelta(seconds=latency_s)
    tokens = {"input": len(prompt.split()), "output": 0 if error else answer.tokens}
    return {
        "id": f"{rng.getrandbits(64):016x}",
        "trace_id": f"{rng.getrandbits(128):032x}",
        "type": "GENERATION",
        "name": "answer",
        "environment": "production",
        "start_time": _text(moment),
        "end_time": _text(end),
        "created_at": _text(end + timedelta(seconds=2)),
        "updated_at": _text(end + timedelta(seconds=2)),
        "user_id": user.id,
        "session_id": f"{user.id}-{moment:%Y%m%d}",
        "provided_model_name": f"champion-{champion.digest[:12]}",
        "level": "ERROR" if error else "DEFAULT",
        "status_message": "upstream connection reset" if error else None,
        "input": json.dumps([{"role": "user", "content": prompt}]),
        "output": None if error else json.dumps({"role": "assistant", "content": answer.text}),
        "metadata": metadata,
        "usage_details": {**tokens, "total": sum(tokens.values())},
        "latency": round(latency_s, 3),
    }


def _exported(rng: random.Random, row: dict[str, Any]) -> list[str]:
    """The row as the export has it: mostly once; now and then again, or with a broken line beside it."""
    lines = [json.dumps(row)]
    if rng.random() < EXPORTED_TWICE:
        again = {**row, "updated_at": _text(datetime.fromisoformat(row["updated_at"]) + timedelta(minutes=1))}
        if rng.random() < 0.5:  # the same call, ingested under a second id
            again["id"] = f"{rng.getrandbits(64):016x}"
        lines.append(json.dumps(again))
    if rng.random() < MALFORMED:
        lines.append(lines[0][: rng.randint(20, 200)])
    return lines


def _thumb(rng: random.Random, row: dict[str, Any], moment: datetime, right: bool) -> dict[str, Any]:
    up = right if rng.random() < HONEST_THUMB else not right
    rated_at = _text(moment + timedelta(minutes=rng.randint(1, 20)))
    return {
        "id": f"{rng.getrandbits(128):032x}",
        "timestamp": rated_at,
        "environment": "production",
        "trace_id": row["trace_id"],
        "observation_id": None,
        "session_id": None,
        "name": "thumb",
        "value": float(up),
        "string_value": "True" if up else "False",
        "data_type": "BOOLEAN",
        "source": "API",
        "comment": None,
        "created_at": rated_at,
        "updated_at": rated_at,
    }


def _is_right(completion: str, answer: str) -> bool:
    """What a user sees: the number at the end."""
    return completion.rpartition("####")[2].strip().rstrip(".") == answer


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def _gzipped(lines: list[str]) -> bytes:
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
