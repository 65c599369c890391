"""The evidence with its answers side by side: a table for MLflow without what is a user's, and one HTML file. The file
holds texts of answers, so it is written where its reader asks for it, and nowhere else."""

import base64
import html
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from evals import report as reports
from evals.bundle import EvalEvidence, SuiteEvidence
from evals.gate import GateVerdict
from evals.records import EvalReport, EvalSample, ItemResult
from evals.suites import Item
from pipeline.core.conversation import shown, shown_answer
from pipeline.recipe.suites import TracesSuite
from pipeline.rewards.verifiers import Outcome

ROWS = 500
"""Of a suite at most, those first that changed most."""
CHARACTERS = 4000
"""Of a text at most."""
SHARES = ("suite", "slice", "champion", "candidate", "difference")
TEXTS = ("item", "question", "reference", "champion's answer", "candidate's answer")


def answer_table(evidence: EvalEvidence, texts: bool) -> dict[str, Any]:
    """`columns` and `data`. `champion` and `candidate` are shares of right answers of all that were graded, None where
    none was; an answer is the first of its item."""
    section = evidence.provenance.section
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


SHOWN = 20
"""Answers of each heading, at most."""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100% } th, td { border: 1px solid #ccc; padding: 0.3rem; vertical-align: top }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font-size: 13px } img { max-width: 100% }
"""


class ShownPair(NamedTuple):
    item: Item
    champion: EvalSample
    candidate: EvalSample


def page(evidence: EvalEvidence, report: EvalReport, verdict: GateVerdict) -> str:
    """The whole file: verdict, intervals, the answers that changed, and the pairs that a judge decided."""
    title = f"Evaluation of iteration {html.escape(report.iteration)}"
    head = f"<meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>"
    png = base64.b64encode(reports.picture(report).png()).decode()
    parts = [
        f"<!doctype html><html lang='en'><head>{head}</head>",
        f"<body><h1>{title}</h1><p>Champion {report.champion.digest[:12]}, candidate {report.candidate.digest[:12]}, "
        f"evidence {report.bundle.digest[:12]}.</p>",
        f"<img alt='Paired differences with intervals' src='data:image/png;base64,{png}'>",
        reports.to_html(reports.table(report, verdict)),
        *(line for each in evidence.suites for line in _changes(each)),
        *_preferences(evidence),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _changes(evidence: SuiteEvidence) -> Iterator[str]:
    """Of each item the first sample, drawn by one seed, that is right under one model and not under the other."""
    one, other = ({result.id: result.samples for result in arm.results} for arm in evidence.arms)
    drawn = [
        ShownPair(item, *samples)
        for item in evidence.suite.items
        for samples in zip(one.get(item.id, ()), other.get(item.id, ()), strict=False)
    ]
    for what, scores in (("right to wrong", (1.0, 0.0)), ("wrong to right", (0.0, 1.0))):
        firsts: dict[str, ShownPair] = {}
        for each in drawn:
            if (each.champion.outcome.score, each.candidate.outcome.score) == scores:
                firsts.setdefault(each.item.id, each)
        if firsts:
            yield from _section(f"{evidence.suite.name}: from {what}", len(evidence.suite.items), [*firsts.values()])


def _preferences(evidence: EvalEvidence) -> Iterator[str]:
    """The pairs of each judged suite that one model won in both orders."""
    answered = {each.suite.name: each for each in evidence.suites}
    for judged in evidence.judged:
        over = answered.get(evidence.provenance.section.judged_suite(judged.suite).over)
        if over is None:
            continue
        items = {item.id: item for item in over.suite.items}
        one, other = ({result.id: result.samples for result in arm.results} for arm in over.arms)
        for who, outcome in (("champion", 0.0), ("candidate", 1.0)):
            won = [each.item for each in judged.pairs if each.candidate_first is not None and each.outcome == outcome]
            pairs = [ShownPair(items[id], one[id][0], other[id][0]) for id in won]
            yield from _section(f"{judged.suite}: the {who}'s answer is preferred", len(judged.pairs), pairs)


def _section(title: str, of: int, pairs: Sequence[ShownPair]) -> Iterator[str]:
    first = f", the first {SHOWN} of them" if len(pairs) > SHOWN else ""
    yield f"<h2>{html.escape(title)} ({len(pairs):,} of {of:,}{first})</h2>"
    yield "<table><tr><th>item</th><th>champion</th><th>candidate</th></tr>"
    for pair in pairs[:SHOWN]:
        reference = f"\nreference: {pair.item.reference}" if pair.item.reference else ""
        cells = [f"{pair.item.id}\n{_question(pair.item)}{reference}", _answer(pair.champion), _answer(pair.candidate)]
        yield f"<tr>{''.join(f'<td><pre>{html.escape(cell)}</pre></td>' for cell in cells)}</tr>"
    yield "</table>"


def _answer(sample: EvalSample) -> str:
    graded = "" if sample.outcome is Outcome.unchecked else f"{sample.outcome}, "
    return f"[{graded}{sample.tokens} tokens{'' if sample.finished else ', cut off'}]\n{shown_answer(sample.text)}"
