"""What a judge's response says, read as strictly as it was asked for: anything else is a reason to abstain.

Owns the two JSON texts, the server's and the model's inside of it: no duplicate or extra keys, no NaN, no number in a
string, no prose around them. Refuses to repair: a judge that cannot follow its form cannot be trusted with a score.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pipeline.rewards.judge.answers import JudgeReason
from pipeline.rewards.judge.budget import TokenUsage
from pipeline.serving.completion import strict_json

MOST_TOKENS = 10_000_000
"""Of one request that a server can be believed: no context window is that long."""

Winner = Literal["A", "B", "tie"]


class Reply(NamedTuple):
    """The model's text, or why there is none; and the tokens that the server says it took, if it can be believed."""

    content: str | None
    reason: JudgeReason | None
    usage: TokenUsage | None
    other_model: str = ""
    """Who answered, where it was not the one that was asked."""


def refused_field(body: bytes) -> str:
    """The field of the request that an error names, as OpenAI's API has it; "" where it names none."""
    try:
        reply = strict_json(body.decode())
    except ValueError:
        return ""
    match reply:
        case {"error": {"param": str(field)}}:
            return field
        case _:
            return ""


def read_reply(body: bytes, model: str) -> Reply:
    """A chat completion of `model`, with exactly one choice that was finished."""
    try:
        reply = strict_json(body.decode())
    except ValueError:
        return Reply(None, JudgeReason.MALFORMED, None)
    if not isinstance(reply, dict):
        return Reply(None, JudgeReason.MALFORMED, None)
    usage = _usage(reply.get("usage"))
    match reply:
        case {"model": str(named), "choices": [{"message": dict(message), "finish_reason": str(finish)}]}:
            if named != model:
                return Reply(None, JudgeReason.OTHER_MODEL, usage, named)
            return Reply(*_content(message, finish), usage)
        case _:
            return Reply(None, JudgeReason.MALFORMED, usage)


def read_score(content: str) -> int | JudgeReason:
    """1 to 5."""
    score = _answer(content, "score")
    if isinstance(score, bool) or not isinstance(score, int):
        return JudgeReason.MALFORMED
    return score if 1 <= score <= 5 else JudgeReason.OUT_OF_RANGE


def read_winner(content: str) -> Winner | JudgeReason:
    winner = _answer(content, "winner")
    if not isinstance(winner, str):
        return JudgeReason.MALFORMED
    return winner if winner in ("A", "B", "tie") else JudgeReason.OUT_OF_RANGE


def _content(message: dict[str, Any], finish: str) -> tuple[str | None, JudgeReason | None]:
    content = message.get("content")
    if message.get("refusal") or finish == "content_filter":
        return None, JudgeReason.DECLINED
    if finish == "length":
        return None, JudgeReason.CUT
    if finish != "stop" or not isinstance(content, str):
        return None, JudgeReason.MALFORMED
    return content, None


def _answer(content: str, key: str) -> object:
    """The value under `key`; None where the text is not the form."""
    try:
        answer = strict_json(content)
    except ValueError:
        return None
    if not isinstance(answer, dict) or answer.keys() != {"rationale", key}:
        return None
    return answer[key] if isinstance(answer["rationale"], str) else None


def _usage(usage: object) -> TokenUsage | None:
    match usage:
        case {"prompt_tokens": int(prompt), "completion_tokens": int(completion)} if (
            not isinstance(prompt, bool)
            and not isinstance(completion, bool)
            and prompt >= 0
            and completion >= 0
            and 0 < prompt + completion <= MOST_TOKENS
        ):
            return TokenUsage(prompt, completion)
        case _:
            return None
