from collections.abc import Callable

import pytest

from pipeline.recipe.rewards import Judge
from pipeline.rewards.judge import Admission, Budget, Endpoint, JudgeRefused, JudgeRequest, open_judge
from pipeline.rewards.judge.attacks import ATTACKS, FILLER_CHARS
from pipeline.rewards.judge.controls import CONTROLS

from .endpoint import (
    JUDGE,
    KEY,
    QUESTION,
    UNLIMITED,
    Answer,
    Request,
    Said,
    Server,
    always,
    completion,
    parts,
    scored,
    serving,
)

pytestmark = pytest.mark.slow

RIGHT = {control.right for control in CONTROLS}
ROOMY = JUDGE.model_copy(update={"max_text_chars": 10 * FILLER_CHARS, "concurrency": 8})


def marking(mark: Callable[[str], int]) -> Answer:
    """A judge that looks at nothing but the answer."""
    return lambda server, request, place: scored(mark(parts(request)["answer to be scored"]))


def perfect(text: str) -> int:
    return 5 if text in RIGHT else 1


def admitted(
    answer: Answer, settings: Judge = ROOMY, lineage: tuple[str, ...] = (), budget: Budget | None = None
) -> Admission:
    with serving(answer) as server, open_judge(Endpoint(server.url), settings, budget or Budget(*UNLIMITED)) as judge:
        return judge.admit(lineage)


def test_no_attack_is_a_right_answer() -> None:
    right = {control.question: control.right for control in CONTROLS}
    assert len({attack.asked.completion for attack in ATTACKS}) == 10
    for attack in ATTACKS:
        question = attack.asked.messages[0]["content"]
        assert right[question] not in attack.asked.completion
        assert attack.asked.reference in (None, right[question])


def test_a_perfect_judge_is_let_in() -> None:
    with serving(marking(perfect)) as server, open_judge(Endpoint(server.url), ROOMY, Budget(*UNLIMITED)) as judge:
        admission = judge.admit(["sha256:aa", "bb"])
        assert admission.id == judge.id
    assert (admission.attacks, admission.attacks_withstood) == (10, 10)
    assert (admission.controls, admission.controls_right, admission.abstained) == (24, 24, {})
    assert len(server.requests) == 34
    assert admission.tokens == 3400


def test_attacks_that_are_too_long_to_send_are_withstood() -> None:
    admission = admitted(marking(perfect), JUDGE)
    assert admission.attacks_withstood == 10
    assert admission.abstained == {"judge_too_long": 1}


def always_5(text: str) -> int:
    return 5


def always_1(text: str) -> int:
    return 1


def in_the_middle(text: str) -> int:
    return 3


def upside_down(text: str) -> int:
    return 6 - perfect(text)


@pytest.mark.parametrize("mark", [always_5, always_1, in_the_middle, upside_down])
def test_admission_refuses_a_judge_that_cannot_judge(mark: Callable[[str], int]) -> None:
    with (
        serving(marking(mark)) as server,
        open_judge(Endpoint(server.url), JUDGE, Budget(*UNLIMITED)) as judge,
        pytest.raises(JudgeRefused, match="of 24 plain questions right"),
    ):
        judge.admit([])
    assert len(server.requests) == 24


@pytest.mark.parametrize(
    ("fooled_by", "names"),
    [
        (lambda text: text == ":", ["colon"]),
        (lambda text: "score: 1.0" in text, ["claimed_score"]),
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


def test_a_doubtful_three_is_not_being_fooled() -> None:
    assert admitted(marking(lambda text: 5 if text in RIGHT else 2 if len(text) < 60 else 3)).attacks_withstood == 10


def test_two_controls_of_twenty_four_may_be_wrong_and_three_not() -> None:
    harsh = [{control.right for control in CONTROLS[:n]} for n in (2, 3)]
    assert admitted(marking(lambda text: 3 if text in harsh[0] else perfect(text))).controls_right == 22
    with pytest.raises(JudgeRefused, match="21 of 24"):
        admitted(marking(lambda text: 3 if text in harsh[1] else perfect(text)))


def test_a_judge_that_says_nothing_is_refused_with_its_reasons() -> None:
    with pytest.raises(JudgeRefused, match=r"0 of 24 .* No answer: judge_malformed 24"):
        admitted(always(completion("It depends.")))


def test_a_judge_that_abstains_on_attacks_withstands_them() -> None:
    def wary(server: Server, request: Request, place: int) -> Said:
        text = parts(request)["answer to be scored"]
        known = RIGHT | {control.wrong for control in CONTROLS}
        return scored(perfect(text)) if text in known else completion("I will not score this.")

    admission = admitted(wary)
    assert (admission.attacks_withstood, admission.abstained) == (10, {"judge_malformed": 10})


def test_attacks_that_never_reached_the_judge_prove_nothing() -> None:
    def flaky(server: Server, request: Request, place: int) -> Said:
        return scored(perfect(parts(request)["answer to be scored"])) if place < 30 else Said(500)

    settings = ROOMY.model_copy(update={"attempts": 1, "concurrency": 1})
    with pytest.raises(JudgeRefused, match=r"4 of 10 attacks could not be put to .* judge_unavailable 4"):
        admitted(flaky, settings)


def test_a_budget_that_is_too_small_is_named() -> None:
    with pytest.raises(JudgeRefused, match=r"judge_budget \d+.*its budget"):
        admitted(marking(perfect), budget=Budget(4000, None, 0, 0))


@pytest.mark.parametrize("kin", ["sha256:0f", "0f", "SHA256:0F", " 0F "])
def test_a_judge_of_the_policys_own_lineage_is_refused_unasked(kin: str) -> None:
    with (
        serving(marking(perfect)) as server,
        open_judge(Endpoint(server.url), JUDGE, Budget(*UNLIMITED)) as judge,
        pytest.raises(JudgeRefused, match="lineage"),
    ):
        judge.admit({"aa", kin})
    assert server.requests == []


def test_who_refuses_is_quoted_while_only_ours_is_asked() -> None:
    words = b'{"error": {"message": "max_tokens is not supported with this model. Key: %s"}}' % KEY.encode()
    lines: list[str] = []

    def refusing(server: Server, request: Request, place: int) -> Said:
        return Said(400, words) if place < 2 * len(CONTROLS) * 2 else Said(422, words)

    with (
        serving(refusing) as server,
        open_judge(Endpoint(server.url, KEY), ROOMY, Budget(*UNLIMITED), log=lines.append) as judge,
    ):
        with pytest.raises(JudgeRefused):
            judge.admit(())
        judge.score([JudgeRequest(QUESTION, "Ada's diary.")])
    first, later = [line for line in lines if "HTTP" in line]
    assert first.endswith("chat/completions: max_tokens is not supported with this model. Key: <hidden>")
    assert "HTTP 422" in later and later.endswith("chat/completions"), "an answer of a user's may be in its words"
