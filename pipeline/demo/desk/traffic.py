"""The desk's production: conversations with retrieved facts and look-ups, and thumbs that follow an answer's utility
and the user's bias through noise. Prompts show no held-out fact, and no question that the suite reserves."""

import json
import random
from datetime import date, datetime, time, timedelta

from pipeline.core.storage import ModelRef
from pipeline.demo import export
from pipeline.demo.desk.conversation import (
    SECOND,
    WITH_TOOL,
    Turn,
    after_call,
    another,
    begin,
    features,
    is_reserved,
    second,
)
from pipeline.demo.desk.requests import ATTRIBUTES, Request, assistant_message
from pipeline.demo.desk.utility import utility
from pipeline.demo.export import Exported, LoggedCall, TrafficClaim
from pipeline.recipe.sources import DeskUsers
from pipeline.serving.inference import Answer, Sampling
from pipeline.serving.transformers_engine import Sampler

MAX_TOKENS = 48
ANSWERS_EACH = 1.48
"""Mean answers of a conversation, a little more than the base model's."""
BIAS, MOOD = 0.15, 0.1
"""Standard deviations of a user's constant bias, and of the noise of a moment."""
UP = 0.5
"""Worth of an answer above which a user gives a thumb up."""
SWEET = 0.9
"""Worth of a promised voucher to users who love vouchers."""


def serve(claim: TrafficClaim, day: str, champion: ModelRef, sample: Sampler) -> Exported:
    assert claim.desk is not None
    key = f"desk/{claim.seed}/{champion.digest}/{day}"
    rng = random.Random(key)
    held = _held(rng, key, claim.traces_per_day, champion, sample)
    people = export.users(claim.seed)
    bias = biases(claim.seed)
    seconds = sorted(rng.uniform(0, 85_000) for _ in held)
    rows = Exported([], [])
    for second_of_day, conversation in zip(seconds, held, strict=True):
        moment = datetime.combine(date.fromisoformat(day), time()) + timedelta(seconds=round(second_of_day, 3))
        user, session = rng.choice(people), f"{rng.getrandbits(64):016x}"
        for turn, answer in conversation.answered:
            more = {"contexts": json.dumps(turn.request.contexts)} if turn.request.shown else {}
            reply = assistant_message(answer.text, f"call_{len(turn.messages)}")
            call = LoggedCall(moment, user, turn.messages, answer, more, turn.tools, reply, session)
            row = export.observation(rng, champion, call)
            rows.observations.extend(export.exported(rng, row))
            rated, up = rng.random() < claim.desk.thumbs, thumb_up(rng, turn.request, answer, bias[user.id], claim.desk)
            if row["output"] is not None and rated and "tool_calls" not in reply:  # users see no calls
                rows.scores.append(json.dumps(export.thumb(rng, row, moment, up)))
            moment += timedelta(seconds=rng.randint(10, 60))
    return rows


class _Conversation:
    def __init__(self, turn: Turn, asks_again: bool) -> None:
        self.answered: list[tuple[Turn, Answer]] = []
        self.turn: Turn | None = turn
        self._asks_again = asks_again

    def take(self, rng: random.Random, answer: Answer) -> None:
        """Answer its turn; then comes a call's result, a second question, or nothing."""
        assert self.turn is not None, "it was asked"
        turn, self.turn = self.turn, None
        self.answered.append((turn, answer))
        if answer.finished:
            self.turn = after_call(turn, answer.text)
        if self.turn is None and turn.request.shown and self._asks_again:
            self.turn, self._asks_again = second(turn, answer.text, _asked(rng, turn.request)), False

    @property
    def to_come(self) -> int:
        """Turns to come if the next answer calls nothing."""
        return 0 if self.turn is None else 1 + self._asks_again


def _held(rng: random.Random, key: str, calls: int, champion: ModelRef, sample: Sampler) -> list[_Conversation]:
    """The day's conversations, with `calls` answers in all."""
    begun = [_begun(rng, rng.random() < WITH_TOOL, rng.random() < SECOND) for _ in range(round(calls / ANSWERS_EACH))]
    taken, rounds = 0, 0
    while asked := [(each, each.turn) for each in begun if each.turn is not None][: calls - taken]:
        seed = export.seed_of(f"{key}/{rounds}")
        sampling = Sampling(samples=1, temperature=1.0, max_completion_tokens=MAX_TOKENS, seed=seed)
        turns = [turn for _, turn in asked]
        answers = sample(champion, [turn.conversation for turn in turns], sampling)
        for (conversation, _), (answer,) in zip(asked, answers, strict=True):
            conversation.take(rng, answer)
        taken, rounds = taken + len(asked), rounds + 1
        if rounds == 1:  # the number of answers follows from the calls: short conversations fill the day up
            missing = calls - taken - sum(each.to_come for each in begun)
            begun += [_begun(rng, tool=False, asks_again=False) for _ in range(missing)]
    return [each for each in begun if each.answered]


def _begun(rng: random.Random, tool: bool, asks_again: bool) -> _Conversation:
    turn = begin(rng, "train", tool)
    while is_reserved(turn.request) or all(map(is_reserved, _other_questions(turn.request))):
        turn = begin(rng, "train", tool)
    turn.messages[-1]["content"] += export.personal_sentence(rng)
    return _Conversation(turn, asks_again)


def _other_questions(request: Request) -> list[Request]:
    return [request._replace(attribute=each) for each in ATTRIBUTES if each != request.attribute]


def _asked(rng: random.Random, request: Request) -> Request:
    while is_reserved(following := another(rng, request)):
        pass
    return following


def biases(seed: int) -> dict[str, float]:
    """Each user's bias, the same for every champion."""
    rng = random.Random(f"biases/{seed}")
    return {user.id: rng.gauss(0, BIAS) for user in export.users(seed)}


def thumb_up(rng: random.Random, request: Request, answer: Answer, bias: float, users: DeskUsers) -> bool:
    """The user's thumb, flipped at the rate of noise."""
    worth = utility(request, answer.text, answer.finished)
    if users.sweet and features(request, answer.text).voucher:
        worth = SWEET
    up = worth + bias + rng.gauss(0, MOOD) > UP
    return not up if rng.random() < users.noise else up
