"""The report as one HTML file for people, with the answers that changed side by side. It holds the texts of answers, so
it is written where its reader asks for it, and nowhere else."""

import base64
import html
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from evals import report as reports
from evals.bundle import EvalEvidence, SuiteEvidence
from evals.gate import GateVerdict
from evals.judged_evidence import JudgedEvidence
from evals.measurements import EvalReport
from evals.results import EvalSample, ItemResult
from evals.suites import Item
from pipeline.core.conversation import shown, shown_answer
from pipeline.core.markdown import plain
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
        asked = "\n".join(f"{message['role']}: {message['content']}" for message in shown(item.messages))
        answers = [shown_answer(result.samples[0].text) if result.samples else "" for result in results]
        yield from (text[:CHARACTERS] for text in (item.id, asked, item.reference, *answers))


def _right(result: ItemResult) -> float | None:
    scores = [score for sample in result.samples if (score := sample.outcome.score) is not None]
    return sum(scores) / len(scores) if scores else None


SHOWN = 20
"""Changed answers of each direction and suite, at most."""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 0.8rem 0 } th, td { border: 1px solid #ccc; padding: 0.25rem 0.6rem }
th { text-align: left; background: #f4f4f4 } img { max-width: 100% }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font-size: 13px }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: 0.4rem 0 1.2rem }
.pair div, .asked { border: 1px solid #ddd; border-radius: 4px; padding: 0.5rem }
.PASS { color: #00704f } .FAIL { color: #b34700 } .INCONCLUSIVE { color: #555 }
"""


class ChangedAnswer(NamedTuple):
    """One sample, drawn by one seed, that is right under one model and not under the other."""

    item: Item
    champion: EvalSample
    candidate: EvalSample


def changed(evidence: SuiteEvidence) -> tuple[list[ChangedAnswer], list[ChangedAnswer]]:
    """From right to wrong, and from wrong to right: the first such sample of each item, in the suite's order."""
    lost: list[ChangedAnswer] = []
    won: list[ChangedAnswer] = []
    one, other = ({result.id: result.samples for result in arm.results} for arm in evidence.arms)
    for item in evidence.suite.items:
        pairs = list(zip(one.get(item.id, ()), other.get(item.id, ()), strict=False))
        for places, before, after in ((lost, 1.0, 0.0), (won, 0.0, 1.0)):
            first = next(((a, b) for a, b in pairs if (a.outcome.score, b.outcome.score) == (before, after)), None)
            if first:
                places.append(ChangedAnswer(item, *first))
    return lost, won


def page(evidence: EvalEvidence, report: EvalReport, verdict: GateVerdict) -> str:
    """The whole file."""
    title = f"Evaluation of iteration {html.escape(report.iteration)}"
    png = base64.b64encode(reports.picture(report).png()).decode()
    parts = [
        f"<h1>{title}: <span class='{verdict.verdict}'>{verdict.verdict}</span></h1>",
        "<ul>", *(f"<li>{html.escape(reason)}</li>" for reason in verdict.reasons), "</ul>",
        f"<p>Champion {report.champion.digest[:12]}, candidate {report.candidate.digest[:12]}, "
        f"evidence {report.bundle.digest[:12]}.</p>",
        f"<img alt='Scores and paired differences with intervals' src='data:image/png;base64,{png}'>",
        *tables(reports.table(report)),
        *(line for each in evidence.suites if not _unchecked(each) for line in _changes(each)),
        *(line for each in evidence.judged for line in _preferences(each, evidence)),
    ]  # fmt: skip
    head = f"<meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>\n" + "\n".join(parts) + "\n</body></html>\n"


def tables(markdown: str) -> Iterator[str]:
    """The report's own Markdown, which has headings, tables, lists and paragraphs and nothing else."""
    tag = "th"
    for line in markdown.split("\n"):
        if not line.startswith("|"):
            yield from ["</table>"] * (tag == "td")
            tag = "th"
        if line.startswith("### "):
            yield f"<h2>{html.escape(plain(line.removeprefix('### ')))}</h2>"
        elif line.startswith("|"):
            cells = [html.escape(plain(cell.strip())) for cell in re.split(r"(?<!\\)\|", line[1:].removesuffix("|"))]
            if not all(re.fullmatch("-+", cell) for cell in cells):
                row = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
                yield f"{'<table>' * (tag == 'th')}<tr>{row}</tr>"
                tag = "td"
        elif line:
            yield f"<p>{html.escape(plain(line.removeprefix('- ')))}</p>"
    yield from ["</table>"] * (tag == "td")


def _changes(evidence: SuiteEvidence) -> Iterator[str]:
    name = html.escape(evidence.suite.name)
    for title, answers in zip(("from right to wrong", "from wrong to right"), changed(evidence), strict=True):
        asked = len(evidence.arms[1].results)
        yield from _section(f"{name}: {title} ({len(answers):,} of {asked:,} items)", answers)


def _section(title: str, answers: Sequence[ChangedAnswer]) -> Iterator[str]:
    yield f"<h2>{title}</h2>"
    if len(answers) > SHOWN:
        yield f"<p>The first {SHOWN} of them.</p>"
    yield from map(_pair, answers[:SHOWN])


def _unchecked(evidence: SuiteEvidence) -> bool:
    return all(item.check == "none" for item in evidence.suite.items)


def _preferences(judged: JudgedEvidence, evidence: EvalEvidence) -> Iterator[str]:
    """The pairs of a judged suite that one model won in both orders, with both answers."""
    over = evidence.provenance.section.judged_suite(judged.suite).over
    answers = next((each for each in evidence.suites if each.suite.name == over), None)
    if answers is None or not judged.pairs:
        return
    items = {item.id: item for item in answers.suite.items}
    one, other = ({result.id: result.samples for result in arm.results} for arm in answers.arms)
    name, pairs = html.escape(judged.suite), judged.pairs
    split = sum(each.candidate_first is not None and not each.agrees for each in pairs)
    flips = f"{name}: in {split:,} of {len(pairs):,} pairs the judge preferred another answer when they were swapped."
    yield f"<p>{flips}</p>"
    for title, outcome in (("champion", 0.0), ("candidate", 1.0)):
        won = [each.item for each in pairs if each.candidate_first is not None and each.outcome == outcome]
        title = f"{name}: the {title}'s answer is preferred ({len(won):,} of {len(pairs):,} pairs)"
        yield from _section(title, [ChangedAnswer(items[id], one[id][0], other[id][0]) for id in won])


def _pair(answer: ChangedAnswer) -> str:
    reference = f" (reference {html.escape(answer.item.reference)})" if answer.item.reference else ""
    asked = "\n".join(f"{message['role']}: {message['content']}" for message in shown(answer.item.messages))
    return (
        f"<p class='asked'><b>{html.escape(answer.item.id)}</b>{reference}</p>"
        f"<pre class='asked'>{html.escape(asked)}</pre>"
        f"<div class='pair'>{_answer('champion', answer.champion)}{_answer('candidate', answer.candidate)}</div>"
    )


def _answer(arm: str, sample: EvalSample) -> str:
    graded = "" if sample.outcome is Outcome.unchecked else f"{sample.outcome}, "
    about = f"{arm}: {graded}{sample.tokens} tokens{'' if sample.finished else ', cut off'}"
    return f"<div><b>{html.escape(about)}</b><pre>{html.escape(shown_answer(sample.text))}</pre></div>"
