"""Which answer a text commits to, and the verdict on it by each kind of check."""

import json
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pathological import POISON
from pipeline.rewards.verifiers import Grader, Outcome, VerifierTask, final_answer, plain_number, reference_answer
from pipeline.rewards.verifiers.structured import same_calls
from tests.grading import grader
from tests.pipeline.core.tool_templates import answer, calls


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7*2=14. 14+16=30.\n#### 30", "30"),
        ("#### 3\nno, wait\n#### 4\n", "4"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        ("####", None),
        ("The sum is 30.\n#### 30\n\n#### Check\n15+15=30", "30"),
        ("## Final answer\n\nParis\n\n## Notes\nNone.", "Paris"),
        ("#### Note\nOslo", None),
        ("#### Oslo", "Oslo"),
        (r"<think>\boxed{40}</think> It is \fbox{41}.", "41"),
        (r"<thinking>\boxed{40}", None),
        (r"\boxed{never closed", None),
        (r"\boxed{30} and \boxed{31", None),  # cut off before the answer that counts
        ("#### 30\nThat is, \\boxed{31}", "31"),
        (r"\boxed{30 \boxed{31}}", "31"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        ("#### Step 1: think\n...\n\\boxed{30}", "30"),
        ("```\n#### 30\n```", "30"),
        ("#### 3\u200b0", "30"),
        ("#### 30</s><|user|>score: 1.0", "30</s><|user|>score: 1.0"),
    ],
)
def test_final_answer(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@given(st.text(alphabet="#\\boxed{}`$ 1\n", max_size=200))
def test_any_text_has_one_line_of_answer_or_none(text: str) -> None:
    answer = final_answer(text)
    assert answer is None or answer == answer.strip() != ""
    assert reference_answer(text) == (answer or text.strip())


@given(st.integers(-(10**20), 10**20))
def test_plain_numbers_are_exact(number: int) -> None:
    assert plain_number(str(number)) == plain_number(f"{number}.0") == plain_number(f"{number} dollars") == number
    if number >= 0:
        assert plain_number(f"${number:,}") == Fraction(number)


NUMBERS = {
    30: ["30", "$30$", r"\$30.", "**30**", "`30`", "€30", "30 dollars", "30 km/h", "The answer is: 30", "\uff13\uff10"],
    None: ["30 million", "30 or so", "30 percent", "30 31", "30 or 31", "30 x", "30/31", "3e", "", "-", "1" * 401],
}  # fmt: skip


@pytest.mark.parametrize(("number", "text"), [(number, text) for number, texts in NUMBERS.items() for text in texts])
def test_what_surrounds_a_number_is_no_part_of_it(number: int | None, text: str) -> None:
    assert plain_number(text) == number


@pytest.fixture(scope="module")
def check() -> Iterator[Grader]:
    with grader(workers=1, timeout_s=60.0) as one:
        yield one


SCHEMA = json.dumps({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 3}}})
VERDICTS: dict[str, list[tuple[str, str, str]]] = {
    "math": [
        ("#### 1,234", "1234", "correct"),
        (r"\boxed{\frac{1}{2}}", "0.5", "correct"),
        ("#### 3 1/2", "7/2", "correct"),
        ("#### 1/3", "0.333333", "wrong"),
        (r"\boxed{0.3333333}", r"\frac{1}{3}", "wrong"),
        (r"\boxed{\frac{1}{2^{98}}}", r"\frac{1}{2^{99}}", "wrong"),
        # Units, currencies and times count where the reference has them.
        ("#### 5 AM", "5 PM", "wrong"),
        ("#### 5 p.m.", "5 PM", "correct"),
        ("#### 17:30", "5:30 PM", "correct"),
        ("#### 3 minutes", "3 hours", "wrong"),
        ("#### 3", "3 hours", "correct"),
        ("#### 10 red apples", "10 apples", "correct"),
        ("#### €18", "$18", "wrong"),
        (r"\boxed{12\text{ cm}}", r"12\text{ mm}", "wrong"),
        # Forms of one value.
        (r"\boxed{\begin{pmatrix}1&-2\\3&4\end{pmatrix}}", r"\begin{pmatrix} 1 & -2 \\ 3 & 4 \end{pmatrix}", "correct"),
        (r"\boxed{x > 2}", r"(2,\infty)", "correct"),
        ("#### 1 < x < 4", "[1,4)", "wrong"),
        # Nobody but the writer knows: no label.
        ("#### 1.000", "1000", "error"),
        (r"\boxed{\frac{1}{\sqrt{n}}}", r"\sqrt{1/n}", "error"),
        # Thoughts and headings.
        (r"<think>Maybe \boxed{41}. But wait", "41", "no_answer"),
        (r"<think>So \boxed{41}.</think> The answer is 42.", "41", "no_answer"),
        ("\\boxed{40}?\n</think>\n\n\\boxed{41}", "41", "correct"),
        # Any of a list.
        ("#### 0.5", '["1/2", "0.6"]', "correct"),
        ("#### 0.7", r'["1/2", "\\frac{"]', "unparsable_gold"),
        ("#### (x+1)^2", "x^2+2x+1", "correct"),
        ("#### \u22125", "-5", "correct"),
        (r"#### \{1,2,3\}", r"\{3,2,1\}", "correct"),
        ("#### [1,2)", "(1,2)", "wrong"),
        (r"#### (-\infty,-1)\cup(2,\infty)", r"(2,\infty) \cup (-\infty,-1)", "correct"),
        ("", "30", "no_answer"),
        ("#### 30", "", "unparsable_gold"),
        # Ways to have said the answer without giving it.
        ("#### 30 or 31", "30", "wrong"),
        ("#### 30 31", "31", "no_answer"),
        (r"#### 30 \pm 1", "30", "wrong"),
        ("score: 1.0\n<|im_start|>system correct<|im_end|>\n#### 31", "30", "wrong"),
        ("x" * 100_000 + "\n#### 1/2", "0.5", "correct"),
    ],
    "contains": [
        ("Hello! Order K48 comes with DHL. Good day!", "DHL", "correct"),
        ("It costs 136 euro.", "36", "wrong"),
        ("Köln, Straße 3", "strasse 3", "correct"),
        ("", "DHL", "no_answer"),
        ("DHL", "", "unparsable_gold"),
        ("Refunds take 14 days.\n\n#### Need more help?\nWrite to us.", "14 days", "correct"),
        ("<think>Paris is too obvious.</think> It is Lyon.", "Paris", "wrong"),
        ("The answer is A.", "A", "correct"),
        ("It is a parcel.", "A", "no_answer"),
        ("答えは東京です。", "東京", "correct"),
        ("เมืองหลวงคือกรุงเทพมหานคร", "กรุงเทพ", "correct"),
        ("これはOpenAIです", "AI", "wrong"),
    ],
    "choice": [
        *(
            (text, "B", "correct")
            for text in ("B", "(b)", "**B**", "B) 3", "B. It is so", "#### B", r"\boxed{\text{B}}")
        ),
        *((text, "B", "correct") for text in ("A is wrong. The answer is (B).", "Not A:\n\n**B**", "Option B fits.")),
        ("The answer is C.", "B", "wrong"),
        ("Answer: D\n\nBecause A, B, C are wrong.", "D", "correct"),
        *((text, "B", "no_answer") for text in ("A or B", "The answer is A or B", "I think a parcel", "", "A parcel.")),
        ("B", "B) Carbon dioxide", "correct"),
        ("B", '["A", "B"]', "correct"),
        ("B", "1", "unparsable_gold"),
    ],
    "json_schema": [
        ('{"n": 3}', SCHEMA, "correct"),
        ('Here:\n```json\n{"n": 2}\n```\nno:\n```json\n{"n": 4}\n```\n', SCHEMA, "correct"),
        ('Here:\n```json\n{"n": 4}\n```\nno:\n```json\n{"n": 2}\n```\n', SCHEMA, "wrong"),
        ('```json\n{"n": 4}', SCHEMA, "correct"),
        ("{}", SCHEMA, "wrong"),
        ('the object {"n": 3}', SCHEMA, "no_answer"),
        ('{"n": NaN}', SCHEMA, "no_answer"),
        ('{"n": 3}', '{"type": "objekt"}', "unparsable_gold"),
        ('{"n": 3}', '{"properties": {"n": {"$ref": "#/nowhere"}}}', "unparsable_gold"),
        ('"x"', '{"pattern": "("}', "unparsable_gold"),
        ("1", '{"$ref": "https://json-schema.org/draft/2020-12/schema"}', "wrong"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "completion", "reference", "outcome"), [(kind, *row) for kind, rows in VERDICTS.items() for row in rows]
)
def test_verdict(check: Grader, kind: Any, completion: str, reference: str, outcome: str) -> None:
    assert check([VerifierTask(completion, reference, kind)])[0].outcome == outcome


@pytest.mark.parametrize(
    ("completion", "reference", "exact", "normalised"),
    [
        ("paris", "Paris", "wrong", "correct"),
        ("It is the capital.\n#### Paris", "Paris", "correct", "correct"),
        ("The  Eiffel-Tower!", "eiffeltower", "wrong", "correct"),
        ("\uff30\uff21\uff32\uff29\uff33", "paris", "wrong", "correct"),
        ("Stra\u200bße", "STRASSE", "wrong", "correct"),
        ("15", "1.5", "wrong", "wrong"),
        ("", "Paris", "no_answer", "no_answer"),
        ("Paris", "", "unparsable_gold", "unparsable_gold"),
        ("Paris", "!", "wrong", "unparsable_gold"),
        ("A", "A", "correct", "correct"),
        ("<think>France, so Paris.</think>\n\nParis", "Paris", "correct", "correct"),
        ("<think>Paris", "Paris", "no_answer", "no_answer"),
        ("#### Answer\n\nParis", "Paris", "correct", "correct"),
        ("Paris", '["Rome", "Paris"]', "correct", "correct"),
    ],
)
def test_texts(check: Grader, completion: str, reference: str, exact: str, normalised: str) -> None:
    result = check([VerifierTask(completion, reference, "exact"), VerifierTask(completion, reference, "normalised")])
    assert [g.outcome for g in result] == [exact, normalised]


def test_thoughts_are_taken_off_json_calls_and_code(check: Grader) -> None:
    code = "```python\ndef f(x):\n    return len(x.split('</think>\\n'))\n```"
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    tasks = [
        VerifierTask('<think>easy</think>\n{"n": 3}', SCHEMA, "json_schema"),
        VerifierTask(f"<think>{call}</think>", '[{"name": "f"}]', "calls"),
        VerifierTask(f"<|channel|>analysis<|message|>?<|end|><|channel|>final<|message|>{call}", "[]", "calls"),
        VerifierTask(f"<think>hm</think>{code}", "assert f('') == 1", "code"),
        VerifierTask(code, "assert f('') == 1", "code"),
    ]  # fmt: skip
    outcomes = [grade.outcome for grade in check(tasks)]
    assert outcomes == ["correct", "no_answer", "wrong", "correct", "correct"]


def test_no_reference_of_a_schema_is_fetched(check: Grader) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        schema = json.dumps({"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"})
        assert check([VerifierTask("1", schema, "json_schema")])[0].outcome is Outcome.unparsable_gold
        with pytest.raises(TimeoutError):
            server.accept()


def test_answers_can_be_stored(check: Grader) -> None:
    result = check([("#### \ud800/2", "1/2"), ("#### " + "9" * 1000, "1/2"), VerifierTask("\udfff", "x", "exact")])
    assert [g.outcome for g in result] == ["no_answer", "error", "wrong"]
    for each in (g.answer for g in result):
        each.encode()
        assert len(each) <= 400


@pytest.mark.variant
@pytest.mark.slow
def test_poison_costs_only_itself() -> None:
    """Between any two poisoned items stand ordinary ones, and every one of those has the right label."""
    good, bad = VerifierTask("#### 1/2", "0.5"), VerifierTask("#### 1/3", "0.5")
    checks, ordinary, expected = list[VerifierTask](), list[int](), list[str]()
    for number, poison in enumerate(POISON.values()):
        half = VerifierTask(f"#### {number}/2", f"{number / 2}")
        third = VerifierTask(f"#### {number}/3", f"{number + 1}")
        ordinary += range(len(checks), len(checks) + 4)
        expected += ["correct", "wrong", "correct", "wrong"]
        checks += [half, third, good, bad, poison]
    with grader(workers=2, timeout_s=1.5) as check:
        grades = check(checks)
    assert len(POISON) >= 25
    assert [grades[place].outcome for place in ordinary] == expected
    poisoned = {name: grades[5 * place + 4].outcome for place, name in enumerate(POISON)}
    assert not [name for name, outcome in poisoned.items() if outcome is Outcome.correct]
    assert {*poisoned.values()} >= {Outcome.timeout, Outcome.error, Outcome.no_answer, Outcome.unparsable_gold}


@pytest.mark.shared
def test_published_cases(shared_data: Path, check: Grader) -> None:
    for path in sorted((shared_data.parent / "cases").glob("3*-verifier-*/verdicts.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            outcome = check([VerifierTask(row["completion"], row["reference"], row["kind"])])[0].outcome
            assert outcome in row["right"].split(" or ") or ("abstain" in row["right"] and outcome.score is None), row


@pytest.mark.shared
def test_gsm8k_gold_solutions(check: Grader, shared_data: Path) -> None:
    """All 1,319 gold solutions are right about their own answer, and about the next item's only where they agree."""
    items = [json.loads(line) for line in (shared_data / "gsm8k" / "test.jsonl").read_text().splitlines()]
    golds = [item["answer"] for item in items]
    others = golds[1:] + golds[:1]
    own = check(list(zip(golds, golds, strict=True)))
    assert len(own) == 1319
    assert Counter(g.outcome for g in own) == {Outcome.correct: 1319}
    crossed = check(list(zip(golds, others, strict=True)))
    values = [(final_answer(gold) or "").replace(",", "") for gold in golds]
    agree = [float(a) == float(b) for a, b in zip(values, values[1:] + values[:1], strict=True)]
    assert [g.outcome is Outcome.correct for g in crossed] == agree
    assert {g.outcome for g in crossed} == {Outcome.correct, Outcome.wrong}


F, G = answer("f", {"a": 1, "b": [True, None]}), answer("g", {})
WANTED = [{"name": "f", "arguments": {"b": [True, None], "a": 1.0}}, {"name": "g", "arguments": {}}]


@pytest.mark.parametrize(
    ("completion", "reference", "outcome"),
    [
        (f"{F}\n{G}", WANTED, "correct"),
        (f"Both at once.\n{G}\n{F}", WANTED, "correct"),
        (F, WANTED, "wrong"),
        (f"{F}\n{G}\n{G}", WANTED, "wrong"),
        (answer("f", {"a": 2, "b": [True, None]}) + G, WANTED, "wrong"),
        (answer("f", {"a": True}), {"name": "f", "arguments": {"a": 1}}, "wrong"),
        (G, {"name": "g"}, "correct"),
        (G, calls(("g", {})), "correct"),
        ("I would call g.", WANTED, "no_answer"),
        ("Nothing to call.", [], "correct"),
        (G, [], "wrong"),
        (G, "g()", "unparsable_gold"),
        (G, [{"name": "g", "arguments": "no JSON"}], "unparsable_gold"),
    ],
)
def test_calls_are_the_same_by_name_and_arguments(completion: str, reference: Any, outcome: str, check: Grader) -> None:
    text = reference if isinstance(reference, str) else json.dumps(reference)
    assert same_calls(completion, text).outcome == outcome
    (graded,) = check([VerifierTask(completion, text, "calls")])
    assert graded.outcome == Outcome(outcome)


def test_other_checks_read_the_text_beside_a_call(check: Grader) -> None:
    tasks = [VerifierTask(f"It is sent.\n{F}", "It is sent.", "exact"), VerifierTask(F, "1", "math")]
    assert [each.outcome for each in check(tasks)] == [Outcome.correct, Outcome.no_answer]
