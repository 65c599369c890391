"""The bill: what is on record times what the recipe names, and a reason where one of the two is missing."""

from pathlib import Path

import pytest

from assets.costs import ANSWER_PRICE, DEVICE_PRICE, NO_ACCOUNT, NO_GRADES, OTHERS_DEVICES, SLOT_PRICE, Bill, CostLine
from assets.kpi import IterationView, read_kpi
from evals.judged import JudgementLine, spent_on
from k8s.attempts import LaunchAttempt, ledger
from k8s.hours import Range
from pipeline.core import layout
from pipeline.core.journal import open_journal
from pipeline.recipe import load
from pipeline.rewards.findings import FindingLine, journal
from pipeline.rollout.record import read_events
from pipeline.selection.draw import FreshSamples
from pipeline.training.result import TrainingResult
from tests.assets.laid import DEVICES, EMBEDDED, HOURS, NOWHERE, Laid, recipe_of, report_of
from tests.pipeline.rollout.conftest import NAME

JUDGE = "rewards.judge={model: m, digest: d, rubric: r}"
SUITES = (
    "evaluation.suites=[{kind: items, name: arithmetic, role: target, preset: arithmetic},"
    " {kind: judged, name: preference, over: arithmetic, role: report}]"
)
PRICED = "rewards.judge={model: m, digest: d, rubric: r, price: {}}"


@pytest.fixture
def laid(tmp_path: Path) -> Laid:
    return Laid(tmp_path / "data")


def only(laid: Laid, *overrides: str) -> IterationView:
    (one,) = read_kpi(laid.store, recipe_of(laid.store.root, *overrides)).iterations
    return one


def line(one: IterationView, name: str) -> CostLine:
    (found,) = [each for each in one.costs if each.name == name]
    return found


def test_hours_cost_what_the_recipe_names(laid: Laid) -> None:
    laid.until_verdict()
    training = line(only(laid, "compute.accelerator.usd_per_hour=3"), "training")
    assert training.device_hours == pytest.approx(HOURS * DEVICES), "all but the waiting"
    assert training.usd == Range(low=3 * training.device_hours, high=3 * training.device_hours)
    assert line(only(laid, "compute.accelerator.usd_per_hour=0"), "training").usd == Range(low=0.0, high=0.0)


def test_a_price_that_nobody_named_is_unknown_and_not_nothing(laid: Laid, tmp_path: Path) -> None:
    laid.until_verdict()
    recipe = recipe_of(laid.store.root).model_copy(update={"compute": load(EMBEDDED).compute.model_validate({})})
    (one,) = read_kpi(laid.store, recipe).iterations
    training = line(one, "training")
    assert (training.usd, training.why) == (None, DEVICE_PRICE)
    assert training.device_hours == pytest.approx(HOURS * DEVICES), "hours are hours at any price"
    assert f"training: {DEVICE_PRICE}" in one.bill.unknown
    without = "compute.accelerator={name: H200, usd_per_hour: 5}"
    assert line(only(laid, without), "training").usd is None, "of a device that was not there: no step has an MFU"


def test_the_launchers_account_stands_where_there_is_one(laid: Laid) -> None:
    iteration = laid.until_verdict()
    result = laid.store.read(iteration.path(layout.RESULT), TrainingResult)
    attempt = LaunchAttempt(attempt=1, name="n", opened_at=0.0, closed_at=7200.0)
    compute = recipe_of(laid.store.root, "compute.accelerator.usd_per_hour=2").compute
    laid.store.write(iteration.path(layout.LEDGER), ledger([attempt], result, compute, devices=8))
    training = line(only(laid, "compute.accelerator.usd_per_hour=2"), "training")
    assert training.device_hours == pytest.approx(HOURS * 8) and training.usd == Range(low=8.0, high=8.0)


def test_tokens_without_a_price_are_an_unknown_sum(laid: Laid) -> None:
    laid.label(laid.begin(), tokens=5_000, usd=0.0)
    unpriced = line(only(laid, JUDGE), "judges of labels")
    assert unpriced.usd is None and unpriced.why.startswith("5,000 tokens, and ")
    assert line(only(laid, PRICED), "judges of labels").usd == Range(low=0.0, high=0.0)
    laid.label(laid.begin(), tokens=5_000, usd=1.25)
    assert line(only(laid, JUDGE), "judges of labels").usd == Range(low=1.25, high=1.25)


def test_answers_of_an_evaluation_have_their_price(laid: Laid) -> None:
    laid.until_verdict()
    answers = line(only(laid), "answers of the evaluation")
    assert (answers.usd, answers.why, answers.device_hours) == (None, f"{ANSWER_PRICE}; {NO_ACCOUNT}", None)
    price = {"usd_per_million_prompt_tokens": 10.0, "usd_per_million_completion_tokens": 100.0}
    iteration = laid.begin("priced")
    laid.store.write(iteration.path(layout.EVAL_REPORT), report_of_price(**price))
    priced = [
        each for each in read_kpi(laid.store, recipe_of(laid.store.root)).iterations if each.iteration == iteration.id
    ]
    usd = line(priced[0], "answers of the evaluation").usd
    of_one = 200 * 4 * (9 * 10 + 3 * 100) / 1e6  # items, samples, tokens of Kit's answers
    assert usd is not None and usd.low == pytest.approx(of_one) and usd.high == pytest.approx(2 * of_one)


def report_of_price(**price: float):
    """Not kept: a dictionary is no key of a cache."""
    return report_of.__wrapped__(price=price)


def test_the_pods_of_an_evaluation_are_counted(laid: Laid) -> None:
    iteration = laid.until_verdict()
    attempt = LaunchAttempt(attempt=1, name="n", opened_at=100.0, closed_at=1900.0)
    laid.store.write(iteration.path(layout.EVAL_ATTEMPTS, "attempt-001.json"), attempt)
    answers = line(only(laid, "compute.accelerator.usd_per_hour=4"), "answers of the evaluation")
    assert answers.device_hours == 0.5 and answers.usd == Range(low=2.0, high=2.0)


def test_the_gates_judge_is_booked_to_its_iteration(laid: Laid) -> None:
    iteration = laid.until_verdict()
    with open_journal(laid.store.path(layout.JUDGEMENTS, "j", "pairs.jsonl"), JudgementLine) as journal:
        for id, usd in ((iteration.id, 0.5), (iteration.id, 0.25), ("another", 9.0)):
            item = "i" if id == iteration.id else iteration.id  # which does not make it this iteration's
            journal.add(JudgementLine(key=f"k{usd}", iteration=id, owner=item, tokens=10, usd=usd))
    path = laid.store.path(layout.JUDGEMENTS, "j", "pairs.jsonl")
    path.write_bytes(path.read_bytes() + b'{"key": "torn by a kill", "iteration": "' + iteration.id.encode() + b'"')
    torn = path.read_bytes()
    assert (spent_on(laid.store, iteration.id).tokens, spent_on(laid.store, iteration.id).usd) == (20, 0.75)
    assert path.read_bytes() == torn, "a reader mends nothing"
    assert line(only(laid), "judge of the evaluation").usd == Range(low=0.75, high=0.75)


def test_a_rollout_is_served_by_somebody(laid: Laid) -> None:
    """Its slot is held from its first weight to the promotion; whose devices others serve from, and for how much, is
    for the recipe to say."""
    laid.roll_out()
    events = read_events(laid.store, NAME)
    first, last = (next(each.at for each in events if each.phase == phase) for phase in ("shifting", "promoted"))
    hours = (last - first) / 3600
    shared = line(only(laid, "compute.accelerator.usd_per_hour=3"), "serving of the canary")
    assert shared.device_hours == 0, "an adapter on the champion's server"
    merged = "rollout.traffic.arms=merged"
    own = line(only(laid, "compute.accelerator.usd_per_hour=3", merged), "serving of the canary")
    assert own.usd is not None and 0 < own.usd.low == own.usd.high == pytest.approx(3 * hours)
    assert own.device_hours == pytest.approx(hours)
    slots = "rollout.traffic.slots=['http://a/v1', 'http://b/v1']"
    one = only(laid, slots)
    assert f"serving of the canary: {SLOT_PRICE}; {OTHERS_DEVICES}" in one.bill.unknown
    priced = line(only(laid, slots, "rollout.slot_usd_per_hour=8"), "serving of the canary")
    assert priced.usd is not None and priced.usd.high == pytest.approx(8 * hours)


def test_grades_of_live_answers_are_on_account(laid: Laid) -> None:
    laid.roll_out()
    rollout = read_events(laid.store, NAME)[0].rollout
    assert f"judge of live answers: {NO_GRADES}" in only(laid, JUDGE, SUITES).bill.unknown
    for paid_for, usd in ((rollout, 0.5), (rollout, 0.25), ("another", 9.0)):
        journal(laid.store, paid_for).add(FindingLine(key="", source="judge", account=paid_for, tokens=10, usd=usd))
    assert line(only(laid), "judge of live answers").usd == Range(low=0.75, high=0.75)


def test_fresh_samples_cost_their_devices_time(laid: Laid) -> None:
    iteration = laid.until_verdict()
    fresh = FreshSamples(iteration=iteration.id, dataset=NOWHERE, prompts=1, seconds=1800.0)
    laid.store.write(iteration.path(layout.FRESH), fresh)
    section = "samples={prompts: 512, per_prompt: 8}"
    samples = line(only(laid, section, "compute.accelerator.usd_per_hour=4"), "fresh samples")
    assert samples.device_hours == 0.5 and samples.usd == Range(low=2.0, high=2.0)
    laid.store.write(iteration.path(layout.FRESH), fresh.model_copy(update={"seconds": None}))
    assert line(only(laid, section), "fresh samples").why == NO_ACCOUNT


def test_a_hundredth_costs_its_part_of_the_bill() -> None:
    bill = Bill([CostLine(name="training", usd=Range(low=10.0, high=20.0))])
    assert bill.for_hundredth(0.1) == Range(low=1.0, high=2.0)
    assert bill.for_hundredth(0.0) is bill.for_hundredth(-0.1) is bill.for_hundredth(None) is None
