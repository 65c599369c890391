"""The reward model's card: what a person reads before its word is believed, in Markdown. It holds no user's text."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.rewards.reward_model.records import RewardModelReport

CAVEAT = """
An AUC against noisy thumbs is capped by their noise, and says little of one prompt's answers.
Pairs that differ in one thing show what it hides:
"""
USE = """
## Use

It scores fresh completions for training, and never decides a promotion. An answer
without its end token is worth 0. It rewards what users liked, whether or not that was right.
"""


def card(report: RewardModelReport) -> str:
    """The card of any report. The same report gives the same card; it names no place and no time."""
    lines = [f"# Reward model of iteration {report.iteration}", ""]
    if report.reason:
        lines += [f"There is none. {report.reason}", ""]
    else:
        verdict = "Admitted: every figure of the rule holds." if report.admitted else "Not admitted:"
        lines += [verdict, "", *(f"- {reason}" for reason in report.reasons), ""]
    counts, split = report.counts, report.split
    if counts.thumbs or counts.left_out:
        rows = [("thumbs", f"{counts.thumbs:,}"), ("users", f"{counts.users:,}"), ("share up", str(counts.up))]
        rows += [("largest share of one user", f"{counts.largest_user_share:.1%}")]
        rows += [(f"left out: {reason}", f"{n:,}") for reason, n in counts.left_out.items()]
        lines += ["## Thumbs", "", *_table(("", "value"), rows), ""]
    if split is not None:
        named = [("trained on", split.trained), ("epoch chosen by", split.validation), ("measured by", split.held_out)]
        parts = [(name, f"{thumbs:,}", f"{users:,}") for name, (thumbs, users) in named]
        error = "unknown" if report.calibration_error is None else f"{report.calibration_error:.3f}"
        measures = [
            ("AUC against their thumbs (95% interval: bootstrap over users)", str(report.auc)),
            ("order within a prompt (pairs; bootstrap over prompts)", str(report.within)),
            (f"expected calibration error (n={report.auc.n:,})", error),
        ]
        probes = [(p.name, p.kind, str(p.ordered_right), "yes" if p.passes else "no") for p in report.probes]
        base = report.base.digest if report.base is not None else "unknown"
        lineage = [("trained from", base), ("labels", report.labels_digest), ("rows", report.rows_digest)]
        lineage += [("users trained on", report.users_hash)]
        lines += ["## Split by user", "", *_table(("part", "thumbs", "users"), parts), ""]
        lines += ["## On users that it was never trained on", "", *_table(("measure", "value"), measures), CAVEAT]
        lines += [*_table(("probe", "kind", "ordered right", "passes"), probes), USE]
        lines += ["## Lineage", "", *_table(("what", "digest"), lineage)]
    return "\n".join(lines).rstrip() + "\n"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (headers, ["---"] * len(headers), *rows)]
