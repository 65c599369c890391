"""What the labelled set can teach, in numbers with their intervals. Prompts are the independent units."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pvariance
from typing import NamedTuple

from pipeline.core.estimate import UNKNOWN, Estimate, mean, share
from pipeline.core.storage import Record
from pipeline.recipe import Selection
from pipeline.selection.noise import NoiseSource, Trust, label_noise, noise_sources
from pipeline.selection.pairing import LabelledRow, Pair, by_prompt
from pipeline.selection.scorers import ScorerEvidence
from pipeline.selection.thumbs import RatedAnswer


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
    zero_variance_share: Estimate
    """Of the groups: those whose verified outcomes, else rewards, are all equal."""
    reward_variance: Estimate
    """Mean variance of `final_reward` within a group."""
    distinct_completions: Estimate
    """Mean number of distinct completions in a group."""
    attempts: tuple[PromptAttempts, ...]
    """Every verifiable prompt."""
    frontier_prompts: int
    pairs: int
    margin: Estimate
    """Mean margin of the pairs."""
    label_noise: Estimate
    """Expected share of pairs the wrong way round."""
    noise_sources: dict[str, NoiseSource]
    trust: Trust
    thumbs: int = 0
    """Answers that people clearly liked or did not."""
    thumb_users: int = 0
    """People behind them."""
    rarer_thumb: Estimate = UNKNOWN
    """Share of the rarer kind among the thumbs."""
    contrasted_thumbs: int = 0
    """The thumbs, where there are both kinds: of one kind alone nothing is learned."""
    winners: int = 0
    """Prompts with a best answer among fresh samples."""
    scorers: ScorerEvidence = ScorerEvidence()
    scored_prompts: int = 0
    """Prompts without a reference whose fresh samples differ in score."""
    prompt_chars: float
    completion_chars: float
    """Mean lengths, for the estimate of cost."""

    @property
    def policy_prompts(self) -> int:
        """Prompts that a policy can be trained to answer: those that can be checked, else those that can be scored."""
        return self.frontier_prompts or self.scored_prompts


class FreshSignals(NamedTuple):
    """The fields of Evidence that come from fresh samples."""

    winners: int = 0
    scorers: ScorerEvidence = ScorerEvidence()
    scored_prompts: int = 0


def measure(
    rows: Sequence[LabelledRow],
    pairs: Sequence[Pair],
    trust: Trust,
    settings: Selection,
    thumbs: Sequence[RatedAnswer] = (),
    fresh: FreshSignals = FreshSignals(),  # noqa: B008 (it is frozen)
) -> Evidence:
    groups = by_prompt(rows)
    trusted = {prompt: [row for row in group if row.profile != "fresh"] for prompt, group in groups.items()}
    several = [labelled_rows for group in trusted.values() if len(labelled_rows := _labelled(group)) > 1]
    tried: Counter[tuple[int, int]] = Counter()
    for group in groups.values():
        verified = [row.correct > 0.5 for row in group if row.correct is not None]
        if verified and len({row.reference for row in group if row.reference}) == 1:
            tried[sum(verified), len(verified)] += 1
    attempts = tuple(
        PromptAttempts(*done, prompts, on_frontier(*done, settings.curriculum_attempts))
        for done, prompts in sorted(tried.items())
    )
    sources = noise_sources(several, pairs, trust, settings)
    logged = [row for row in rows if not row.fresh]
    labelled_rows = _labelled(logged)
    liked = sum(thumb.liked for thumb in thumbs)
    rarer = min(liked, len(thumbs) - liked)
    return Evidence(
        traces=len(logged),
        labelled=len(labelled_rows),
        coverage=len(labelled_rows) / len(logged) if logged else 0.0,
        prompts=len(groups),
        groups=len(several),
        verifiable_prompts=tried.total(),
        verifiable_share=share(tried.total(), len(groups)),
        zero_variance_share=share(sum(map(_constant, several)), len(several)),
        reward_variance=mean([pvariance([row.final_reward or 0.0 for row in group]) for group in several]),
        distinct_completions=mean([len({row.completion for row in group}) for group in several]),
        attempts=attempts,
        frontier_prompts=sum(each.prompts for each in attempts if each.frontier),
        pairs=len(pairs),
        margin=mean([pair.margin for pair in pairs]),
        label_noise=label_noise(sources),
        noise_sources=sources,
        trust=trust,
        thumbs=len(thumbs),
        thumb_users=len({thumb.row.user_id for thumb in thumbs}),
        rarer_thumb=share(rarer, len(thumbs)),
        contrasted_thumbs=len(thumbs) if rarer else 0,
        **fresh._asdict(),
        prompt_chars=fmean(len(row.prompt) for row in labelled_rows) if labelled_rows else 0.0,
        completion_chars=fmean(len(row.completion) for row in labelled_rows) if labelled_rows else 0.0,
    )


def on_frontier(right: int, of: int, attempts: int) -> bool:
    """Whether a prompt may still teach: too seldom tried to tell, or answered both right and wrong."""
    return of < attempts or 0 < right < of


def _labelled(rows: Sequence[LabelledRow]) -> list[LabelledRow]:
    return [row for row in rows if row.final_reward is not None]


def _constant(group: Sequence[LabelledRow]) -> bool:
    verified = [row.correct for row in group if row.correct is not None]
    values = verified if len(verified) > 1 else [row.final_reward for row in group]
    return len(set(values)) == 1
