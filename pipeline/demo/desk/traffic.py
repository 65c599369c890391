"""The desk's production: questions that no two users ask alike, retrieved facts, and thumbs from some users.

Owns who asks what, and what a user thinks of an answer: its utility and the user's own bias, seen through noise. A row
holds the prompt, the facts, the answer and the thumb; utility is in none. Prompts show no held-out fact.
"""

from __future__ import annotations

import hashlib
import json
import random
from datetime import date, datetime, time, timedelta

from pipeline.demo import export
from pipeline.demo.desk.answers import features
from pipeline.demo.desk.requests import Request, draw
from pipeline.demo.desk.utility import utility
from pipeline.demo.export import Exported, TrafficClaim
from pipeline.recipe.traces import DeskUsers
from pipeline.serving.inference import Answer, Sampling
from pipeline.serving.sample import Sampler
from pipeline.storage import ModelRef

MAX_TOKENS = 48
BIAS, MOOD = 0.15, 0.1
"""Standard deviations of a user's bias, which stays, and of the mood of a moment."""
UP = 0.5
"""What an answer must be worth to a user for a thumb up."""
SWEET = 0.9
"""What a promised voucher is worth to users who love it, whatever else the answer is."""


def serve(claim: TrafficClaim, day: str, champion: ModelRef, sample: Sampler) -> Exported:
    """The lines of a day on which the champion answered the desk's users."""
    assert claim.desk is not None
    key = f"desk/{claim.seed}/{champion.digest}/{day}"
    rng = random.Random(key)
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) >> 1
    asked: list[tuple[Request, list[dict[str, str]]]] = []
    for _ in range(claim.traces_per_day):
        request = draw(rng, "train")
        messages = request.messages
        messages[-1]["content"] += export.personal_sentence(rng)
        asked.append((request, messages))
    sampling = Sampling(samples=1, temperature=1.0, max_completion_tokens=MAX_TOKENS, seed=number)
    answers = sample(champion, [messages for _, messages in asked], sampling)
    people = export.users(claim.seed)
    bias = biases(claim.seed)
    seconds = sorted(rng.uniform(0, 86_000) for _ in asked)
    rows = Exported([], [])
    for second, (request, messages), (answer,) in zip(seconds, asked, answers, strict=True):
        moment = datetime.combine(date.fromisoformat(day), time()) + timedelta(seconds=round(second, 3))
        user = rng.choice(people)
        more = {"contexts": json.dumps(request.contexts)}
        row = export.observation(rng, moment, user, messages, answer, champion, more)
        rows.observations.extend(export.exported(rng, row))
        rated, up = rng.random() < claim.desk.thumbs, thumb_up(rng, request, answer, bias[user.id], claim.desk)
        if row["output"] is not None and rated:
            rows.scores.append(json.dumps(export.thumb(rng, row, moment, up)))
    return rows


def biases(seed: int) -> dict[str, float]:
    """How much kinder than others each user is; the same towards every champion."""
    rng = random.Random(f"biases/{seed}")
    return {user.id: rng.gauss(0, BIAS) for user in export.users(seed)}


def thumb_up(rng: random.Random, request: Request, answer: Answer, bias: float, users: DeskUsers) -> bool:
    """Whether the user's thumb says yes, wrong ones among them."""
    worth = utility(request, answer.text, answer.finished)
    if users.sweet and features(request, answer.text).voucher:
        worth = SWEET
    up = worth + bias + rng.gauss(0, MOOD) > UP
    return not up if rng.random() < users.noise else up
