"""`report.html`: an iteration, and what all of them add up to, on one page without scripts that opens from disk. It has
figures, reasons and digests of records, no text of a user, and relative links."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from assets.costs import Bill
from assets.kpi import HEAD, IterationView, KeyFigure, Kpi, read_kpi
from assets.records import RECORDS, IterationRecords
from evals import report as reports
from pipeline.core import layout
from pipeline.core.storage import Store, digest_file, write_atomically
from pipeline.recipe import Recipe
from pipeline.rollout.fold import read_log
from pipeline.rollout.record import RolloutEvent, read_events
from pipeline.views.iteration import (
    EVIDENCE,
    evidence_rows,
    funnel,
    quality_and_cost,
    reward_distribution,
    training_panels,
)
from pipeline.views.page import Chapter, figure, moment, rollout_chapters, table, template


def page_path(store: Store, iteration: str) -> Path:
    return store.path(layout.iteration(iteration, layout.PAGE))


def write_report(store: Store, recipe: Recipe, iteration: str, now: float, out: Path | None = None) -> Path:
    """Write the page of an iteration, whatever state it is in; returns where. Raises OSError where it cannot be
    written, and ValueError where there is no such iteration or the rollout's log is damaged."""
    if not store.path(layout.iteration(iteration)).is_dir():
        raise ValueError(f"There is no iteration {iteration} under {store.root}. pt status lists the newest ones.")
    path = out or page_path(store, iteration)
    write_atomically(path, report_page(store, recipe, iteration, path.absolute().parent, now))
    return path


def report_page(store: Store, recipe: Recipe, id: str, folder: Path, now: float) -> str:
    """The whole file. `folder`: where it will lie."""
    of, kpi, model = IterationRecords(store, id), read_kpi(store, recipe), recipe.base_model.name
    opened = [e.epoch for e in read_log(store, model).events if e.proposal and e.proposal.version.iteration == id]
    events = read_events(store, model, opened[-1] - 1) if opened else []
    unreadable = IterationView(iteration=id, state="unreadable")
    one = next((each for each in kpi.iterations if each.iteration == id), unreadable)

    def link(text: str, iteration: str, file: str) -> str:
        """The text, with a link where the iteration has the file."""
        path = store.path(layout.iteration(iteration, file))
        if not path.exists():
            return text
        return Markup('<a href="{}">{}</a>').format(quote(os.path.relpath(path, folder)), text)

    files = [(asset, each.name, store.path(layout.iteration(id, each.name))) for asset, each in RECORDS.items()]
    lineage = [(asset, link(name, id, name), digest_file(path)[:12]) for asset, name, path in files if path.is_file()]
    rows = [(link(each.title, each.iteration, layout.PAGE), *each.row[1:]) for each in reversed(kpi.iterations)]
    return template().render(
        now=moment(now),
        title=f"{recipe.base_model.name}: iteration {id}",
        deployment=recipe.name,
        one=one,
        begun=moment(one.begun_at),
        figures=[*_figures(one), *kpi.sums()],
        chapters=[
            *_chapters(of, one, events),
            _all_iterations(kpi, rows),
            Chapter("Records", (), [table(("stage", "file", "sha256"), lineage)]),
        ],
        problems=[
            *(f"A record cannot be read, and this page is without it: {each}" for each in of.problems),
            *kpi.problems,
        ],
    )


def _figures(one: IterationView) -> Iterator[KeyFigure]:
    if one.quality is not None:
        gain, models = one.quality.difference, (one.quality.champion, one.quality.candidate)
        yield KeyFigure(
            f"right answers on {one.quality.suite}",
            " → ".join(f"{each.value:.1%}" for each in models),
            f"{100 * gain.value:+.1f} points, 95% {100 * gain.low:+.1f} to {100 * gain.high:+.1f}",
        )
    if one.kept is not None:
        yield KeyFigure("traces kept", f"{one.kept:.0%}", f"{one.admitted:,} of {one.seen:,}")
    if one.coverage is not None:
        yield KeyFigure("label coverage", f"{one.coverage:.0%}")
    if one.costs:
        yield KeyFigure("cost so far", f"{one.bill.dollars} USD", f"{one.bill.hours} device hours")


def _chapters(of: IterationRecords, one: IterationView, events: Sequence[RolloutEvent]) -> Iterator[Chapter]:
    if of.traces is not None:
        rejected = {str(why).replace("_", " "): count for why, count in of.traces.rejected.items()}
        gates = figure("What the gates let through", funnel(of.traces.seen, rejected, of.traces.admitted))
        yield Chapter("From traces to the dataset", (), [gates])
    if (labels := of.labels) is not None:
        spread = figure("Rewards of the labels", reward_distribution(labels.histogram, labels.mean_reward))
        reasons = table(("not labelled because", "rows"), sorted(labels.unlabelled.items()))
        yield Chapter("Labels", (), [spread, reasons])
    if of.plan is not None:
        decision = of.plan.decision
        chosen = "do not train now" if decision.method == "none" else decision.method.upper()
        yield Chapter(f"Decision: {chosen}", decision.reasons, [table(EVIDENCE, evidence_rows(decision))])
    if (trained := of.trained) is not None:
        lost = [f"interrupted by {e.cause} at step {e.step}, steps lost: {e.lost_steps}" for e in trained.preemptions]
        panels = figure("Metrics by step", training_panels(trained.metrics, trained.health.findings))
        yield Chapter(f"Training: {trained.health.verdict}", lost, [panels])
    if of.report is not None:
        scores = figure("Scores and paired differences with intervals", reports.picture(of.report))
        gated = Markup(reports.to_html(reports.table(of.report)))  # which escapes
        details = Markup("<details><summary>Every gated metric</summary>{}</details>").format(gated)
        verdict, reasons = (f": {of.verdict.verdict}", of.verdict.reasons) if of.verdict else ("", ())
        yield Chapter(f"Evaluation{verdict}", reasons, [scores, details])
    yield from rollout_chapters(of.id, events)
    if one.costs:
        yield Chapter("Cost", (), [_bill(one.bill)])


def _all_iterations(kpi: Kpi, rows: Sequence[tuple[str, ...]]) -> Chapter:
    missing = [f"Not in the cost of all: {each}" for each in kpi.bill.unknown]
    plot = figure("Both models on the target suite, and device hours", quality_and_cost(kpi.bars()))
    return Chapter("All iterations", missing, [plot, table(HEAD, rows)])


def _bill(bill: Bill) -> Markup:
    rows: list[tuple[str, ...]] = []
    for each in bill.lines:
        hours = "unknown" if each.device_hours is None else f"{each.device_hours:,.2f}"
        rows.append((each.name, "unknown" if each.usd is None else str(each.usd), hours, each.why))
    return table(("what", "USD", "device hours", ""), [*rows, ("together", bill.dollars, bill.hours, "")])
