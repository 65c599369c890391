"""Iterations in words, alike at the terminal, in Dagster and on the page."""

from collections.abc import Iterator
from typing import NamedTuple

from assets.kpi.ledgers import IterationLedgers
from assets.kpi.records import IterationView, Kpi
from evals.measurements import EvalReport
from pipeline.selection.choose import MethodDecision
from pipeline.training.result import TrainingResult
from pipeline.views.iterations import IterationBar
from pipeline.views.rollout import spell

HEAD = ("iteration", "ended", "kept", "labels", "method", "champion", "candidate", "points", "gate", "USD", "device h")


class KeyFigure(NamedTuple):
    name: str
    value: str
    note: str = ""


def stage_sentences(of: IterationLedgers) -> Iterator[tuple[str, str]]:
    if (traces := of.traces) is not None:
        days = [day.day for day in traces.days] or ["no day"]
        text = f"{traces.admitted:,} of {traces.seen:,} rows admitted, {days[0]} to {days[-1]}"
        rejected = sorted(traces.rejected.items(), key=lambda item: -item[1])
        why = ", ".join(f"{count:,} {reason}" for reason, count in rejected)
        yield "traces", f"{text}; rejected: {why}" if why else text
    if (labels := of.labels) is not None:
        text = f"{labels.labelled:,} of {labels.dataset.rows:,} traces ({labels.coverage:.1%} coverage), mean reward "
        text += f"{labels.mean_reward:.3f}; {labels.checked:,} checked now, {labels.remembered:,} known before"
        yield "labels", f"{text}, {labels.usd:.2f} USD"
    if (scorer := of.reward_model) is not None and (scorer.model or scorer.counts.thumbs or scorer.counts.left_out):
        text = f"{'admitted' if scorer.admitted else 'not admitted'}, AUC {scorer.auc}"
        yield "reward model", "; ".join([text, *scorer.reasons]) if scorer.model else scorer.reason
    if (fresh := of.samples) is not None and fresh.dataset is not None:
        text = f"{fresh.labelled:,} fresh completions of {fresh.prompts:,} prompts are scored, mean "
        yield "samples", f"{text}{fresh.mean_reward:.3f}, best of each prompt {fresh.best_reward:.3f}"
    if of.plan is not None:
        yield "method", _decision(of.plan.decision)
    if of.trained is not None:
        yield "training", _training(of.trained)
    if of.report is not None:
        yield from _evaluation(of.report)
    if of.verdict is not None:
        yield "verdict", f"{of.verdict.verdict}: {'; '.join(of.verdict.reasons)}"
    if of.version is not None:
        yield "registered", f"{of.version.name} version {of.version.version} (MLflow run {of.version.run_id})"


def _decision(decision: MethodDecision) -> str:
    name = f"{decision.method.upper()}{' (forced by the recipe)' if decision.forced else ''}"
    lacks = [f"{method.upper()} lacks {'; '.join(why)}" for method, why in decision.lacks.items()]
    because = decision.reasons if decision.method != "none" or decision.forced or not lacks else ()
    change = [f"would change it: {'; '.join(decision.would_change)}"] if decision.method == "none" else []
    return ". ".join([f"{name}, because {'; '.join(because)}" if because else name, *lacks, *change])


def _training(trained: TrainingResult) -> str:
    steps, goodput = trained.checkpoint.step, trained.goodput
    planned = f" of {steps + trained.untrained_steps}" if trained.untrained_steps else ""
    times = f"{goodput.total_s:.0f} s, goodput {goodput.share:.0%}, {trained.attempts} attempt(s)"
    findings = [f"{each.verdict} at step {each.step}: {each.reason}" for each in trained.health.findings]
    held_out = [row["held_out/accuracy"] for row in trained.metrics if "held_out/accuracy" in row]
    progress = [f"held-out prompts {held_out[0]:.0%} → {held_out[-1]:.0%}"] if held_out else []
    return "; ".join([f"{steps}{planned} steps in {times}", f"health {trained.health.verdict}", *findings, *progress])


def _evaluation(report: EvalReport) -> Iterator[tuple[str, str]]:
    for problem in report.problems:
        yield "evaluation", problem
    for each in report.measurements:
        text = "; ".join(each.problems)
        if (compared := each.comparison) is not None:
            one, other, gain = compared.champion, compared.candidate, compared.difference
            text = f"{one.value:.1%} → {other.value:.1%}, {100 * gain.value:+.1f} points (95% interval "
            text += f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}), {compared.items:,} held-out items"
        yield f"suite {each.suite}", f"{text} ({report.section.suite(each.suite).role})"
    for each in report.judged:
        text = "; ".join(each.problems)
        if (rate := each.win_rate) is not None:
            even = rate.controlled
            text = f"preferred in {0.5 + even.value:.1%} at equal lengths (95% interval {0.5 + even.low:.1%} to "
            text += f"{0.5 + even.high:.1%}), {0.5 + rate.raw.value:.1%} as judged, {rate.pairs:,} pairs"
        yield f"suite {each.suite}", text


def row(each: IterationView) -> tuple[str, ...]:
    quality, cost = each.quality, each.cost
    return (
        each.iteration,
        each.state,
        "" if each.kept is None else f"{each.kept:.0%}",
        "" if each.coverage is None else f"{each.coverage:.0%}",
        each.method,
        "" if quality is None else f"{quality.champion.value:.1%}",
        "" if quality is None else f"{quality.candidate.value:.1%}",
        "" if quality is None else f"{100 * quality.difference.value:+.1f}",
        each.verdict,
        f"{'≥ ' if cost.unknown else ''}{cost.usd}" if each.costs else "",
        cost.hours if each.costs else "",
    )


def bars(kpi: Kpi) -> list[IterationBar]:
    bars: list[IterationBar] = []
    for each in kpi.iterations:
        arms = (each.quality.champion, each.quality.candidate) if each.quality else (None, None)
        champion, candidate = (None if arm is None else (arm.value, arm.low, arm.high) for arm in arms)
        bars.append(IterationBar(each.iteration[:6], champion, candidate, each.cost.device_hours))
    return bars


def sums(kpi: Kpi) -> Iterator[KeyFigure]:
    """What all iterations add up to."""
    cost, gain = kpi.cost, kpi.gain
    ended = ", ".join(f"{count} {state}" for state, count in sorted(kpi.ended.items()))
    yield KeyFigure("iterations", f"{len(kpi.iterations)}", ended)
    yield KeyFigure("cost of all", f"{'≥ ' if cost.unknown else ''}{cost.usd} USD", f"{cost.hours} device hours")
    if gain is not None:
        yield KeyFigure("gain", f"{100 * gain:+.1f} points", "of right answers, by the promoted ones together")
    usd, hours = cost.usd_for(gain), cost.hours_for(gain)
    if usd is not None and hours is not None:
        least, least_hours = ("≥ " if missing else "" for missing in (cost.unknown, cost.unknown_hours))
        yield KeyFigure("for each +0.01", f"{least}{usd} USD", f"{least_hours}{hours:,.3f} device hours")
    lost = f"interruptions: {kpi.preemptions}, steps computed again: {kpi.lost_steps}"
    yield KeyFigure("goodput", "unknown" if kpi.goodput is None else f"{kpi.goodput:.0%}", lost)
    if (waited := kpi.trace_to_promotion_s) is not None:
        note = "from the newest trace, median of the promoted"
        yield KeyFigure("until promotion", spell(waited) if waited else "under a day", note)
