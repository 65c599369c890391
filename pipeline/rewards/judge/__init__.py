"""The LLM judge: any OpenAI-compatible endpoint that scores a completion, or says which of two is better.

Owns asking: the prompt, the protocol, the budget, the start-up gate. An answer that is not exactly what was asked for
is an abstention with a reason, never a score. Refuses to know of traces, and to remember answers: the caller does.
"""

from __future__ import annotations

from pipeline.rewards.judge.answers import (
    Admission,
    JudgeAway,
    Judgement,
    JudgeReason,
    JudgeRefused,
    JudgeRequest,
    PairComparison,
    Preferred,
)
from pipeline.rewards.judge.budget import Budget, TokenUsage
from pipeline.rewards.judge.session import JudgeSession, open_judge
from pipeline.serving.endpoint import Endpoint

__all__ = [
    "Admission",
    "Budget",
    "Endpoint",
    "JudgeAway",
    "JudgeReason",
    "JudgeRefused",
    "JudgeRequest",
    "JudgeSession",
    "Judgement",
    "PairComparison",
    "Preferred",
    "TokenUsage",
    "open_judge",
]
