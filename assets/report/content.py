"""What stands on the page of an iteration: its records in the order of a run, as words and tables.

Owns the words. Refuses to write markup: a template does, and escapes every value.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from assets.kpi.ledgers import IterationLedgers
from assets.kpi.records import IterationKpi
from assets.report import charts
from assets.report.figures import UNKNOWN, PageTable, when
from evals import report as reports
from evals.page import tables
from pipeline.core import layout
from pipeline.rollout.picture import LookPoint, look_points, spell
from pipeline.rollout.record import Phase, RolloutEvent
from pipeline.views.inline_svg import bar_chart


def data_section(of: IterationLedgers, kpi: IterationKpi) -> dict[str, Any]:
    rejected = sorted(kpi.data.rejected.items(), key=lambda item: -item[1])
    seen = kpi.data.seen or 1
    return {
        "funnel": Markup(charts.data_funnel(kpi.data)),
        "days": f"{kpi.data.first_day} to {kpi.data.last_day}" if kpi.data.first_day else "no day with traces",
        "rejected": PageTable(
            ("why a row was left out", "rows", "share"),
            [(reason.replace("_", " "), f"{count:,}", f"{count / seen:.1%}") for reason, count in rejected],
            (1, 2),
        ),
    }


def label_section(of: IterationLedgers) -> dict[str, Any] | None:
    labels = of.labels
    if labels is None:
        return None
    abstained = sorted(labels.unlabelled.items(), key=lambda item: -item[1])
    facts = [
        ("mean reward", f"{labels.mean_reward:.3f}"),
        ("checked now, known before", f"{labels.checked:,}, {labels.remembered:,}"),
    ]
    if labels.judge is not None:
        judge = labels.judge
        facts.append(("judge", f"{judge.model}, withstood {judge.attacks_withstood} of {judge.attacks} attacks"))
    if labels.humans.reviews:
        facts.append(("agreement with people", f"{labels.humans.rank_correlation} (rank correlation)"))
    if labels.drift is not None:
        drift = f"stability index {labels.drift.stability_index:.3f} against {labels.drift.against}"
        facts.append(("drift of the labels", drift))
    labelled = f"{labels.labelled:,} of {labels.dataset.rows:,}"
    profiles = [(name, f"{n:,}") for name, n in sorted(labels.profiles.items())]
    return {
        "text": f"{labelled} traces of the dataset have a label ({labels.coverage:.1%}).",
        "histogram": Markup(bar_chart(labels.histogram, 0.0, 1.0, "labels by reward")),
        "facts": facts,
        "abstained": PageTable(
            ("no label, because", "rows"), [(why.replace("_", " "), f"{n:,}") for why, n in abstained], (1,)
        ),
        "profiles": PageTable(("profile of its weights", "rows"), profiles, (1,)),
    }


def decision_section(of: IterationLedgers) -> dict[str, Any] | None:
    if of.plan is None:
        return None
    decision = of.plan.decision
    checks = [
        (
            each.name,
            each.interval(),
            f"{each.sign} {each.figure(each.threshold)}",
            ", ".join(method.upper() for method in each.needed_by),
            "holds" if each.holds else "unknown" if each.estimate.value is None else "does not hold",
        )
        for each in decision.checks
    ]
    return {
        "method": "do not train now" if decision.method == "none" else decision.method.upper(),
        "forced": decision.forced,
        "reasons": decision.reasons,
        "lacks": [(method.upper(), "; ".join(why)) for method, why in decision.lacks.items()],
        "would_change": decision.would_change,
        "checks": PageTable(("evidence", "measured", "needed", "by", "verdict"), checks, (1, 2)),
    }


def training_section(of: IterationLedgers) -> dict[str, Any] | None:
    trained = of.trained
    if trained is None:
        return None
    goodput = trained.goodput
    spent = {"productive": goodput.productive_s, **goodput.badput_s}
    whole = goodput.total_s or 1.0
    steps = f"{trained.checkpoint.step} optimiser steps"
    if trained.untrained_steps:
        steps += f" ({trained.untrained_steps} of the plan were not needed)"
    attempts = f"{trained.attempts} attempt{'s' if trained.attempts > 1 else ''}"
    return {
        "text": f"{steps} in {spell(goodput.total_s)}, {attempts}. Health: {trained.health.verdict}.",
        "curve": Markup(charts.training_curve(trained.metrics)),
        "findings": PageTable(
            ("health", "step", "what was noticed"),
            [(each.verdict, str(each.step), each.reason) for each in trained.health.findings],
            (1,),
        ),
        "time": [(name, 100 * seconds / whole, spell(seconds)) for name, seconds in spent.items() if seconds > 0],
        "interruptions": PageTable(
            ("interrupted by", "step reached", "steps lost"),
            [(each.cause, str(each.step), str(each.lost_steps)) for each in trained.preemptions],
            (1, 2),
        ),
    }


def evaluation_section(of: IterationLedgers) -> dict[str, Any] | None:
    if of.report is None:
        return None
    report, verdict = of.report, of.verdict
    return {
        "verdict": str(verdict.verdict) if verdict else "",
        "reasons": verdict.reasons if verdict else (),
        "problems": report.problems,
        "scores": Markup(charts.scores(report)),
        "differences": Markup(charts.differences(report)),
        "tables": Markup("\n".join(tables(reports.table(report)))),  # which escapes
    }


def rollout_section(events: Sequence[RolloutEvent]) -> dict[str, Any] | None:
    """`events`: of this iteration's rollout alone."""
    if not events:
        return None
    looks: list[LookPoint] = look_points(events)
    last = events[-1]
    steps: list[tuple[str, ...]] = []
    before: tuple[Phase, int] | None = None
    for event in events:
        if (event.phase, event.stage) != before or event.action is not None:
            why = f"{event.reason}{f' (by {event.by})' if event.by else ''}"
            steps.append((f"{when(event.at)}", str(event.phase).replace("_", " "), str(event.stage + 1), why))
        before = (event.phase, event.stage)
    policy = events[0].proposal.policy if events[0].proposal else None
    weights = " → ".join(f"{policy.weight_at(n)}%" for n in range(len(policy.weights))) if policy else UNKNOWN
    return {
        "text": f"Weights of the canary: {weights}. {len(looks)} looks; it is {str(last.phase).replace('_', ' ')}.",
        "looks": Markup(charts.rollout_looks(looks)),
        "steps": PageTable(("when (UTC)", "phase", "stage", "why"), steps, (2,)),
    }


def digests(of: IterationLedgers) -> Iterator[tuple[str, str, str]]:
    """What the candidate was made from: name, digest or id, and the file of the iteration that holds it."""
    if of.traces is not None:
        iteration = of.traces.iteration
        yield "champion that it is compared with", iteration.champion.digest[:12], ""
        yield "dataset", f"{iteration.dataset.digest[:12]}, snapshot {iteration.dataset.snapshot}", layout.GOVERNED
        yield "recipe", iteration.recipe_digest[:12], layout.RECIPE
    if of.labels is not None:
        yield "labels", of.labels.dataset.digest[:12], layout.LABELS
    if of.preferences is not None:
        yield "preference data", of.preferences.pairs.digest[:12], layout.PREFERENCES
    if of.plan is not None:
        yield "plan", of.plan.data.digest[:12] if of.plan.data else "not to train", layout.PLAN
    if of.trained is not None:
        yield "adapter", of.trained.checkpoint.adapter.digest[:12], layout.RESULT
        yield "model", of.trained.checkpoint.model.digest[:12], ""
    if of.report is not None:
        yield "evidence", of.report.bundle.digest[:12], layout.EVAL_REPORT
    if of.verdict is not None:
        yield "verdict", f"on report {of.verdict.report_digest[:12]}", layout.GATE_VERDICT
    if of.version is not None:
        yield "registered", f"{of.version.name} version {of.version.version}", layout.MODEL_VERSION
        yield "MLflow run", of.version.run_id, ""
    if of.outcome is not None:
        yield "outcome", of.outcome.ending, layout.OUTCOME
