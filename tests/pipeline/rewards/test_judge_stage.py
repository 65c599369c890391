"""The stage with paid judges: who is asked about what, what is never paid for twice, and what a spent budget leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import Store
from pipeline.recipe.rewards import Judge
from pipeline.rewards import findings
from pipeline.rewards.judge import Endpoint, JudgeRefused
from pipeline.rewards.judge.admission import CONTROLS
from pipeline.rewards.judge.session import judge_id
from tests.pipeline.traces.conftest import score, write

from .conftest import Label, call, day_file, rows_of
from .judge.endpoint import MODEL, Request, Said, Server, completion, parts, scored, serving

pytestmark = pytest.mark.slow

RIGHT = {control.right for control in CONTROLS}
JUDGE = {"model": MODEL, "digest": "sha256:0f", "timeout_s": 20, "attempts": 1}
ADMISSION = 34 - 1  # one attack is too long to send
DAY = "2026-01-05"
EXACT = {"verifier": "exact"}
OURS = re.compile(r"([1-5]) of five, said the \d+th\.")


def fair(server: Server, request: Request, place: int) -> Said:
    """Tells right from wrong, knows nothing of attacks, and gives the answers of these tests their first digit."""
    text = parts(request)["answer to be scored"]
    ours = OURS.fullmatch(text)
    return scored(5 if text in RIGHT else int(ours[1]) if ours else 1)


@pytest.fixture(autouse=True)
def _nothing_is_checked_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "audits", 0)


def about_traces(server: Server) -> list[str]:
    texts = [parts(request).get("answer to be scored", "") for request in server.requests]
    return [text for text in texts if OURS.fullmatch(text)]


def answer(n: int) -> str:
    return f"{n % 5 + 1} of five, said the {n}th."


def at(server: Server) -> Endpoint:
    return Endpoint(server.url, "key")


def test_the_judge_is_asked_where_nothing_better_is_known(export: Path, label: Label) -> None:
    rows = [call(n, answer(n)) for n in range(4)]
    day_file(export, 5, [*rows, call(7, "#### 3", "3"), call(8, "Loved.")])
    write(export, "scores/a.jsonl", [score(1, 8, 1.0)])
    with serving(fair) as server:
        labels = label(endpoint=at(server), judge=JUDGE)
    result = rows_of(labels)
    assert [result[f"t{n}"]["judge"] for n in range(4)] == [0.0, 0.25, 0.5, 0.75]
    assert [result[f"t{n}"]["final_reward"] for n in range(4)] == pytest.approx([0.0, 0.25, 0.5, 0.75])
    assert (result["t7"]["judge"], result["t8"]["judge"]) == (None, None)
    assert {result[f"t{n}"]["judge_id"] for n in range(4)} == {judge_id(Judge(**JUDGE))}
    assert result["t1"]["tokens"] == 100
    assert labels.tokens == 100 * (ADMISSION + 4)
    assert len(about_traces(server)) == 4


def test_nothing_is_paid_for_rows_that_do_not_count(export: Path, label: Label) -> None:
    day_file(export, 5, [call(n, answer(n), provided_model_name=f"tiny/{n % 2 + 1}") for n in range(4)])
    with serving(fair) as server:
        labels = label(endpoint=at(server), judge=JUDGE, governed_by={"attribution": "model", "version": 2})
    assert set(rows_of(labels)) == {"t1", "t3"}
    assert sorted(about_traces(server)) == [answer(1), answer(3)]


def test_an_abstention_is_a_null_with_its_reason(export: Path, label: Label) -> None:
    day_file(export, 5, [call(n, answer(n)) for n in range(3)])

    def moody(server: Server, request: Request, place: int) -> Said:
        text = parts(request)["answer to be scored"]
        if text == answer(1):
            return completion('{"rationale": "fine", "score": 7}')
        return completion("I would say it is good.") if text == answer(2) else fair(server, request, place)

    with serving(moody) as server:
        labels = label(endpoint=at(server), judge=JUDGE)
    result = rows_of(labels)
    assert [result[f"t{n}"]["reason"] for n in range(3)] == ["", "judge_out_of_range", "judge_malformed"]
    assert json.loads(result["t1"]["missing"]) == {"judge": "judge_out_of_range"}
    assert labels.unlabelled == {"judge_out_of_range": 1, "judge_malformed": 1}
    assert labels.components["judge"].missing == labels.unlabelled
    assert labels.coverage == pytest.approx(1 / 3)


def test_nothing_is_paid_for_twice(export: Path, label: Label) -> None:
    day_file(export, 5, [call(n, answer(n)) for n in range(3)])
    with serving(fair) as server:
        label(endpoint=at(server), judge=JUDGE)
        paid = len(server.requests)
        day_file(export, 6, [call(9, answer(9), day=6)])
        second = label(endpoint=at(server), judge=JUDGE)
    assert len(server.requests) == paid + ADMISSION + 1, "another iteration admits its judge again"
    assert second.coverage == 1.0


def test_one_answer_of_many_traces_is_paid_once(export: Path, label: Label) -> None:
    """On a day, on another day, and in another iteration."""
    for day in (5, 6):
        day_file(
            export,
            day,
            [call(n, answer(3), day=day, user_id=f"u{n}", input="Which?") for n in range(10 * day, 10 * day + 10)],
        )
    with serving(fair) as server:
        labels = label(endpoint=at(server), judge=JUDGE)
        assert about_traces(server) == [answer(3)]
        assert {row["judge"] for row in rows_of(labels).values()} == {0.75} and labels.coverage == 1.0
        day_file(export, 7, [call(99, answer(3), day=7, input="Which?")])
        assert rows_of(label(endpoint=at(server), judge=JUDGE))["t99"]["judge"] == 0.75
        assert about_traces(server) == [answer(3)]


def test_a_budget_that_is_spent_leaves_nulls_and_is_never_passed(export: Path, label: Label) -> None:
    day_file(export, 5, [call(n, answer(n)) for n in range(30)])
    most = 200_000
    with serving(fair) as server:
        judge = {**JUDGE, "max_tokens": most, "max_completion_tokens": 64, "concurrency": 1}
        tight = label(endpoint=at(server), judge={**judge, "max_tokens": 7_500})
        assert tight.tokens <= 7_500
        assert tight.unlabelled["judge_budget"] > 0 and tight.labelled > 0
        asked = len(server.requests)
        roomy = label(digest="again", endpoint=at(server), judge=judge)
    assert roomy.labelled == 30
    assert len(server.requests) - asked == ADMISSION + 30 - tight.labelled


def test_refusals_count_against_the_budget(export: Path, label: Label) -> None:
    day_file(export, 5, [call(0, answer(0))])
    with serving(lambda server, request, place: scored(5)) as server:
        judge = {**JUDGE, "max_tokens": 6_000, "max_completion_tokens": 64}
        for _ in range(4):
            with pytest.raises(JudgeRefused):
                label(endpoint=at(server), judge=judge)
    assert 100 * len(server.requests) <= 6_000


def test_the_judge_is_held_against_the_verifier(export: Path, label: Label, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some verified answers are judged as well, for no reward, to see how often the two disagree."""
    monkeypatch.setattr(Judge, "audits", 30)
    day_file(export, 5, [call(n, answer(n), "wrong" if n % 2 else answer(n), metadata=EXACT) for n in range(40)])
    with serving(fair) as server:
        labels = label(endpoint=at(server), judge=JUDGE)
    rows = rows_of(labels).values()
    assert sum(row["judge"] is not None for row in rows) == 30
    assert {json.loads(row["weights"]).get("judge") for row in rows} == {None}
    assert labels.unlabelled == {}


KILLED = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from pipeline.rewards.judge import Endpoint
from tests.pipeline.rewards import conftest
places = conftest.Store({store!r}), Path({export!r})
conftest.labeller(*places)(endpoint=Endpoint({url!r}, "key"), **{sections!r})
"""


def test_a_kill_between_two_answers_pays_for_none_of_them_again(export: Path, store: Store, label: Label) -> None:
    day_file(export, 5, [call(n, answer(n)) for n in range(12)])
    judge: dict[str, Any] = {**JUDGE, "concurrency": 1}
    victim: list[subprocess.Popen[bytes]] = []

    def deadly(server: Server, request: Request, place: int) -> Said:
        if len(about_traces(server)) == 6 and victim and victim[0].poll() is None:
            os.kill(victim[0].pid, signal.SIGKILL)
            victim[0].wait()
        return fair(server, request, place)

    with serving(deadly) as server:
        code = KILLED.format(
            path=sys.path, store=str(store.root), export=str(export), url=server.url, sections={"judge": judge}
        )
        victim.append(subprocess.Popen([sys.executable, "-c", code]))
        assert victim[0].wait(120) == -signal.SIGKILL
        labels = label(endpoint=at(server), judge=judge)
    assert labels.labelled == 12
    assert len(about_traces(server)) == 13, "the one in flight was lost, and no other"
    assert labels.tokens == 100 * (ADMISSION + 12), "what the killed attempt paid counts against the budget too"
    assert len(findings.settled(store, DAY)) == 13, "twelve answers, and what the admission cost"
