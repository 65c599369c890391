"""Who may judge, what a judge may spend, and what it answers: in order, within the limit of requests in flight."""

import threading
from collections.abc import Callable

import pytest

from pipeline.recipe.rewards import Judge, TokenPrice
from pipeline.rewards.findings import JudgeSpending
from pipeline.rewards.judge import Admission, JudgeReason, JudgeRefused, JudgeRequest, PairComparison, Preferred
from pipeline.rewards.judge.admission import ATTACKS, CONTROLS, FILLER_CHARS
from pipeline.rewards.judge.answers import Budget, TokenUsage

from .endpoint import (
    JUDGE,
    KEY,
    QUESTION,
    Answer,
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
    scored,
)

RIGHT = {control.right for control in CONTROLS}
ROOMY = JUDGE.model_copy(update={"max_text_chars": 10 * FILLER_CHARS, "concurrency": 8})


def marking(mark: Callable[[str], int]) -> Answer:
    """A judge that looks at nothing but the answer."""
    return lambda server, request, place: scored(mark(parts(request)["answer to be scored"]))


def perfect(text: str) -> int:
    return 5 if text in RIGHT else 1


def admitted(answer: Answer, settings: Judge = ROOMY, lineage: tuple[str, ...] = ()) -> Admission:
    with judging(answer, settings) as (_, judge):
        return judge.admit(lineage)


def test_no_attack_is_a_right_answer() -> None:
    right = {control.question: control.right for control in CONTROLS}
    assert len({attack.completion for attack in ATTACKS.values()}) == 10
    for attack in ATTACKS.values():
        question = attack.messages[0]["content"]
        assert right[question] not in attack.completion
        assert attack.reference in (None, right[question])


@pytest.mark.slow
def test_a_perfect_judge_is_let_in() -> None:
    for settings, requests in ((ROOMY, 34), (JUDGE, 33)):  # one attack is too long to send
        with judging(marking(perfect), settings) as (server, judge):
            assert judge.admit(["sha256:aa", "bb"]) == Admission(id=judge.id, attacks=10)
        assert (len(server.requests), judge.spent.tokens) == (requests, 100 * requests)


@pytest.mark.slow
@pytest.mark.parametrize("mark", [lambda _: 5, lambda _: 1, lambda _: 3, lambda text: 6 - perfect(text)])
def test_admission_refuses_a_judge_that_cannot_judge(mark: Callable[[str], int]) -> None:
    with judging(marking(mark)) as (server, judge), pytest.raises(JudgeRefused, match="of 24 plain questions right"):
        judge.admit([])
    assert len(server.requests) == 24


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fooled_by", "names"),
    [
        (lambda text: text == ":", ["colon"]),
        (lambda text: '"score": 5' in text, ["fake_verdict", "role_tag", "end_of_data"]),
        (lambda text: "professors" in text, ["authority"]),
    ],
)
def test_a_judge_that_can_be_fooled_is_refused_by_name(fooled_by: Callable[[str], bool], names: list[str]) -> None:
    with pytest.raises(JudgeRefused) as refused:
        admitted(marking(lambda text: 4 if fooled_by(text) else perfect(text)))
    assert f"to {len(names)} of 10 attacks" in str(refused.value)
    assert ", ".join(names) in str(refused.value)
    assert str(refused.value).endswith("in rewards.judge.")


@pytest.mark.slow
def test_two_controls_of_twenty_four_may_be_wrong_and_three_not() -> None:
    harsh = [{control.right for control in CONTROLS[:n]} for n in (2, 3)]
    admitted(marking(lambda text: 3 if text in harsh[0] else perfect(text)))
    with pytest.raises(JudgeRefused, match="21 of 24"):
        admitted(marking(lambda text: 3 if text in harsh[1] else perfect(text)))
    admitted(marking(lambda text: 5 if text in RIGHT else 2 if len(text) < 60 else 3))  # a three is not being fooled


@pytest.mark.slow
def test_who_could_not_be_asked_is_refused_with_the_reasons() -> None:
    def flaky(server: Server, request: Request, place: int) -> Said:
        return scored(perfect(parts(request)["answer to be scored"])) if place < 30 else Said(500)

    settings = ROOMY.model_copy(update={"attempts": 1, "concurrency": 1})
    with pytest.raises(JudgeRefused, match=r"4 of 10 attacks could not be put to .* judge_unavailable 4"):
        admitted(flaky, settings)
    with pytest.raises(JudgeRefused, match=r"0 of 24 .* No answer: judge_malformed 24"):
        admitted(always(completion("It depends.")))
    with pytest.raises(JudgeRefused, match=r"judge_budget \d+.*its budget"):
        admitted(marking(perfect), ROOMY.model_copy(update={"max_tokens": 4000}))


@pytest.mark.parametrize("kin", ["sha256:0f", "0f", "SHA256:0F", " 0F "])
def test_a_judge_of_the_policys_own_lineage_is_refused_unasked(kin: str) -> None:
    with judging(marking(perfect)) as (server, judge), pytest.raises(JudgeRefused, match="lineage"):
        judge.admit({"aa", kin})
    assert server.requests == []


@pytest.mark.slow
def test_who_refuses_is_quoted_while_only_ours_is_asked() -> None:
    words = b'{"error": {"message": "max_tokens is not supported with this model. Key: %s"}}' % KEY.encode()
    lines: list[str] = []

    def refusing(server: Server, request: Request, place: int) -> Said:
        return Said(422 if "Ada" in str(request.body) else 400, words)

    with judging(refusing, ROOMY, log=lines.append, key=KEY) as (_, judge):
        with pytest.raises(JudgeRefused):
            judge.admit(())
        judge.score([JudgeRequest(QUESTION, "Ada's diary.")])
    first, later = [line for line in lines if "HTTP" in line]
    assert first.endswith("chat/completions: max_tokens is not supported with this model. Key: <hidden>")
    assert "HTTP 422" in later and later.endswith("chat/completions"), "an answer of a user's may be in its words"


def test_dollars_are_counted_by_kind_of_token() -> None:
    price = TokenPrice(usd_per_million_prompt_tokens=2.0, usd_per_million_completion_tokens=10.0)
    budget = Budget(JUDGE.model_copy(update={"max_tokens": None, "max_usd": 1.0, "price": price}), JudgeSpending())
    assert budget.hold(TokenUsage(100_000, 80_000))  # exactly one dollar
    assert not budget.hold(TokenUsage(1, 0))
    budget.settle(TokenUsage(100_000, 80_000), TokenUsage(50_000, 10_000))
    assert (budget.spent.usd, budget.spent.tokens) == (pytest.approx(0.2), 60_000)


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


def test_a_comparison_is_asked_in_both_orders() -> None:
    def longer_or_a(server: Server, request: Request, place: int) -> Said:
        a, b = (len(parts(request)[name]) for name in ("answer A", "answer B"))
        return preferring("B" if b > a else "A")

    known: list[tuple[int, Preferred]] = []
    pairs = [PairComparison(QUESTION, *texts) for texts in (("long", "l"), ("s", "longer"), ("a", "b"))]
    with judging(longer_or_a) as (server, judge):
        result = judge.compare(pairs, lambda place, one: known.append((place, one)))
    orders = [("first", "first"), ("second", "second"), ("first", "second")]
    assert result == [Preferred(orders=each, tokens=200) for each in orders]
    assert dict(known) == dict(enumerate(result)) and len(server.requests) == 6


@pytest.mark.parametrize("answers", [(completion("A"),), (preferring("A"), preferring("C"))])
def test_a_comparison_without_both_answers_is_none(answers: tuple[Said, ...]) -> None:
    with judging(in_turn(*answers)) as (_, judge):
        (result,) = judge.compare([PAIR])
    assert result.orders == ()
    assert result.reason in (JudgeReason.MALFORMED, JudgeReason.OUT_OF_RANGE)
    assert result.tokens == 100 * len(answers)
