"""A sentence for each stage of an iteration, and the evidence of its decision, alike wherever they are shown."""

from collections.abc import Iterator

from assets.records import IterationRecords
from evals.records import EvalReport
from pipeline.selection.choose import MethodDecision
from pipeline.training.result import TrainingResult


def stage_sentences(of: IterationRecords) -> Iterator[tuple[str, str]]:
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
        yield "method", decision_sentence(of.plan.decision)
    if of.trained is not None:
        yield "training", _training(of.trained)
    if of.report is not None:
        yield from _evaluation(of.report)
    if of.verdict is not None:
        yield "verdict", f"{of.verdict.verdict}: {'; '.join(of.verdict.reasons)}"
    if of.version is not None:
        yield "registered", f"{of.version.name} version {of.version.version} (MLflow run {of.version.run_id})"


EVIDENCE = ("evidence", "found (95% interval)", "held against", "for", "holds")


def evidence_rows(decision: MethodDecision) -> list[tuple[str, ...]]:
    """What decided the method, below EVIDENCE."""
    return [
        (each.name, each.interval(), f"{each.sign} {each.figure(each.threshold)}", ", ".join(each.needed_by),
         "yes" if each.holds else "no")
        for each in decision.checks
    ]  # fmt: skip


def decision_sentence(decision: MethodDecision) -> str:
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
