"""The judge inside a training: its journal, its budget, its deadline."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.rewards.findings import JudgeSpending
from pipeline.rewards.judge import Endpoint, open_judge
from pipeline.rewards.records import Finding
from pipeline.training.scorers import FreshAnswer, JudgeScores, share_of, spending
from tests.pipeline.rewards.judge.endpoint import Answer, Request, Said, Server, always, in_turn, scored, serving
from tests.pipeline.training.scored_plans import rubric

pytestmark = pytest.mark.slow

PROMPT = '[{"role": "user", "content": "Say a number."}]'


def ask(
    url: str, folder: Path, texts: list[str], rank: int = 0, processes: int = 1, **changes: object
) -> list[Finding]:
    """By a process that opens the journal anew."""
    settings = share_of(rubric(**changes), processes)
    with open_judge(Endpoint(url), settings, spending(folder, rank), lambda line: None) as session:
        return JudgeScores(session, folder, rank)([FreshAnswer(PROMPT, text, True) for text in texts])


def test_what_was_asked_is_never_asked_again(tmp_path: Path) -> None:
    with serving(in_turn(scored(5), scored(1))) as server:
        first = ask(server.url, tmp_path, ["a", "a"])
        again = ask(server.url, tmp_path, ["a", "b", "a"])
        assert len(server.requests) == 2
    assert first == [Finding(1.0)] * 2
    assert again == [Finding(1.0), Finding(0.0), Finding(1.0)]
    assert spending(tmp_path) == JudgeSpending(200, 0.0)


def test_a_silence_is_remembered_too(tmp_path: Path) -> None:
    with serving(in_turn(Said(500), scored(5))) as server:
        silent = ask(server.url, tmp_path, ["a"])
        assert ask(server.url, tmp_path, ["a"]) == silent == [Finding(None, "judge_unavailable")]


def test_a_torn_line_is_asked_again(tmp_path: Path) -> None:
    with serving(always(scored(4))) as server:
        ask(server.url, tmp_path, ["a", "b"])
        path = tmp_path / "judge-0.jsonl"
        path.write_bytes(path.read_bytes()[:-9])
        assert ask(server.url, tmp_path, ["a", "b"]) == [Finding(0.75)] * 2
        assert len(server.requests) == 3 and path.read_bytes().count(b"\n") == 2
    path.write_bytes(b"{}\n")
    with pytest.raises(ValueError, match=r"Line 1 of .* is no FindingLine\. Move the file away"):
        spending(tmp_path)


def test_the_budget_is_of_the_whole_training_and_shared(tmp_path: Path) -> None:
    with serving(always(scored(4))) as server:
        assert ask(server.url, tmp_path, ["a"], max_tokens=4000) == [Finding(0.75)]
        spent: dict[str, Any] = {"max_tokens": spending(tmp_path).tokens}
        assert ask(server.url, tmp_path, ["a", "b"], **spent) == [Finding(0.75), Finding(None, "judge_budget")]
        assert ask(server.url, tmp_path, ["c"], rank=1, processes=2, max_tokens=20) == [Finding(None, "judge_budget")]
        assert len(server.requests) == 1
    assert spending(tmp_path).tokens == 100


def hanging(*texts: str) -> Answer:
    def answer(server: Server, request: Request, place: int) -> Said:
        if any(text in str(request.body) for text in texts):
            server.closing.wait(60)
        return scored(5)

    return answer


def test_what_is_late_has_no_score(tmp_path: Path) -> None:
    with serving(hanging("never")) as server:
        late = ask(server.url, tmp_path, ["never", "at once"], timeout_s=2.0)
    assert late == [Finding(None, "judge_timeout"), Finding(1.0)]
    assert spending(tmp_path).tokens > 100, "what was sent may be billed"
