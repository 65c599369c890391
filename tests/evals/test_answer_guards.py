"""Guards that need no reference: the form that an item asks for, the prompt's language, the price, the time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evals import bundle, erasable, gate
from evals.answer_costs import compare_times
from evals.gate import Verdict
from evals.measurements import BundleRef, Guard
from evals.report import picture, table
from evals.results import EvalArm, EvalSample, ItemCounts, ItemResult
from evals.runner import Respondent
from evals.suites import AnswerFormat, Item, Suite
from pipeline.recipe import Evaluation
from pipeline.removal import make
from pipeline.rewards.verifiers import Outcome, grade
from pipeline.serving.inference import Answer, AnswerRequest, Sampling
from pipeline.storage import ModelRef, Store
from tests.evals.conftest import DECODING

pytestmark = pytest.mark.slow

ENGLISH = "How many apples has Anna left after she has eaten three of them?"
GERMAN = "Wie viele Äpfel hat Anna noch, nachdem sie drei davon gegessen hat?"


class Session:
    """Answers each question with the text that stands beside it, after two seconds."""

    def __init__(self, texts: dict[str, str], engine: str) -> None:
        self.texts, self.decoding = texts, DECODING.model_copy(update={"engine": engine})

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Any) -> None:
        for request in requests:
            text = self.texts[request.messages[-1]["content"]]
            done(Answer(key=request.key, text=text, tokens=8, prompt_tokens=9, stop="stop", latency_s=2.0))


def answered(root: Path, item: Item, text: str, engine: str = "vllm") -> EvalSample:
    session = Session({item.messages[-1]["content"]: text}, engine)
    model = ModelRef(uri="models/m", digest="m")
    asked = Respondent(model, session, lambda tasks: grade(tasks, workers=1), Store(root), print)
    (result,) = asked.run(Suite(name="s", items=(item,)), Sampling(samples=1)).results
    return result.samples[0]


def item_of(prompt: str = ENGLISH, form: AnswerFormat | None = None) -> Item:
    asked = [{"role": "user", "content": prompt}]
    return Item(id="i", cluster="i", messages=asked, reference="7", slice="", format=form)


def test_an_answer_that_is_a_call_is_graded_as_one(tmp_path: Path) -> None:
    wanted = json.dumps([{"name": "refund", "arguments": {"order": "A7", "euro": 40}}])
    item = item_of().model_copy(update={"check": "calls", "reference": wanted})
    right = '<tool_call>\n{"name": "refund", "arguments": {"euro": 40.0, "order": "A7"}}\n</tool_call>'
    answers = (right, right.replace("40.0", '"40"'), "I refund 40 euro.")
    outcomes = [answered(tmp_path / str(n), item, text).outcome for n, text in enumerate(answers)]
    assert outcomes == [Outcome.correct, Outcome.wrong, Outcome.no_answer]


SCHEMA = json.dumps({"type": "object", "required": ["answer"]})


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (AnswerFormat(kind="regex", pattern=r"#### \d+"), "#### 7", True),
        (AnswerFormat(kind="regex", pattern=r"#### \d+"), "It is #### 7", False),
        (AnswerFormat(kind="regex", pattern=r".*#### \d+"), "It is\n#### 7\n", True),
        (AnswerFormat(kind="json_schema", pattern=SCHEMA), '{"answer": 7}', True),
        (AnswerFormat(kind="json_schema", pattern=SCHEMA), '{"other": 7}', False),
        (AnswerFormat(kind="json_schema", pattern=SCHEMA), "no JSON", False),
        (None, "anything", None),
    ],
)
def test_an_answer_has_the_form_that_its_item_asks_for(
    tmp_path: Path, form: AnswerFormat | None, text: str, expected: bool | None
) -> None:
    assert answered(tmp_path, item_of(form=form), text).well_formed is expected


def test_an_answer_in_another_language_has_drifted(tmp_path: Path) -> None:
    assert answered(tmp_path / "one", item_of(), GERMAN).drifted is True
    assert answered(tmp_path / "two", item_of(), ENGLISH).drifted is False


def test_the_time_of_a_batch_is_not_that_of_an_answer(tmp_path: Path) -> None:
    assert answered(tmp_path / "server", item_of(), "#### 7").latency_s == 2.0
    assert answered(tmp_path / "batch", item_of(), "#### 7", "transformers").latency_s is None


def evidence_of(
    kit: Any, section: Evaluation, prompts: Sequence[str] = (), form: AnswerFormat | None = None,
    harmed: int = 0, **fields: Any,
) -> tuple[Suite, EvalArm, EvalArm]:  # fmt: skip
    """200 items; every sample has `fields`, the candidate's of the first `harmed` items those negated."""
    plain = kit.suite(section)
    items = [
        item.model_copy(
            update={
                "format": form,
                "salt": f"{n:032x}",
                "messages": [{"role": "user", "content": prompts[n % len(prompts)]}] if prompts else item.messages,
            }
        )
        for n, item in enumerate(plain.items)
    ]
    suite = plain.model_copy(update={"items": tuple(items)})

    def arm(name: str, skill: float, bad: int) -> EvalArm:
        drawn = kit.arm(name, section, suite, skill)
        results: list[ItemResult] = []
        for place, result in enumerate(drawn.results):
            values = {key: not value for key, value in fields.items()} if place < bad else fields
            samples = tuple(each.model_copy(update=values) for each in result.samples)
            results.append(result.model_copy(update={"samples": samples}))
        return drawn.model_copy(update={"results": tuple(results)})

    return suite, arm("old", 0.4, 0), arm("new", 0.6, harmed)


def guard_of(report: Any, name: str) -> Guard | None:
    return next((each for each in report.measurements[0].comparison.guards if each.name == name), None)


REGEX = AnswerFormat(kind="regex", pattern=r"#### \d+")


@pytest.mark.parametrize(("harmed", "verdict"), [(0, Verdict.PASS), (40, Verdict.FAIL)])
def test_format_gates_where_items_ask_for_a_form(kit: Any, harmed: int, verdict: Verdict) -> None:
    section = kit.section()
    report = kit.report(section, *evidence_of(kit, section, form=REGEX, harmed=harmed, well_formed=True))
    guard = guard_of(report, "format")
    assert guard is not None and guard.rule == "safe" and guard.candidate == harmed / 200
    judged = gate.judge(report, section)
    assert judged.verdict is verdict, judged.reasons
    assert harmed == 0 or any("guard failed: format" in why for why in judged.reasons)


def test_format_is_a_share_of_the_items_that_ask_for_it(kit: Any) -> None:
    section = kit.section()
    suite, champion, candidate = evidence_of(kit, section, form=REGEX, harmed=40, well_formed=True)

    def few(arm: EvalArm) -> EvalArm:
        unasked = [
            result.model_copy(
                update={"samples": tuple(each.model_copy(update={"well_formed": None}) for each in result.samples)}
            )
            for result in arm.results[80:]
        ]
        return arm.model_copy(update={"results": (*arm.results[:80], *unasked)})

    guard = guard_of(kit.report(section, suite, few(champion), few(candidate)), "format")
    assert guard is not None and guard.candidate == 0.5


@pytest.mark.parametrize(
    ("prompts", "rule", "verdict"),
    [((ENGLISH,), "report", Verdict.PASS), ((ENGLISH, GERMAN), "safe", Verdict.FAIL)],
)
def test_language_gates_where_prompts_are_in_several(
    kit: Any, prompts: tuple[str, ...], rule: str, verdict: Verdict
) -> None:
    section = kit.section()
    report = kit.report(section, *evidence_of(kit, section, prompts, harmed=40, drifted=False))
    guard = guard_of(report, "language")
    assert guard is not None and guard.rule == rule and guard.candidate == 0.2
    judged = gate.judge(report, section)
    assert judged.verdict is verdict, judged.reasons
    line = next(line for line in table(report).split("\n") if line.startswith("| in another language"))
    assert ("upper bound" in line) == (rule == "safe")
    assert picture(report).startswith(b"\x89PNG")


PRICE = {"usd_per_million_prompt_tokens": 1.0, "usd_per_million_completion_tokens": 10.0}


@pytest.mark.parametrize(
    ("budget", "verdict"), [(None, Verdict.PASS), (1.0, Verdict.PASS), (3.95e-05, Verdict.PASS), (2e-05, Verdict.FAIL)]
)
def test_the_cost_of_an_answer_keeps_to_its_budget(kit: Any, budget: float | None, verdict: Verdict) -> None:
    section = kit.section(price=PRICE, max_usd_per_answer=budget)
    report = kit.report(section, *evidence_of(kit, section))
    cost = report.measurements[0].comparison.cost
    assert cost.candidate.value == pytest.approx((9 * 1.0 + 3 * 10.0) / 1e6)
    assert cost.ratio.value == 1.0
    judged = gate.judge(report, section)
    assert judged.verdict is verdict, judged.reasons
    assert "| USD for 1,000 answers | 0.039 [0.039, 0.039] |" in table(report)


def test_a_budget_without_a_price_is_refused(kit: Any) -> None:
    with pytest.raises(ValueError, match=r"no price is known\. Set price as well"):
        kit.section(max_usd_per_answer=1.0)


def counts_of(times: Sequence[float]) -> ItemCounts:
    none = dict.fromkeys(("right", "ungraded", "unreadable", "no_answer", "truncated", "refusal", "pii"), 0)
    return ItemCounts(samples=len(times), tokens=1, prompt_tokens=1, token_seconds=tuple(times) or None, **none)


def test_token_times_are_quantiles_with_their_intervals() -> None:
    before = [counts_of([0.01 * (place + 1)]) for place in range(100)]
    after = [counts_of([0.02 * (place + 1)]) for place in range(100)]
    median, tail = compare_times(before, after, [str(place) for place in range(100)], 1)
    assert (median.quantile, tail.quantile) == (0.5, 0.99)
    assert median.champion.value == pytest.approx(0.5) and tail.candidate.value == pytest.approx(1.98)
    assert median.champion.low < 0.45 and median.champion.high > 0.55
    assert (median.ratio.low, median.ratio.value, median.ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert compare_times(before, [counts_of([]) for _ in after], [str(place) for place in range(100)], 1) == ()


def test_erased_answers_keep_what_their_guards_need(kit: Any, tmp_path: Path) -> None:
    section = kit.section(price=PRICE)
    suite, champion, candidate = evidence_of(
        kit, section, (ENGLISH, GERMAN), REGEX, 3, well_formed=True, drifted=False, latency_s=1.5
    )
    gathered = bundle.evidence(
        "i", section, bundle.Gathered((bundle.SuiteEvidence(suite=suite, arms=(champion, candidate)),))
    )
    bundle.publish(Store(tmp_path), "evidence", gathered)
    before = bundle.recompute(tmp_path / "evidence")
    erased = [suite.items[0].id, suite.items[1].id]
    make(bundle.removals(Store(tmp_path), tmp_path / "evidence", erased))
    assert bundle.recompute(tmp_path / "evidence").digest() == before.digest()
    assert before.measurements[0].comparison is not None and before.measurements[0].comparison.token_times


def test_lines_without_the_fields_have_the_digest_they_had(kit: Any, tmp_path: Path) -> None:
    """A bundle of an earlier release: its lines and what is left of one know nothing of form, language and time."""
    sample = EvalSample(text="#### 1", tokens=3, finished=True, outcome=Outcome.correct, answer="1")
    result = ItemResult(id="a", samples=(sample,), prompt_tokens=9)
    assert result.model_dump_json() == (
        '{"id":"a","samples":[{"text":"#### 1","tokens":3,"finished":true,"outcome":"correct","answer":"1",'
        '"defects":[]}],"prompt_tokens":9,"salt":""}'
    )
    path = tmp_path / "champion.jsonl"
    path.write_text(result.model_dump_json() + "\n")
    whole = erasable.digest(path)
    assert whole == "98ec52817905287b5b63672c9375ee2ccf141e7d8c41f3d414b6433088093301"
    assert "format" not in item_of().model_dump_json()
    section = kit.section()
    report = kit.report(section, *evidence_of(kit, section))
    assert report.measurements[0].comparison.model_dump().keys().isdisjoint({"cost", "token_times"})
    assert Evaluation().model_dump().keys().isdisjoint({"price", "max_usd_per_answer"})
    assert gate.judge(report, section).verdict is Verdict.PASS
    assert isinstance(report.bundle, BundleRef)
