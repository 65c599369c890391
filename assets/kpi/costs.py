"""The bill of one iteration: money of records, or their hours times a price that the recipe names; a price that is
only a default is unknown. The canary's slot is counted from the time that looks cover (least) to the whole rollout
(most)."""

from collections.abc import Iterator
from typing import NamedTuple

from assets.kpi.ledgers import IterationLedgers
from assets.kpi.records import CostLine
from evals.measurements import EvalReport
from k8s.estimate import Range, prices
from pipeline.recipe import Judge, Recipe
from pipeline.recipe.serving import EndpointServing, VllmServing
from pipeline.rewards.findings import JudgeSpending
from pipeline.training.goodput import device_hours

DEVICE_PRICE = "compute.accelerator.usd_per_hour is not in the recipe"
JUDGE_PRICE = "the judge's price is not in the recipe"
ANSWER_PRICE = "evaluation.price is not in the recipe"
SLOT_PRICE = "rollout.slot_usd_per_hour is not in the recipe"
OTHERS_DEVICES = "no record says how many devices the servers of others have"
NO_GRADES = "no look has a judge's grade on its account"
NO_ACCOUNT = "the stage keeps no account of its devices' time"


class PriceList(NamedTuple):
    """What the recipe of now names; None is what it does not name. Of devices: USD an hour of one, lower and higher."""

    device: Range | None
    evaluation_device: Range | None
    evaluation_devices: int
    label_judges: bool
    """Whether all judges of labels have a price."""
    gate_judge: bool
    grades_by_judge: bool
    """Whether a judge grades what a rollout serves."""
    slot: Range | None
    """USD an hour of the canary's slot."""
    own_slots: bool
    """Whether the gateway starts its slots by itself, on one device each."""
    sampling_devices: int | None
    """That fresh samples are drawn on; None of a server that others keep."""


class RolloutCost(NamedTuple):
    """Hours of the canary's slot by the log of a rollout, and what its grades have cost."""

    held_h: float
    watched_h: float
    grades: JudgeSpending


def price_list(recipe: Recipe) -> PriceList:
    compute, pod, traffic = recipe.compute, recipe.compute.evaluation, recipe.rollout.traffic
    named = "accelerator" in compute.model_fields_set and "usd_per_hour" in compute.accelerator.model_fields_set
    device, slot = prices(compute) if named else None, recipe.rollout.slot_usd_per_hour
    own_slots = traffic.kind == "gateway" and traffic.slots is None
    sampling_devices: int | None = 1
    match recipe.samples.serving if recipe.samples is not None else None:
        case VllmServing() as serving:
            sampling_devices = serving.tensor_parallel
        case EndpointServing():
            sampling_devices = None
        case _:
            pass
    return PriceList(
        device=device,
        evaluation_device=device if pod is None or pod.instance_type is None else None,
        evaluation_devices=pod.devices if pod is not None else 1,
        label_judges=_is_priced(recipe.rewards.judge),
        gate_judge=_is_priced(recipe.gate_judge),
        grades_by_judge=recipe.gate_judge is not None,
        slot=Range(low=slot, high=slot) if slot is not None else device if own_slots else None,
        own_slots=own_slots,
        sampling_devices=sampling_devices,
    )


def cost_lines(of: IterationLedgers, price: PriceList, rollout: RolloutCost | None) -> Iterator[CostLine]:
    """Every item that this iteration has cost so far, in the order of a run. `rollout`: None where there was none."""
    if of.labels is not None:
        yield _judge("judges of labels", of.labels.tokens, of.labels.usd, price.label_judges)
    if of.reward_model is not None and of.reward_model.model is not None:
        yield _devices("training of the reward model", of.reward_model.seconds / 3600, price.device)
    if of.samples is not None and of.samples.dataset is not None:
        seconds, devices = of.samples.seconds, price.sampling_devices
        if seconds is None or devices is None:
            yield _unknown("fresh samples", NO_ACCOUNT if seconds is None else OTHERS_DEVICES)
        else:
            yield _devices("fresh samples", devices * seconds / 3600, price.device)
        yield _judge("judges of fresh samples", of.samples.judge_tokens, of.samples.usd, price.label_judges)
    yield from _training(of, price)
    yield from _evaluation(of, price)
    if rollout is not None:
        if rollout.grades.tokens:
            yield _judge("judge of live answers", rollout.grades.tokens, rollout.grades.usd, price.gate_judge)
        elif price.grades_by_judge:
            yield CostLine(name="judge of live answers", usd=None, why=NO_GRADES)
        yield _serving(rollout, price)


def _serving(rollout: RolloutCost, price: PriceList) -> CostLine:
    hours = Range(low=min(rollout.watched_h, rollout.held_h), high=rollout.held_h)
    sure = "" if hours.low == hours.high else "of the looks' time at least; a gateway need not have run in between"
    return CostLine(
        name="serving of the canary",
        usd=None if price.slot is None else hours.times(price.slot),
        why=SLOT_PRICE if price.slot is None else sure,
        device_hours=hours.high if price.own_slots else None,
        why_hours="" if price.own_slots else OTHERS_DEVICES,
    )


def _training(of: IterationLedgers, price: PriceList) -> Iterator[CostLine]:
    if of.trained is None:
        if of.step is not None:  # begun, and its account is drawn at its end
            yield _unknown("training", "the training has not ended")
        return
    if of.account is not None:
        usd = of.account.usd if price.device is not None else None
        why = DEVICE_PRICE if usd is None else "" if of.account.measured else "the whole time of its attempts"
        yield CostLine(name="training", usd=usd, why=why, device_hours=of.account.device_hours)
    elif of.plan is not None:
        hours = device_hours(of.trained.goodput, of.plan.nodes * of.plan.processes)
        yield _devices("training", hours, price.device)
    if of.trained.judge_tokens:
        yield _judge("judge of the training", of.trained.judge_tokens, of.trained.judge_usd, price.label_judges)


def _evaluation(of: IterationLedgers, price: PriceList) -> Iterator[CostLine]:
    if of.report is None and not of.evaluation_attempts:
        return
    open_s = sum(max(0.0, each.closed_at - each.opened_at) for each in of.evaluation_attempts if each.closed_at)
    hours = price.evaluation_devices * open_s / 3600 if of.evaluation_attempts else None
    usd, why = _answers(of.report) if of.report is not None else (None, "the evaluation has not ended")
    if usd is None and hours is not None and price.evaluation_device is not None:
        usd, why = Range(low=hours, high=hours).times(price.evaluation_device), "the whole time of its pods"
    why_hours = "" if hours is not None else NO_ACCOUNT
    yield CostLine(name="answers of the evaluation", usd=usd, why=why, device_hours=hours, why_hours=why_hours)
    if of.judged.tokens or (of.report is not None and of.report.judged):
        yield _judge("judge of the evaluation", of.judged.tokens, of.judged.usd, price.gate_judge)


def _answers(report: EvalReport) -> tuple[Range | None, str]:
    """The answers at their price. The champion's may be those of an earlier gate, which are paid for once."""
    if report.section.price is None:
        return None, ANSWER_PRICE
    low = high = 0.0
    for each in report.measurements:
        if each.comparison is None or each.comparison.cost is None:
            return None, "the report does not say how many tokens were answered"
        answers, cost = each.comparison.items * each.comparison.samples_per_item, each.comparison.cost
        low += answers * cost.candidate
        high += answers * (cost.candidate + cost.champion)
    return Range(low=low, high=high), "the champion's answers may be of an earlier gate" if low < high else ""


def _unknown(name: str, why: str) -> CostLine:
    return CostLine(name=name, usd=None, why=why, device_hours=None, why_hours=why)


def _devices(name: str, hours: float, price: Range | None) -> CostLine:
    if price is None:
        return CostLine(name=name, usd=None, why=DEVICE_PRICE, device_hours=hours)
    return CostLine(name=name, usd=Range(low=hours, high=hours).times(price), device_hours=hours)


def _judge(name: str, tokens: int, usd: float, is_priced: bool) -> CostLine:
    """Of a judge's tokens; without a price the record's 0 says nothing."""
    if tokens and not usd and not is_priced:
        return CostLine(name=name, usd=None, why=f"{tokens:,} tokens, and {JUDGE_PRICE}")
    return CostLine(name=name, usd=Range(low=usd, high=usd))


def _is_priced(judge: Judge | None) -> bool:
    """True without a judge, who then takes nothing."""
    return judge is None or judge.price is not None
