"""The bill of one iteration: money of records, or their hours times a price that the recipe of now names; a price that
is only a default is unknown. The canary's slot is counted from its first weight to the rollout's end."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from assets.records import IterationRecords
from evals.records import EvalReport
from k8s.estimate import prices
from k8s.hours import Range
from pipeline.core.storage import Record
from pipeline.recipe import Judge, Recipe
from pipeline.recipe.rollout import GatewayTraffic
from pipeline.recipe.serving import EndpointServing, VllmServing
from pipeline.serving.adapters import unservable_recipe
from pipeline.training.account import device_hours
from pipeline.views.rollout import RolloutFigures

DEVICE_PRICE = "compute.accelerator has no price of the devices that it ran on"
JUDGE_PRICE = "the judge's price is not in the recipe"
ANSWER_PRICE = "evaluation.price is not in the recipe"
SLOT_PRICE = "rollout.slot_usd_per_hour is not in the recipe"
OTHERS_DEVICES = "no record says how many devices the servers of others have"
NO_GRADES = "no look has a judge's grade on its account"
NO_ACCOUNT = "the stage keeps no account of its devices' time"


class CostLine(Record):
    """One thing that was paid for. What is None is unknown, and `why` says why."""

    name: str
    usd: Range | None
    device_hours: float | None = 0.0
    """Of our own devices; 0 for what others run."""
    why: str = ""


class Bill(NamedTuple):
    """What is known of these lines; a sum that lacks a part is shown as at least."""

    lines: Sequence[CostLine]

    @property
    def usd(self) -> Range:
        priced = [line.usd for line in self.lines if line.usd is not None]
        return Range(low=sum(each.low for each in priced), high=sum(each.high for each in priced))

    @property
    def device_hours(self) -> float:
        return sum(line.device_hours or 0.0 for line in self.lines)

    @property
    def unknown(self) -> list[str]:
        """What is missing, the same reason once for all lines of a name."""
        missing = [line for line in self.lines if line.usd is None or line.device_hours is None]
        return list(dict.fromkeys(f"{line.name}: {line.why}" for line in missing))

    @property
    def dollars(self) -> str:
        return f"{'≥ ' if any(line.usd is None for line in self.lines) else ''}{self.usd}"

    @property
    def hours(self) -> str:
        return f"{'≥ ' if any(line.device_hours is None for line in self.lines) else ''}{self.device_hours:,.2f}"

    def for_hundredth(self, gain: float | None) -> Range | None:
        """USD for each +0.01 of `gain`, a difference of shares; None where nothing was gained."""
        if gain is None or gain <= 0:
            return None
        return Range(low=self.usd.low * 0.01 / gain, high=self.usd.high * 0.01 / gain)


def device_price(recipe: Recipe, of: IterationRecords) -> Range | None:
    """USD an hour of one device; None where the recipe does not name it, or the training had none."""
    compute, trained = recipe.compute, of.trained if of.account is None and recipe.training.engine == "trl" else None
    if trained is not None and compute.accelerator.name != "CPU" and not any("mfu" in row for row in trained.metrics):
        return None  # on a CPU TRL's steps have no MFU
    named = "accelerator" in compute.model_fields_set and "usd_per_hour" in compute.accelerator.model_fields_set
    return prices(compute) if named else None


def cost_lines(of: IterationRecords, recipe: Recipe, rollout: RolloutFigures | None) -> Iterator[CostLine]:
    """Every item that this iteration has cost so far, in the order of a run. `rollout`: None where there was none."""
    device, judge = device_price(recipe, of), recipe.rewards.judge
    if of.labels is not None:
        yield _judge("judges of labels", of.labels.tokens, of.labels.usd, judge)
    if of.reward_model is not None and of.reward_model.model is not None:
        yield _devices("training of the reward model", of.reward_model.seconds / 3600, device)
    if of.samples is not None and of.samples.dataset is not None:
        yield _samples(of.samples.seconds, recipe, device)
        yield _judge("judges of fresh samples", of.samples.judge_tokens, of.samples.usd, judge)
    yield from _training(of, recipe, device)
    yield from _evaluation(of, recipe, device)
    if rollout is not None:
        if rollout.grades.tokens:
            yield _judge("judge of live answers", rollout.grades.tokens, rollout.grades.usd, recipe.gate_judge)
        elif recipe.gate_judge is not None:
            yield CostLine(name="judge of live answers", usd=None, why=NO_GRADES)
        yield _serving(rollout, recipe, device)


def _samples(seconds: float | None, recipe: Recipe, device: Range | None) -> CostLine:
    serving = recipe.samples.serving if recipe.samples is not None else None
    if seconds is None or isinstance(serving, EndpointServing):
        return _unknown("fresh samples", NO_ACCOUNT if seconds is None else OTHERS_DEVICES)
    devices = serving.tensor_parallel if isinstance(serving, VllmServing) else 1
    return _devices("fresh samples", devices * seconds / 3600, device)


def _training(of: IterationRecords, recipe: Recipe, device: Range | None) -> Iterator[CostLine]:
    if of.trained is None:
        if of.step is not None:  # begun, and its account is drawn at the end
            yield _unknown("training", "the training has not ended")
        return
    if of.account is not None:
        usd = of.account.usd if device is not None else None
        why = DEVICE_PRICE if usd is None else "" if of.account.measured else "the whole time of its attempts"
        yield CostLine(name="training", usd=usd, device_hours=of.account.device_hours, why=why)
    elif of.plan is not None:
        yield _devices("training", device_hours(of.trained.goodput, of.plan.nodes * of.plan.processes), device)
    if of.trained.judge_tokens:
        yield _judge("judge of the training", of.trained.judge_tokens, of.trained.judge_usd, recipe.rewards.judge)


def _evaluation(of: IterationRecords, recipe: Recipe, device: Range | None) -> Iterator[CostLine]:
    if of.report is None and not of.evaluation_attempts:
        return
    pod, hours = recipe.compute.evaluation, None
    if of.evaluation_attempts:
        open_s = sum(max(0.0, each.closed_at - each.opened_at) for each in of.evaluation_attempts if each.closed_at)
        hours = (pod.devices if pod is not None else 1) * open_s / 3600
    usd, why = _answers(of.report) if of.report is not None else (None, "the evaluation has not ended")
    if usd is None and hours is not None and device is not None and (pod is None or pod.instance_type is None):
        usd, why = Range(low=hours, high=hours).times(device), "the whole time of its pods"
    why = "; ".join(filter(None, [why, NO_ACCOUNT if hours is None else ""]))
    yield CostLine(name="answers of the evaluation", usd=usd, device_hours=hours, why=why)
    if of.judged.tokens or (of.report is not None and of.report.judged):
        yield _judge("judge of the evaluation", of.judged.tokens, of.judged.usd, recipe.gate_judge)


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


def _serving(rollout: RolloutFigures, recipe: Recipe, device: Range | None) -> CostLine:
    """The gateway's own slots are on one device each, but for an adapter on the champion's; of others' the recipe has
    to name the price."""
    traffic, named = recipe.rollout.traffic, recipe.rollout.slot_usd_per_hour
    own = isinstance(traffic, GatewayTraffic) and not traffic.slots
    shared = isinstance(traffic, GatewayTraffic) and traffic.arms == "adapters"
    if own and shared and not unservable_recipe(recipe.training.lora):
        return CostLine(name="serving of the canary", usd=Range(low=0.0, high=0.0), device_hours=0.0, why="")
    price = Range(low=named, high=named) if named is not None else device if own else None
    hours, lacks = Range(low=rollout.held_h, high=rollout.held_h), [SLOT_PRICE] if price is None else []
    return CostLine(
        name="serving of the canary",
        usd=None if price is None else hours.times(price),
        device_hours=rollout.held_h if own else None,
        why="; ".join(lacks if own else [*lacks, OTHERS_DEVICES]),
    )


def _unknown(name: str, why: str) -> CostLine:
    return CostLine(name=name, usd=None, device_hours=None, why=why)


def _devices(name: str, hours: float, price: Range | None) -> CostLine:
    usd = None if price is None else Range(low=hours, high=hours).times(price)
    return CostLine(name=name, usd=usd, device_hours=hours, why="" if price is not None else DEVICE_PRICE)


def _judge(name: str, tokens: int, usd: float, judge: Judge | None) -> CostLine:
    """Of a judge's tokens; without a price the record's 0 says nothing."""
    if tokens and not usd and judge is not None and judge.price is None:
        return CostLine(name=name, usd=None, why=f"{tokens:,} tokens, and {JUDGE_PRICE}")
    return CostLine(name=name, usd=Range(low=usd, high=usd))
