"""`report.html`: an iteration, and what all of them add up to, on one page without scripts that opens from disk. It has
figures, reasons and digests of records, no text of a user, and relative links."""

import base64
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from assets.costs import CostLine, total
from assets.kpi import HEAD, IterationView, KeyFigure, Kpi, read_kpi
from assets.records import IterationRecords
from evals import report as reports
from pipeline.core import layout
from pipeline.core.storage import Store, write_atomically
from pipeline.recipe import Recipe
from pipeline.rollout.record import Phase, RolloutEvent, read_events
from pipeline.views import Plot
from pipeline.views.iteration import funnel, quality_and_cost, reward_distribution, training_panels
from pipeline.views.rollout import look_points, rollout_over_time

HEADLINES = {
    "in progress": "Still in progress",
    "unfinished": "A newer iteration was begun before this one had ended",
    "not trained": "Nothing was trained: the evidence did not suffice",
    "stopped": "The training stopped itself, and nothing was evaluated",
    "refused": "The candidate was refused, and the champion stays",
    "held": "The candidate passed the gate and waits for a person",
    "registered": "The candidate passed the gate and is registered; this deployment routes nothing to it",
    "in rollout": "The candidate passed the gate and is being rolled out",
    "promoted": "The candidate was promoted",
    "rolled back": "The candidate was rolled back, and the champion before it serves",
    "aborted": "A person ended the rollout of the candidate",
    "superseded": "A newer candidate took the place of this one",
    "unreadable": "Its records cannot be read",
}


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
        if not file or not path.exists():
            return text
        return Markup('<a href="{}">{}</a>').format(quote(os.path.relpath(path, folder)), text)

    lineage = [(name, link(text, id, file)) for name, text, file in _digests(of)]
    if maker := _champions_iteration(of, events):
        lineage.insert(0, ("iteration that made the champion", link(maker, maker, layout.PAGE)))
    rows = [(link(each.iteration, each.iteration, layout.PAGE), *each.row[1:]) for each in reversed(kpi.iterations)]
    return _template().render(
        now=_when(now),
        title=f"{recipe.base_model.name}: iteration {id}",
        deployment=recipe.name,
        one=one,
        begun=_when(one.begun_at),
        headline=HEADLINES[one.state],
        figures=[*_figures(one), *kpi.sums()],
        chapters=[
            *_chapters(of, one, events),
            _all_iterations(kpi, rows),
            Chapter("Lineage", (), [_table((), lineage)]),
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
        yield KeyFigure("label coverage", f"{one.coverage:.0%}", f"{one.labelled:,} labels")
    if one.preemptions is not None:
        share = "unknown" if one.goodput is None else f"{one.goodput:.0%}"
        lost = f"interruptions: {one.preemptions}, steps lost: {one.lost_steps}"
        yield KeyFigure("training goodput", share, lost)
    if one.costs:
        yield KeyFigure("cost so far", f"{one.cost.dollars} USD", f"{one.cost.hours} device hours")


def _chapters(of: IterationRecords, one: IterationView, events: Sequence[RolloutEvent]) -> Iterator[Chapter]:
    if of.traces is not None:
        rejected = {str(why).replace("_", " "): count for why, count in of.traces.rejected.items()}
        gates = _figure("What the gates let through", funnel(of.traces.seen, rejected, of.traces.admitted))
        left = [(one.seen, "rows of the source"), (one.admitted, "kept by the gates"),
                (one.counted, "of this champion, the dataset"), (one.labelled, "labelled"),
                (one.trainable, "trainable: agreed to, and in no suite")]  # fmt: skip
        text = " → ".join(f"{count:,} {what}" for count, what in left if count is not None)
        yield Chapter("From traces to training data", [text], [gates])
    if (labels := of.labels) is not None:
        spread = _figure("Rewards of the labels", reward_distribution(labels.histogram, labels.mean_reward))
        reasons = _table(("not labelled because", "rows"), sorted(labels.unlabelled.items()))
        yield Chapter("Labels", (), [spread, reasons])
    if of.plan is not None:
        decision = of.plan.decision
        chosen = "do not train now" if decision.method == "none" else decision.method.upper()
        rows = [(c.name, c.interval(), f"{c.sign} {c.figure(c.threshold)}", c.holds) for c in decision.checks]
        checks = _table(("evidence", "found (95% interval)", "held against", "holds"), rows)
        yield Chapter(f"Decision: {chosen}", decision.reasons, [checks])
    if (trained := of.trained) is not None:
        lost = [f"interrupted by {e.cause} at step {e.step}, steps lost: {e.lost_steps}" for e in trained.preemptions]
        panels = _figure("Metrics by step", training_panels(trained.metrics, trained.health.findings))
        spent = {"productive": trained.goodput.productive_s, **trained.goodput.badput_s}
        seconds = _table(("where the time went", "seconds"), [(name, f"{s:,.1f}") for name, s in spent.items()])
        yield Chapter(f"Training: {trained.health.verdict}", lost, [panels, seconds])
    if of.report is not None:
        figure = _figure("Scores and paired differences with intervals", reports.picture(of.report))
        gated = Markup(reports.to_html(reports.table(of.report)))  # which escapes
        details = Markup("<details><summary>Every gated metric</summary>{}</details>").format(gated)
        yield Chapter(f"Evaluation{f': {of.verdict.verdict}' if of.verdict else ''}", (), [figure, details])
    yield from _rollout(of.id, events)
    if one.costs:
        yield Chapter("Cost", (), [_bill(one.costs, notes=True)])


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
    weights = " → ".join(f"{policy.weight_at(stage)}%" for stage in range(len(policy.weights)))
    plot = rollout_over_time(looks, f"Version {proposal.version.version}")
    blocks = [_figure("Both arms and the canary's weight", plot)] if looks else []
    table = _table(("when (UTC)", "phase", "stage", "why"), steps)
    yield Chapter("Rollout", [f"Weights of the canary: {weights}; {len(looks)} looks"], [*blocks, table])


def _all_iterations(kpi: Kpi, rows: Sequence[tuple[str, ...]]) -> Chapter:
    missing = [f"Not in the sum of USD: {each}" for each in kpi.cost.unknown]
    missing += [f"Not in the sum of device hours: {each}" for each in kpi.cost.unknown_hours]
    plot = _figure("Both models on the target suite, and device hours", quality_and_cost(kpi.bars()))
    bill = _bill([line for each in kpi.iterations for line in each.costs])
    return Chapter("All iterations", missing, [plot, _table(HEAD, rows), bill])


def _bill(lines: Sequence[CostLine], notes: bool = False) -> Markup:
    by_name: defaultdict[str, list[CostLine]] = defaultdict(list)
    for line in lines:
        by_name[line.name].append(line)
    rows: list[tuple[str, ...]] = []
    for name, of_one in [*by_name.items(), ("together", list(lines))]:
        cost = total(of_one)
        usd = "unknown" if all(line.usd is None for line in of_one) else cost.dollars
        hours = "unknown" if all(line.device_hours is None for line in of_one) else cost.hours
        why = dict.fromkeys(why for line in of_one for why in (line.why, line.why_hours) if why and notes)
        rows.append((name, usd, hours, "" if name == "together" else "; ".join(why)))
    return _table(("what", "USD", "device hours", ""), rows)


def _digests(of: IterationRecords) -> Iterator[tuple[str, str, str]]:
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


def _champions_iteration(of: IterationRecords, events: Sequence[RolloutEvent]) -> str:
    """The iteration whose candidate this one's champion was; "" for the base model."""
    champion = of.traces.iteration.champion.digest if of.traces is not None else ""
    versions = [event.proposal.version for event in events if event.proposal is not None]
    return next((each.iteration for each in versions if each.model.digest == champion), "")


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
