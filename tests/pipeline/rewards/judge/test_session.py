"""Questions in, judgements out: in order, within the limit of requests in flight, each reported once it is known."""

import asyncio
import threading

import pytest

from pipeline.rewards.judge import Judgement, JudgeReason, PairComparison, Preferred

from .endpoint import (
    JUDGE,
    QUESTION,
    Request,
    Said,
    Server,
    always,
    asked,
    by_number,
    completion,
    in_turn,
    judging,
    parts,
    preferring,
)

ALONE = JUDGE.model_copy(update={"concurrency": 1})
PAIR = PairComparison(QUESTION, "1", "2")


def number(place: int) -> float:
    return place % 5 / 4


@pytest.mark.parametrize("concurrency", [1, 8])
def test_session_keeps_to_the_requests_in_flight(concurrency: int) -> None:
    together = threading.Barrier(concurrency)

    def answer(server: Server, request: Request, place: int) -> Said:
        together.wait(timeout=20)  # nobody is answered before `concurrency` have asked
        return by_number(server, request, place)

    with judging(answer, JUDGE.model_copy(update={"concurrency": concurrency})) as (server, judge):
        judgements = judge.score(asked(concurrency * 3))
    assert server.most_in_flight == concurrency
    assert [judgement.score for judgement in judgements] == [number(place) for place in range(concurrency * 3)]


def test_session_reports_answers_once_in_the_callers_thread() -> None:
    first_may_go = threading.Event()

    def answer(server: Server, request: Request, place: int) -> Said:
        if parts(request)["answer to be scored"] == "0":
            assert first_may_go.wait(20)
        return by_number(server, request, place)

    known: list[tuple[int, Judgement]] = []

    def done(place: int, judgement: Judgement) -> None:
        assert threading.current_thread() is threading.main_thread()
        known.append((place, judgement))
        if len(known) == 9:  # all others are reported while the first one waits
            first_may_go.set()

    with judging(answer) as (_, judge):
        judgements = judge.score(asked(10), done)
    assert [judgement.score for judgement in judgements] == [number(place) for place in range(10)]
    assert known[-1][0] == 0
    assert dict(known) == dict(enumerate(judgements))


def test_it_works_from_within_a_running_loop_and_from_nothing() -> None:
    async def inside() -> list[Judgement]:
        return judge.score(asked(2))

    with judging(by_number) as (_, judge):
        assert [judgement.score for judgement in asyncio.run(inside())] == [0.0, 0.25]
        assert judge.score([]) == [] and judge.compare([]) == []


def test_a_comparison_is_asked_in_both_orders() -> None:
    def longer(server: Server, request: Request, place: int) -> Said:
        sizes = [len(parts(request)[name]) for name in ("answer A", "answer B")]
        return preferring("tie" if sizes[0] == sizes[1] else "A" if sizes[0] > sizes[1] else "B")

    pairs = [PairComparison(QUESTION, *texts) for texts in (("long", "l"), ("s", "longer"), ("a", "b"))]
    with judging(longer) as (server, judge):
        result = judge.compare(pairs)
    assert [(one.winner, one.consistent) for one in result] == [("first", True), ("second", True), ("tie", True)]
    assert len(server.requests) == 6
    assert all(one.tokens == 200 for one in result)


@pytest.mark.parametrize("habit", ["A", "B"])
def test_a_judge_that_prefers_a_place_contradicts_itself(habit: str) -> None:
    known: list[tuple[int, Preferred]] = []
    with judging(always(preferring(habit))) as (_, judge):
        result = judge.compare([PAIR], lambda place, one: known.append((place, one)))
    orders = {"A": ("first", "second"), "B": ("second", "first")}[habit]
    assert result == [Preferred(winner=None, consistent=False, orders=orders, tokens=200, usd=0.0)]
    assert known == [(0, result[0])]
    with judging(in_turn(preferring("tie"), preferring(habit)), ALONE) as (_, judge):
        assert judge.compare([PAIR])[0].consistent is False, "half a tie is a contradiction too"


@pytest.mark.parametrize("answers", [(completion("A"),), (preferring("A"), preferring("C"))])
def test_a_comparison_without_both_answers_is_none(answers: tuple[Said, ...]) -> None:
    with judging(in_turn(*answers)) as (_, judge):
        (result,) = judge.compare([PAIR])
    assert (result.winner, result.consistent) == (None, None)
    assert result.reason in (JudgeReason.MALFORMED, JudgeReason.OUT_OF_RANGE)
    assert result.tokens == 100 * len(answers)
