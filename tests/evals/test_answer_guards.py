"""What needs no reference: the form that an item asks for, and what an answer costs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evals import gate
from evals.gate import Verdict
from evals.records import EvalArm, EvalSample, Guard, ItemResult
from evals.report import table
from evals.runner import Respondent
from evals.suites import AnswerFormat, Item, Suite
from pipeline.core.storage import ModelRef, Store
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import Answer, AnswerRequest, Sampling
from tests.evals.conftest import DECODING
from tests.grading import grade

pytestmark = pytest.mark.slow

ENGLISH = "How many apples has Anna left after she has eaten three of them?"


class Session:
    """Answers each question with the text that stands beside it, at once."""

    def __init__(self, texts: dict[str, str], engine: str) -> None:
        self.texts, self.decoding = texts, DECODING.model_copy(update={"engine": engine})

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Any) -> None:
        for request in requests:
            text = self.texts[request.messages[-1]["content"]]
            done(Answer(key=request.key, text=text, tokens=8, prompt_tokens=9, stop="stop", latency_s=0.0))


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


def evidence_of(
    kit: Any, section: Evaluation, form: AnswerFormat | None = None, harmed: int = 0, **fields: Any
) -> tuple[Suite, EvalArm, EvalArm]:
    """200 items; every sample has `fields`, the candidate's of the first `harmed` items those negated."""
    plain = kit.suite(section)
    items = [item.model_copy(update={"format": form, "salt": f"{n:032x}"}) for n, item in enumerate(plain.items)]
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


PRICE = {"usd_per_million_prompt_tokens": 1.0, "usd_per_million_completion_tokens": 10.0}


def test_a_report_says_what_an_answer_costs(kit: Any) -> None:
    section = kit.section(price=PRICE)
    report = kit.report(section, *evidence_of(kit, section))
    cost = report.measurements[0].comparison.cost
    assert cost.champion == cost.candidate == pytest.approx((9 * 1.0 + 3 * 10.0) / 1e6)
    assert "| USD for 1,000 answers | 0.039 | 0.039 |" in table(report)
    without = kit.section()
    assert kit.report(without, *evidence_of(kit, without)).measurements[0].comparison.cost is None
