import json
from collections.abc import Callable
from typing import Any

import pytest

from evals.comparison import compare
from evals.records import EvalArm
from evals.report import table
from evals.runner import graded
from evals.suites import Item, Suite
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import Answer
from tests.grading import grade

pytestmark = pytest.mark.slow


def test_items_that_agree_within_their_cluster_count_once(kit: Any) -> None:
    """Each result of 100 items, given again to a second item of its cluster, adds no evidence."""
    few, many = kit.section(items=100), kit.section(items=200)
    single, double = kit.suite(few, items_per_cluster=1), kit.suite(many, items_per_cluster=2)
    alone = [kit.arm(name, few, single, skill) for name, skill in (("old", 0.4), ("new", 0.6))]
    twice = [
        arm.model_copy(
            update={
                "results": tuple(
                    arm.results[i // 2].model_copy(update={"id": item.id}) for i, item in enumerate(double.items)
                ),
                "protocol": arm.protocol.model_copy(update={"suite_digest": double.digest()}),
            }
        )
        for arm in alone
    ]
    once = kit.report(few, single, *alone).measurements[0].comparison
    repeated = kit.report(many, double, *twice).measurements[0].comparison
    assert (once.clusters, repeated.clusters, repeated.items) == (100, 100, 200)
    assert repeated.difference == once.difference
    assert (repeated.champion, repeated.candidate) == (once.champion, once.candidate)


def test_a_slice_whose_few_clusters_agree_is_not_certain(kit: Any) -> None:
    section = kit.section(items=4)
    suite = kit.suite(section)
    arms = [kit.arm(name, section, suite, skill, 0, 0) for name, skill in (("old", 0.0), ("new", 1.0))]
    for row in compare(suite, (arms[0], arms[1]), section, 0.05).slices:
        assert (row.difference.value, row.difference.high) == (1, 1)
        assert row.difference.low < 0


def test_a_failed_check_never_helps_the_candidate(
    kit: Any, good: tuple[Any, ...], with_sample: Callable[..., EvalArm]
) -> None:
    section, suite, old, new = good
    gain = kit.report(section, suite, old, new).measurements[0].comparison.difference.value
    for arms in (
        (with_sample(old, 8, outcome=Outcome.timeout), new),
        (old, with_sample(new, 8, outcome=Outcome.timeout)),
    ):
        assert kit.report(section, suite, *arms).measurements[0].comparison.difference.value < gain
    rise = kit.report(section, suite, old, new).measurements[0].comparison.guards[0].difference.value
    silent = kit.report(section, suite, old, with_sample(new, 8, outcome=Outcome.error)).measurements[0].comparison
    assert silent.guards[0].difference.value > rise


def test_an_answer_that_is_a_call_is_graded_as_one() -> None:
    wanted = json.dumps([{"name": "refund", "arguments": {"order": "A7", "euro": 40}}])
    messages = [{"role": "user", "content": "Refund A7."}]
    item = Item(id="i", cluster="i", messages=messages, reference=wanted, slice="", check="calls")
    right = '<tool_call>\n{"name": "refund", "arguments": {"euro": 40.0, "order": "A7"}}\n</tool_call>'
    texts = (right, right.replace("40.0", '"40"'), "I refund 40 euro.")
    answers = [Answer(key="k", text=text, tokens=8, prompt_tokens=9, stop="stop", latency_s=0.0) for text in texts]
    (result,) = graded(lambda tasks: grade(tasks, workers=1), Suite(name="s", items=(item,)), 3, answers)
    assert [each.outcome for each in result.samples] == [Outcome.correct, Outcome.wrong, Outcome.no_answer]


def test_a_report_says_what_an_answer_costs(kit: Any, good: tuple[Any, ...]) -> None:
    price = {"usd_per_million_prompt_tokens": 1.0, "usd_per_million_completion_tokens": 10.0}
    report = kit.report(kit.section(price=price), *good[1:])
    cost = report.measurements[0].comparison.cost
    assert cost.champion == cost.candidate == pytest.approx((9 * 1.0 + 3 * 10.0) / 1e6)
    assert "| USD for 1,000 answers | 0.039 | 0.039 |" in table(report)
    assert kit.report(*good).measurements[0].comparison.cost is None
