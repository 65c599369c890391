"""GRPO, DPO, or not now: the rule.

GRPO draws *fresh* completions, so it needs prompts whose reward can be recomputed (a verifiable share), enough of
them at the learning frontier, and groups that are not all right or all wrong. It ranks within a group, so it bears
noisy labels (arXiv 2402.03300). DPO learns from *logged* pairs and needs no generation, but every mislabelled pair
pulls the wrong way (arXiv 2305.18290): it needs many pairs and little noise. Where both qualify GRPO goes first,
because its reward is measured anew and not remembered; where neither does there is no training, with what would
change it. Coverage below the floor stops both: an unlabelled majority makes any evidence a guess. A method forced by
the recipe is taken if it can run at all, and the record says that it was forced and what it lacked.

Departure from the seed's table: it recommends DPO for "clear preferred / non-preferred" data even where rewards are
verifiable; here a verifiable reward wins, for the reason above.
"""

from __future__ import annotations

from typing import Literal

from pipeline.recipe import Selection
from pipeline.selection.evidence import Evidence
from pipeline.storage import Record

Method = Literal["grpo", "dpo", "none"]


class Decision(Record):
    """The method and the grounds for it. `lacks` names, for each method not taken on merit, what it lacked."""

    method: Method
    forced: bool
    reasons: tuple[str, ...]
    lacks: dict[str, tuple[str, ...]]
    evidence: Evidence
    thresholds: Selection


def choose(evidence: Evidence, thresholds: Selection, min_coverage: float) -> Decision:
    """Apply the rule. Every reason carries the observed value and the threshold that it was held against."""
    floor = _needs(("label coverage", evidence.coverage, ">=", min_coverage))
    grpo = floor + _needs(
        ("verifiable share of prompts", evidence.verifiable_share, ">=", thresholds.min_verifiable_share),
        ("verifiable prompts with something to learn", evidence.frontier_prompts, ">=", thresholds.min_prompts),
        ("share of zero-variance groups", evidence.zero_variance_share, "<=", thresholds.max_zero_variance_share),
    )
    dpo = floor + _needs(
        ("preference pairs", evidence.pairs, ">=", thresholds.min_pairs),
        ("label noise", evidence.label_noise, "<=", thresholds.max_label_noise),
    )
    lacks = {name: tuple(what) for name, what in (("grpo", grpo), ("dpo", dpo)) if what}

    def decided(method: Method, *reasons: str) -> Decision:
        forced = thresholds.method != "auto"
        return Decision(
            method=method, forced=forced, reasons=reasons, lacks=lacks, evidence=evidence, thresholds=thresholds
        )

    if thresholds.method != "auto":
        material = evidence.verifiable_prompts if thresholds.method == "grpo" else evidence.pairs
        if material == 0:
            what = "verifiable prompts" if thresholds.method == "grpo" else "preference pairs"
            return decided("none", f"the recipe forces {thresholds.method.upper()}, but there are no {what} at all")
        return decided(thresholds.method, f"forced by the recipe (selection.method: {thresholds.method})")
    if not grpo:
        return decided(
            "grpo",
            f"{evidence.verifiable_share:.0%} of the prompts can be scored afresh",
            f"{evidence.frontier_prompts} verifiable prompts are not yet always right",
            f"{1 - evidence.zero_variance_share:.0%} of the logged groups hold both good and bad completions",
        )
    if not dpo:
        return decided(
            "dpo",
            f"{evidence.pairs} pairs with a mean margin of {evidence.mean_margin:.2f}",
            f"feedback and verifier disagree on {evidence.label_noise:.0%} of {evidence.noise_sample} traces",
        )
    return decided("none", *(f"{name.upper()} lacks {what}" for name, why in lacks.items() for what in why))


def _needs(*checks: tuple[str, float, str, float]) -> list[str]:
    """The checks that do not hold, each as a sentence with the observed value and the threshold."""
    failed = [c for c in checks if not (c[1] >= c[3] if c[2] == ">=" else c[1] <= c[3])]
    return [f"{name}: {_number(value)}, needs {sign} {_number(limit)}" for name, value, sign, limit in failed]


def _number(value: float) -> str:
    return f"{value:d}" if isinstance(value, int) else f"{value:.2f}"
