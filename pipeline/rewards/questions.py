"""Which completions a paid judge has a say on, and the keys under which the journal has it.

A key holds all that decides an answer: who judges by what, and what is judged. Refuses to ask: `asking` does.
"""

from __future__ import annotations

from pipeline.recipe.rewards import Rewards
from pipeline.rewards.composite import weights_of
from pipeline.rewards.findings import key_of
from pipeline.rewards.samples import RewardSample

RAG = ("faithfulness", "answer_relevancy", "context_precision", "context_recall")


def judge_key(judge_id: str, sample: RewardSample) -> str:
    return key_of("judge", judge_id, sample.trace_id, sample.prompt, sample.completion, sample.reference or "")


def rag_key(rag_id: str, sample: RewardSample) -> str:
    return key_of(
        "rag", rag_id, sample.trace_id, sample.prompt, sample.completion, sample.reference or "", *sample.contexts
    )


def wants_judge(sample: RewardSample, settings: Rewards) -> bool:
    """Whether the judge's word would count, and the seed's cost rule doesn't say that users have spoken."""
    if settings.judge is None or weights_of(sample.profile, settings).judge == 0:
        return False
    return not (sample.profile == "rated" and settings.judge.skip_rated)


def wants_rag(sample: RewardSample, settings: Rewards) -> bool:
    weights = weights_of(sample.profile, settings)
    return settings.rag is not None and bool(sample.contexts) and any(getattr(weights, name) > 0 for name in RAG)


def audits(sample: RewardSample, settings: Rewards) -> bool:
    """Whether the judge may be asked about a verified completion, only to hold its word against the verifier's."""
    return settings.judge is not None and settings.judge.audits > 0 and sample.profile == "verified"
