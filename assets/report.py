"""`report.html`: an iteration, and what all of them add up to, on one page without scripts that opens from disk. It has
figures, reasons and digests of records, no text of a user, and relative links."""

import base64
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from assets.costs import Bill
from assets.kpi import HEAD, IterationView, KeyFigure, Kpi, read_kpi
from assets.records import RECORDS, IterationRecords
from evals import report as reports
from pipeline.core import layout
from pipeline.core.storage import Store, digest_file, write_atomically
from pipeline.recipe import Recipe
from pipeline.rollout.record import Phase, RolloutEvent, read_events
from pipeline.views import Plot
from pipeline.views.iteration import (
    EVIDENCE,
    evidence_rows,
    funnel,
    quality_and_cost,
    reward_distribution,
    training_panels,
)
from pipeline.views.rollout import look_points, rollout_over_time


class Chapter(NamedTuple):
    """`lines`: a list of texts. `blocks`: figures and tables."""

    title: str
    lines: Sequence[str] = ()
    blocks: Sequence[Markup] = ()


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
    of, kpi, events = IterationRecords(store, id), read_kpi(store, recipe), read_events(store, recipe.base_model.name)
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
    rows = [(link(each.iteration, each.iteration, layout.PAGE), *each.row[1:]) for each in reversed(kpi.iterations)]
    return _template().render(
        now=_when(now),
        title=f"{recipe.base_model.name}: iteration {id}",
        deployment=recipe.name,
        one=one,
        begun=_when(one.begun_at),
        figures=[*_figures(one), *kpi.sums()],
        chapters=[
            *_chapters(of, one, events),
            _all_iterations(kpi, rows),
            Chapter("Records", (), [_table(("stage", "file", "sha256"), lineage)]),
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
        gates = _figure("What the gates let through", funnel(of.traces.seen, rejected, of.traces.admitted))
        yield Chapter("From traces to the dataset", (), [gates])
    if (labels := of.labels) is not None:
        spread = _figure("Rewards of the labels", reward_distribution(labels.histogram, labels.mean_reward))
        reasons = _table(("not labelled because", "rows"), sorted(labels.unlabelled.items()))
        yield Chapter("Labels", (), [spread, reasons])
    if of.plan is not None:
        decision = of.plan.decision
        chosen = "do not train now" if decision.method == "none" else decision.method.upper()
        yield Chapter(f"Decision: {chosen}", decision.reasons, [_table(EVIDENCE, evidence_rows(decision))])
    if (trained := of.trained) is not None:
        lost = [f"interrupted by {e.cause} at step {e.step}, steps lost: {e.lost_steps}" for e in trained.preemptions]
        panels = _figure("Metrics by step", training_panels(trained.metrics, trained.health.findings))
        yield Chapter(f"Training: {trained.health.verdict}", lost, [panels])
    if of.report is not None:
        figure = _figure("Scores and paired differences with intervals", reports.picture(of.report))
        gated = Markup(reports.to_html(reports.table(of.report)))  # which escapes
        details = Markup("<details><summary>Every gated metric</summary>{}</details>").format(gated)
        yield Chapter(f"Evaluation{f': {of.verdict.verdict}' if of.verdict else ''}", (), [figure, details])
    yield from _rollout(of.id, events)
    if one.costs:
        yield Chapter("Cost", (), [_bill(one.bill)])


def _rollout(id: str, events: Sequence[RolloutEvent]) -> Iterator[Chapter]:
    proposals = [event.proposal for event in events if event.proposal is not None]
    proposal = next((each for each in reversed(proposals) if each.version.iteration == id), None)
    if proposal is None:
        return
    own = [event for event in events if event.rollout == proposal.rollout]
    steps: list[tuple[str, ...]] = []
    before: tuple[Phase, int] | None = None
    for event in own:
        if (event.phase, event.stage) != before or event.action is not None:
            why = f"{event.reason}{f' (by {event.by})' if event.by else ''}"
            steps.append((_when(event.at), str(event.phase).replace("_", " "), str(event.stage + 1), why))
        before = (event.phase, event.stage)
    policy, looks = proposal.policy, look_points(own)
    weights = " → ".join(f"{policy.canary_weights[stage]}%" for stage in range(len(policy.weights)))
    plot = rollout_over_time(looks, f"Version {proposal.version.version}")
    blocks = [_figure("Both arms and the canary's weight", plot)] if looks else []
    table = _table(("when (UTC)", "phase", "stage", "why"), steps)
    yield Chapter("Rollout", [f"Weights of the canary: {weights}; {len(looks)} looks"], [*blocks, table])


def _all_iterations(kpi: Kpi, rows: Sequence[tuple[str, ...]]) -> Chapter:
    missing = [f"Not in the cost of all: {each}" for each in kpi.bill.unknown]
    plot = _figure("Both models on the target suite, and device hours", quality_and_cost(kpi.bars()))
    return Chapter("All iterations", missing, [plot, _table(HEAD, rows)])


def _bill(bill: Bill) -> Markup:
    rows: list[tuple[str, ...]] = []
    for each in bill.lines:
        hours = "unknown" if each.device_hours is None else f"{each.device_hours:,.2f}"
        rows.append((each.name, "unknown" if each.usd is None else str(each.usd), hours, each.why))
    return _table(("what", "USD", "device hours", ""), [*rows, ("together", bill.dollars, bill.hours, "")])


def _figure(text: str, plot: Plot) -> Markup:
    source = f"data:image/svg+xml;base64,{base64.b64encode(plot.svg()).decode()}"
    return Markup('<figure><img alt="{}" src="{}"></figure>').format(text, source)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """Cells are escaped, but for the links among them."""
    lines = [("td", row) for row in rows]
    if not lines:
        return Markup("")
    cells = [
        Markup("<tr>{}</tr>").format(Markup("").join(Markup(f"<{tag}>{{}}</{tag}>").format(cell) for cell in row))
        for tag, row in ([("th", head)] if head else []) + lines
    ]
    return Markup('<div class="scroll"><table>{}</table></div>').format(Markup("\n").join(cells))


def _when(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


@cache
def _template():
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("report.jinja")
