"""The embedded production's logs as rows and scores of a Langfuse blob-storage export, with the users and the faults of
real traffic. All but the answer is drawn from the caller's generator, in a fixed order."""

import gzip
import hashlib
import json
import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pipeline.core.storage import ModelRef, Record
from pipeline.recipe.sources import DeskUsers
from pipeline.serving.inference import Answer, Messages

USERS = 200

CONSENT, FAILED, EXPORTED_TWICE, MALFORMED = 0.85, 0.02, 0.015, 0.005
PERSONAL, EU, CONFIDENTIAL, SLOW = 0.04, 0.02, 0.01, 0.005
PERSONAL_SENTENCES = (
    " Write to {name}.{n}@example.com.",
    " Call me at +44 20 7946 0{n:03d}.",
    " My card is 4111 1111 1111 1111.",
    " My IBAN is GB82 WEST 1234 5698 7654 32.",
    " I am on 192.0.2.{octet}.",
    " My number is 219-09-{n:04d}.",
)


class TrafficClaim(Record):
    """The dates that one champion serves, and how many requests. It never changes."""

    champion: str
    days: tuple[str, ...]
    traces_per_day: int
    seed: int
    desk: DeskUsers | None = None
    """The behaviour of the desk's users."""


class Exported(NamedTuple):
    observations: list[str]
    scores: list[str]


class User(NamedTuple):
    id: str
    consent: str | None
    region: str


class LoggedCall(NamedTuple):
    """One call of the application. `tools`: definitions as JSON text. `turn`: the assistant's message where it is more
    than text."""

    moment: datetime
    user: User
    messages: Messages
    answer: Answer
    metadata: Mapping[str, str]
    tools: str | None = None
    turn: Mapping[str, str] | None = None
    session: str | None = None


def users(seed: int, count: int = USERS) -> list[User]:
    """The users, the same for every champion; a larger count begins with the same ones."""
    rng = random.Random(f"users/{seed}")
    return [
        User(
            id=f"user-{n:03d}",
            consent="true" if rng.random() < CONSENT else rng.choice([None, "false"]),
            region="eu" if rng.random() < EU else "us",
        )
        for n in range(count)
    ]


def personal_sentence(rng: random.Random) -> str:
    """Seldom a sentence with personal data, for the end of a prompt; else ""."""
    if rng.random() >= PERSONAL:
        return ""
    sentence = rng.choice(PERSONAL_SENTENCES)
    name = rng.choice(("alice", "bruno", "chen", "dana"))
    return sentence.format(name=name, n=rng.randint(100, 999), octet=rng.randint(1, 254))


def observation(rng: random.Random, champion: ModelRef, call: LoggedCall) -> dict[str, Any]:
    """The row of one call; a failed call has no output."""
    moment, user, answer = call.moment, call.user, call.answer
    # Always drawn, so that one row does not shift the draws of the next.
    secret, failed, slow = (rng.random() for _ in range(3))
    latency_s = 0.05 + 0.01 * answer.tokens + rng.expovariate(20) + (180.0 if slow < SLOW else 0.0)
    metadata: dict[str, Any] = {"region": user.region, "finish_reason": "stop" if answer.finished else "length"}
    if user.consent is not None:
        metadata["user_consent"] = user.consent
    metadata |= call.metadata
    if secret < CONFIDENTIAL:
        metadata["confidential"] = "true"
    error = failed < FAILED
    logged = [_decoded(message) for message in call.messages]
    asked = logged if call.tools is None else {"messages": logged, "tools": json.loads(call.tools)}
    output = _decoded({"role": "assistant", "content": answer.text} if call.turn is None else call.turn)
    end = moment + timedelta(seconds=latency_s)
    words = sum(len(message["content"].split()) for message in call.messages)
    tokens = {"input": words, "output": 0 if error else answer.tokens}
    return {
        "id": f"{rng.getrandbits(64):016x}",
        "trace_id": f"{rng.getrandbits(128):032x}",
        "type": "GENERATION",
        "name": "answer",
        "environment": "production",
        "start_time": text(moment),
        "end_time": text(end),
        "created_at": text(end + timedelta(seconds=2)),
        "updated_at": text(end + timedelta(seconds=2)),
        "user_id": user.id,
        "session_id": call.session or f"{user.id}-{moment:%Y%m%d}",
        "provided_model_name": f"champion-{champion.digest[:12]}",
        "level": "ERROR" if error else "DEFAULT",
        "status_message": "upstream connection reset" if error else None,
        "input": json.dumps(asked),
        "output": None if error else json.dumps(output),
        "metadata": metadata,
        "usage_details": {**tokens, "total": sum(tokens.values())},
        "latency": round(latency_s, 3),
    }


def _decoded(message: Mapping[str, str]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return dict(message) if calls is None else {**message, "tool_calls": json.loads(calls)}


def exported(rng: random.Random, row: dict[str, Any]) -> list[str]:
    """The lines of a row: mostly one, seldom a duplicate or a broken line as well."""
    lines = [json.dumps(row)]
    if rng.random() < EXPORTED_TWICE:
        again = {**row, "updated_at": text(datetime.fromisoformat(row["updated_at"]) + timedelta(minutes=1))}
        if rng.random() < 0.5:  # the same call, ingested under a second id
            again["id"] = f"{rng.getrandbits(64):016x}"
        lines.append(json.dumps(again))
    if rng.random() < MALFORMED:
        lines.append(lines[0][: rng.randint(20, 200)])
    return lines


def thumb(rng: random.Random, row: dict[str, Any], moment: datetime, up: bool) -> dict[str, Any]:
    rated_at = text(moment + timedelta(minutes=rng.randint(1, 20)))
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


def seed_of(key: str) -> int:
    """A seed of 31 bits that follows from the key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) >> 1


def text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def gzipped(lines: list[str]) -> bytes:
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
