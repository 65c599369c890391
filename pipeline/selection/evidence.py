"""What the labelled set can teach, in numbers with their intervals; prompts are the independent units. Label noise is
the expected share of pairs the wrong way round (docs/selection.md): a pair errs by the mean of its labels' errors."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from pipeline.core.estimate import UNKNOWN, Estimate, share
from pipeline.core.storage import Record
from pipeline.recipe import Selection
from pipeline.recipe.sources import IMPORTED
from pipeline.selection.pairing import LabelledRow, Pair, by_prompt, pairs
from pipeline.selection.unpaired import ScorerEvidence, is_liked

ENOUGH_REVIEWS = 100
"""Fewer leave an interval of 0.1 and more at any noise that DPO bears."""
ASSUMED_RIGHT = Estimate(value=0.0, low=0.0, high=0.0, n=0)

_SOURCE = {"verified": "verifier", "rated": "feedback", "judged": "judge", "imported": "imports"}
_AUDITED: dict[str, Callable[[LabelledRow], float | None]] = {
    "feedback": lambda row: row.feedback,
    "judge": lambda row: row.judge,
    "imports": lambda row: row.final_reward if row.profile == IMPORTED else None,
}
"""What of the sources the verifier can be held against."""


class NoiseSource(Record):
    share: float
    """Of the sides of all pairs, in [0, 1]."""
    noise: Estimate
    """Expected share of pairs the wrong way round, if they rested on this source alone."""


def noise_sources(
    groups: Sequence[Sequence[LabelledRow]], pairs: Sequence[Pair], human: Estimate, settings: Selection
) -> dict[str, NoiseSource]:
    """By kind of label; empty without pairs. `groups`: the labelled completions of each prompt that has several;
    `human`: share of reviewed labels on whose side people disagree."""
    if not pairs:
        return {}
    if human.n >= ENOUGH_REVIEWS:
        # People review labels: at worst each wrong label among the comparable ones sits on a side of a pair.
        sides_each = max(1.0, sum(map(len, groups)) / (2 * len(pairs)))
        noise = human.model_copy(update={"high": min(1.0, (human.high or 0.0) * sides_each)})
        return {"people": NoiseSource(share=1.0, noise=noise)}
    sides = Counter(_SOURCE.get(row.profile, "judge") for pair in pairs for row in (pair.chosen, pair.rejected))
    sources: dict[str, NoiseSource] = {}
    for source, number in sorted(sides.items()):
        noise = _audit(groups, _AUDITED[source], settings) if source in _AUDITED else ASSUMED_RIGHT
        if source == "imports" and not noise.n:  # none has a reference: what a person declared counts
            noise = ASSUMED_RIGHT
        sources[source] = NoiseSource(share=number / (2 * len(pairs)), noise=noise)
    return sources


def label_noise(sources: Mapping[str, NoiseSource]) -> Estimate:
    """Mean over the sources by their share, its interval by MOVER (Zou and Donner 2008). A source of unknown noise
    counts as anything from 0 to 1; where it carries more than half of the sides, the whole is unknown."""
    known = [(s.share, s.noise.value, s.noise.low, s.noise.high) for s in sources.values()]
    n = sum(s.noise.n for s in sources.values())
    unknown = sum(weight for weight, value, _, _ in known if value is None)
    if not sources or unknown > 0.5:
        return Estimate(value=None, low=None, high=None, n=n)
    value = below = above = 0.0
    for weight, middle, low, high in known:
        if middle is not None and low is not None and high is not None:
            value += weight * middle
            below += (weight * (middle - low)) ** 2
            above += (weight * (high - middle)) ** 2
    return Estimate(
        value=value + unknown / 2,
        low=max(0.0, value - math.sqrt(below)),
        high=min(1.0, value + math.sqrt(above) + unknown),
        n=n,
    )


def _audit(
    groups: Sequence[Sequence[LabelledRow]], score: Callable[[LabelledRow], float | None], settings: Selection
) -> Estimate:
    """Noise of the pairs that a source's labels of verified completions make; one observation a prompt."""
    wrong: list[float] = []
    for group in groups:
        rescored = [row._replace(final_reward=score(row), profile="audit") for row in group if row.correct is not None]
        audit_pairs = pairs({"": rescored}, settings)
        if audit_pairs:
            wrong.append(fmean((1 + (p.rejected.correct or 0.0) - (p.chosen.correct or 0.0)) / 2 for p in audit_pairs))
    return share(sum(wrong), len(wrong))


class PromptStats(NamedTuple):
    prompt: str
    reference: str
    verifier: str | None
    right: int
    attempts: int
    status: str
    trace_ids: tuple[str, ...]

    @property
    def informative(self) -> float:
        """Expected p(1 - p) of a right answer, every p being as likely before the attempts."""
        wrong = self.attempts - self.right
        return (self.right + 1) * (wrong + 1) / ((self.attempts + 2) * (self.attempts + 3))


def prompt_stats(groups: Mapping[str, Sequence[LabelledRow]], settings: Selection) -> list[PromptStats]:
    """Of the prompts that can be verified. Two references of one prompt make it ambiguous."""
    stats: list[PromptStats] = []
    for prompt, group in groups.items():
        references = {row.reference: row.verifier for row in group if row.reference}
        verified = [row.correct > 0.5 for row in group if row.correct is not None]
        if not references or not verified:
            continue
        right, attempts = sum(verified), len(verified)
        reference, verifier = min(references.items())
        if len(references) > 1:
            status = "ambiguous"
        elif 0 < right < attempts:
            status = "frontier"
        elif on_frontier(right, attempts, settings.curriculum_attempts):
            status = "unknown"
        else:
            status = "solved" if right else "unsolved"
        ids = tuple(row.trace_id for row in group)
        stats.append(PromptStats(prompt, reference, verifier, right, attempts, status, ids))
    return stats


class PromptAttempts(NamedTuple):
    """How many verifiable prompts were verified `of` times and found right `right` times."""

    right: int
    of: int
    prompts: int
    frontier: bool
    """Not known to be always right or always wrong."""


class Evidence(Record):
    traces: int
    labelled: int
    coverage: float
    """labelled / traces: a census."""
    prompts: int
    groups: int
    """Prompts with at least two labelled completions."""
    verifiable_prompts: int
    verifiable_share: Estimate
    """Of the prompts: those whose reward can be recomputed on a fresh completion."""
    """Of the groups: those whose verified outcomes, else rewards, are all equal."""
    attempts: tuple[PromptAttempts, ...]
    """Every verifiable prompt."""
    frontier_prompts: int
    pairs: int
    label_noise: Estimate
    """Expected share of pairs the wrong way round."""
    noise_sources: dict[str, NoiseSource]
    thumbs: int = 0
    """Answers that people clearly liked or did not."""
    rarer_thumb: Estimate = UNKNOWN
    """Share of the rarer kind among the thumbs."""
    contrasted_thumbs: int = 0
    """The thumbs, where there are both kinds: of one kind alone nothing is learned."""
    imported_thumbs: int = 0
    """The thumbs that are answers of imports, and good or bad as declared with them."""
    winners: int = 0
    """Best answers: of prompts with one among fresh samples, and the demonstrations."""
    demonstrations: int = 0
    """The winners that are of imports, and good as declared with them."""
    scorers: ScorerEvidence = ScorerEvidence()
    scored_prompts: int = 0
    """Prompts without a reference whose fresh samples differ in score."""

    @property
    def policy_prompts(self) -> int:
        """Prompts that a policy can be trained to answer: those that can be checked, else those that can be scored."""
        return self.frontier_prompts or self.scored_prompts


def measure(
    rows: Sequence[LabelledRow],
    pairs: Sequence[Pair],
    human: Estimate,
    settings: Selection,
    thumbs: Sequence[LabelledRow] = (),
) -> Evidence:
    """All but what comes from fresh samples and demonstrations."""
    several = _comparable(rows)
    sources = noise_sources(several, pairs, human, settings)
    rows = _counted(rows)
    groups, several = by_prompt(rows), _comparable(rows)
    tried = Counter(
        (each.right, each.attempts) for each in prompt_stats(groups, settings) if each.status != "ambiguous"
    )
    attempts = tuple(
        PromptAttempts(*done, prompts, on_frontier(*done, settings.curriculum_attempts))
        for done, prompts in sorted(tried.items())
    )
    logged = [row for row in rows if not row.fresh]
    labelled = len(_labelled(logged))
    liked = sum(map(is_liked, thumbs))
    rarer = min(liked, len(thumbs) - liked)
    return Evidence(
        traces=len(logged),
        labelled=labelled,
        coverage=labelled / len(logged) if logged else 0.0,
        prompts=len(groups),
        groups=len(several),
        verifiable_prompts=tried.total(),
        verifiable_share=share(tried.total(), len(groups)),
        attempts=attempts,
        frontier_prompts=sum(each.prompts for each in attempts if each.frontier),
        pairs=len(pairs),
        label_noise=label_noise(sources),
        noise_sources=sources,
        thumbs=len(thumbs),
        rarer_thumb=share(rarer, len(thumbs)),
        contrasted_thumbs=len(thumbs) if rarer else 0,
        imported_thumbs=sum(thumb.origin is not None for thumb in thumbs),
    )


def _comparable(rows: Sequence[LabelledRow]) -> list[list[LabelledRow]]:
    """Of each prompt that has several labelled completions those, but for fresh ones that only a scorer rewarded."""
    trusted = by_prompt([row for row in rows if row.profile != "fresh"]).values()
    return [labelled for group in trusted if len(labelled := _labelled(group)) > 1]


def _counted(rows: Sequence[LabelledRow]) -> Sequence[LabelledRow]:
    """Without imports, which say nothing of the traffic; where no trace has a label, without the traces."""
    if not any(row.origin for row in rows):
        return rows
    traced = any(row.final_reward is not None for row in rows if not row.origin and not row.fresh)
    return [row for row in rows if row.fresh or bool(row.origin) != traced]


def on_frontier(right: int, of: int, attempts: int) -> bool:
    """Whether a prompt may still teach: too seldom tried to tell, or answered both right and wrong."""
    return of < attempts or 0 < right < of


def _labelled(rows: Sequence[LabelledRow]) -> list[LabelledRow]:
    return [row for row in rows if row.final_reward is not None]
