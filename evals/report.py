"""The report for people: a Markdown table of what was measured, a picture of the paired differences with the line that
each had to clear, and for MLflow a table of the answers side by side, without what is a user's."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from markdown_it import MarkdownIt

from evals.bundle import EvalEvidence, SuiteEvidence
from evals.gate import GateVerdict
from evals.records import (
    ComparedModels,
    Comparison,
    ConfidenceInterval,
    Difference,
    EvalReport,
    Guard,
    ItemResult,
    JudgedMeasurement,
    ModelScores,
    SuiteMeasurement,
    WinRate,
)
from evals.suites import Item
from pipeline.core.conversation import shown, shown_answer
from pipeline.core.markdown import literal
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import TracesSuite
from pipeline.views import BLACK, DARK_GREY, LIGHT_GREY, ORANGE, Plot

WORDS = {"length": "length (tokens)", "score": "wrong answers", "pii": "personal data"}
"""A guard's name for people, where it is another."""


class ReportRow(NamedTuple):
    """One metric of a suite. `must`: what the gate asks of a bound of the change: its name, > or <, the limit."""

    name: str
    champion: str
    candidate: str
    change: Difference
    must: tuple[tuple[str, str, float], ...] = ()

    def required(self) -> str:
        bounds = {"lower": self.change.lower, "upper": self.change.upper}
        return "; ".join(f"{end} bound {bounds[end]:+z.1%} {sign} {limit:+z.1%}" for end, sign, limit in self.must)


class SuiteRows(NamedTuple):
    """A suite's metrics, or in `problems` why it has none."""

    title: str
    about: str
    rows: Sequence[ReportRow]
    problems: Sequence[str]
    more: Sequence[str] = ()
    """Lines of Markdown below the metrics."""


def table(report: EvalReport, verdict: GateVerdict | None = None) -> str:
    """The report as Markdown: the verdict if there is one, then each suite's metrics and slices."""
    lines = [f"**{verdict.verdict}**", "", *_listed(verdict.reasons)] if verdict else []
    lines += ["No comparison:", "", *_listed(report.problems)] if report.problems else []
    lines += _listed([f"not asked: {why}" for why in report.not_asked.values()])
    return "\n".join([*lines, *_tables(_suites(report))]).rstrip()


def comparison_table(compared: ComparedModels, section: Evaluation) -> str:
    """Two models' metrics and slices as Markdown, as `table` has them."""
    return "\n".join(_tables(_compared(each, section) for each in compared.measurements)).rstrip()


def _tables(suites: Iterable[SuiteRows]) -> Iterator[str]:
    for suite in suites:
        yield from (f"### {suite.title}", "", *([suite.about, ""] if suite.about else []), *_listed(suite.problems))
        if suite.rows:
            yield from ("| metric | champion | candidate | difference | required |", "|---|---|---|---|---|")
        for row in suite.rows:
            cells = (row.name, row.champion, row.candidate, _interval(row.change, "+z"), row.required())
            yield f"| {' | '.join(cells)} |"
        yield from (*suite.more, "")


def scores_table(scored: ModelScores) -> str:
    """One model's scores as Markdown: each suite's metrics and slices."""
    lines: list[str] = []
    for each in scored.scores:
        metrics = {
            "accuracy": _interval(each.accuracy),
            **{f"pass@{k}": f"{chance:.1%}" for k, chance in each.pass_at.items()},
            **{name: f"{getattr(each, name):.1%}" for name in ("no_answer", "truncated", "ungraded")},
            "tokens of an answer": f"{each.tokens:,.1f}",
        }
        about = f"{each.items:,} items in {each.clusters:,} clusters, {each.samples_per_item} samples of each"
        lines += [f"### {each.suite}", "", f"{about}; 95% intervals.", "", "| metric | score |", "|---|---|"]
        lines += [f"| {name.replace('_', ' ')} | {value} |" for name, value in metrics.items()]
        if len(each.slices) > 1:
            lines += ["", "| slice | items | accuracy |", "|---|---|---|"]
            lines += [
                f"| {literal(row.name) or '(none)'} | {row.items:,} | {_interval(row.accuracy)} |"
                for row in each.slices
            ]
        lines.append("")
    return "\n".join(lines).rstrip()


def to_html(markdown: str) -> str:
    """The report's Markdown as HTML: headings, tables, lists, paragraphs. No raw HTML, no links."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image", "autolink"])
    return parser.render(markdown)


def _listed(reasons: Sequence[str]) -> list[str]:
    return [*(f"- {literal(reason)}" for reason in reasons), ""] if reasons else []


def _suites(report: EvalReport) -> Iterator[SuiteRows]:
    for measured in report.measurements:
        yield _compared(measured, report.section)
    for judged in report.judged:
        yield _judged(judged, report.section)


def _compared(measured: SuiteMeasurement, section: Evaluation) -> SuiteRows:
    settings, compared = section.suite(measured.suite), measured.comparison
    title = f"{measured.suite} ({settings.role})"
    if compared is None:
        return SuiteRows(title, "No comparison:", (), measured.problems)
    gain = (("lower", ">", 0.0),) if settings.role == "target" else ()
    scores = _interval(compared.champion), _interval(compared.candidate)
    rows = [ReportRow("accuracy", *scores, compared.difference, gain)]
    rows += [_guard(guard, settings.role != "report") for guard in compared.guards]
    about = (
        f"{compared.items:,} items in {compared.clusters:,} clusters, {compared.samples_per_item} samples of each; "
        f"95% intervals. Ungraded samples: champion {compared.ungraded_champion}, "
        f"candidate {compared.ungraded_candidate}."
    )
    floor = f"| floor | | {scores[1]} | | lower end >= {settings.floor:.1%} |" if settings.floor is not None else ""
    return SuiteRows(title, about, rows, (), [*filter(None, [floor]), *_more(compared)])


def _guard(guard: Guard, gates: bool) -> ReportRow:
    margin, change, style = guard.margin, guard.difference, ".1%"
    if guard.name == "length":  # a difference of logarithms, shown as a relative change
        change = Difference(**{name: math.expm1(value) for name, value in change.model_dump().items()})
        margin, style = math.expm1(margin), ".1f"
    must = (("upper" if guard.rule == "safe" else "lower", "<", margin),) if gates else ()
    name = WORDS.get(guard.name, guard.name.replace("_", " "))
    return ReportRow(name, f"{guard.champion:{style}}", f"{guard.candidate:{style}}", change, must)


def _more(compared: Comparison) -> Iterator[str]:
    if cost := compared.cost:
        yield f"| USD for 1,000 answers | {1000 * cost.champion:.3f} | {1000 * cost.candidate:.3f} | | |"
    for each in compared.pass_at:
        yield f"| pass@{each.k} | {each.champion:.1%} | {each.candidate:.1%} | | |"
    if len(compared.slices) > 1:
        yield from ("", "Slices are for reading, never for gating.", "")
        yield from ("| slice | items | champion | candidate | difference |", "|---|---|---|---|---|")
    for row in compared.slices if len(compared.slices) > 1 else ():
        rates = f"{_interval(row.champion)} | {_interval(row.candidate)} | {_interval(row.difference, '+z')}"
        yield f"| {literal(row.name) or '(none)'} | {row.items:,} | {rates} |"


def _judged(measured: JudgedMeasurement, section: Evaluation) -> SuiteRows:
    """How often each model is preferred; the difference is that of the candidate's rate to one half."""
    settings, rate = section.judged_suite(measured.suite), measured.win_rate
    title = f"{measured.suite} ({settings.role}, answers to {settings.over}, judged)"
    if rate is None:
        return SuiteRows(title, "No win rate:", (), measured.problems)
    gain = (("lower", ">", 0.0),) if settings.role == "target" else ()
    kept = (("lower", ">", -measured.loss.margin),) if measured.loss is not None else ()
    rows = [_preferred("at equal lengths", rate.controlled, (*gain, *kept)), _preferred("as judged", rate.raw)]
    return SuiteRows(title, _about_pairs(measured.judge, rate), rows, ())


def _preferred(name: str, change: Difference, must: tuple[tuple[str, str, float], ...] = ()) -> ReportRow:
    return ReportRow(name, f"{0.5 - change.value:.1%}", f"{0.5 + change.value:.1%}", change, must)


def _about_pairs(judge: str, rate: WinRate) -> str:
    return (
        f"{rate.pairs:,} pairs in {rate.clusters:,} clusters, judged by {judge} in both orders, which disagree in "
        f"{rate.disagreement:.1%}; shares preferred, differences from 50%, 95% intervals. The judge's liking for "
        f"length is {rate.length_effect:+.2f} (logit of a standard deviation)."
    )


def _interval(entry: ConfidenceInterval | Difference, sign: str = "") -> str:
    return f"{entry.value:{sign}.1%} [{entry.low:{sign}.1%}, {entry.high:{sign}.1%}]"


def picture(report: EvalReport) -> Plot:
    """Each suite's paired differences, with the line that each had to clear."""
    drawn = [suite for suite in _suites(report) if suite.rows]
    rows = sum(len(suite.rows) for suite in drawn)
    return Plot(lambda figure: _draw(figure, report, drawn), 9.2, max(3.4, 1.2 + 0.46 * rows), dpi=90)


def _draw(figure: Any, report: EvalReport, drawn: Sequence[SuiteRows]) -> None:
    if not drawn:
        problems = [*report.problems, *(f"{each.title}: {why}" for each in _suites(report) for why in each.problems)]
        text = "\n".join(["No comparison", *problems])
        figure.text(0.5, 0.5, text, ha="center", va="center", color=DARK_GREY, wrap=True)
        return
    heights = [len(suite.rows) for suite in drawn]
    grid = figure.subplots(len(drawn), 1, height_ratios=heights, squeeze=False)
    for suite, axes in zip(drawn, grid[:, 0], strict=True):
        axes.set_title(suite.title, fontsize=9, loc="left", color=DARK_GREY)
        axes.axvline(0, color=LIGHT_GREY, linewidth=1, zorder=0)
        names = [_draw_row(axes, place, row) for place, row in enumerate(suite.rows)]
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_ylim(len(names) - 0.4, -0.8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.3)
    grid[-1, 0].set_xlabel("candidate less champion (points, length in %); thick: bounds of the gate", fontsize=7)
    figure.suptitle("Candidate against champion, 95% intervals", fontsize=10, color=DARK_GREY)


def _draw_row(axes: Any, place: int, row: ReportRow) -> str:
    """Draws a row, and returns its label."""
    change, colour = row.change, ORANGE if any(sign == ">" for _, sign, _ in row.must) else DARK_GREY
    low, value, high, lower, upper = (
        100 * each for each in (change.low, change.value, change.high, change.lower, change.upper)
    )
    width = [[max(0.0, value - low)], [max(0.0, high - value)]]
    axes.errorbar([value], [place], xerr=width, color=colour, marker="D", capsize=4, linewidth=1.5)
    axes.plot([lower, upper], [place, place], color=colour, linewidth=4, solid_capstyle="butt")
    for _, _, limit in row.must:
        axes.plot([100 * limit] * 2, [place - 0.35, place + 0.35], color=BLACK, linestyle="--", linewidth=1.3, zorder=1)
    text = f"{value:+z.1f} [{low:+z.1f}, {high:+z.1f}]"
    axes.annotate(text, (value, place), (0, 8), textcoords="offset points", ha="center", fontsize=8, color=colour)
    scores = f"{row.name} ({row.champion.partition(' ')[0]} to {row.candidate.partition(' ')[0]})"
    return "; ".join([scores, *(f"{end} end {sign} {100 * limit:g}" for end, sign, limit in row.must)])


ROWS = 500
"""Of a suite at most, those first that changed most."""
CHARACTERS = 4000
"""Of a text at most."""
SHARES = ("suite", "slice", "champion", "candidate", "difference")
TEXTS = ("item", "question", "reference", "champion's answer", "candidate's answer")


def answer_table(evidence: EvalEvidence, texts: bool) -> dict[str, Any]:
    """`columns` and `data`. `champion` and `candidate` are shares of right answers of all that were graded, None where
    none was; an answer is the first of its item."""
    section = evidence.section
    free = [each for each in evidence.suites if not isinstance(section.suite(each.suite.name), TracesSuite)]
    rows = [row for each in free for row in _rows(each, texts)]
    return {"columns": [*SHARES, *(TEXTS if texts else ())], "data": rows}


def _rows(evidence: SuiteEvidence, texts: bool) -> list[list[Any]]:
    one, other = ({result.id: result for result in arm.results} for arm in evidence.arms)
    free = [item for item in evidence.suite.items if item.user_id is None]
    pairs = [(item, one[item.id], other[item.id]) for item in free if item.id in one and item.id in other]
    rows = [list(_row(evidence.suite.name, pair, texts)) for pair in pairs]
    return sorted(rows, key=lambda row: -abs(row[SHARES.index("difference")] or 0.0))[:ROWS]


def _row(suite: str, pair: tuple[Item, ItemResult, ItemResult], texts: bool) -> Iterator[Any]:
    item, *results = pair
    champion, candidate = map(_right, results)
    yield from (suite, item.slice, champion, candidate)
    yield candidate - champion if champion is not None and candidate is not None else None
    if texts:
        answers = [shown_answer(result.samples[0].text) if result.samples else "" for result in results]
        yield from (text[:CHARACTERS] for text in (item.id, _question(item), item.reference, *answers))


def _right(result: ItemResult) -> float | None:
    scores = [score for sample in result.samples if (score := sample.outcome.score) is not None]
    return sum(scores) / len(scores) if scores else None


def _question(item: Item) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in shown(item.messages))


def limits(section: Evaluation, not_asked: Collection[str] = ()) -> str:
    asked = [each.name for each in section.asked if each.name not in not_asked]
    judged = [each.name for each in section.judged if each.over not in not_asked]
    text = f"Asked: {', '.join([*asked, *judged])}. "
    if judged:
        return f"{text}A judge compares the answers of {', '.join(judged)}: what it does not see, the verdict does not."
    return f"{text}Reward and evaluation share the verifier: what it cannot see, neither of them sees."


def suite_sentences(report: EvalReport) -> Iterator[tuple[str, str]]:
    """A sentence for each suite, with its name."""
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
