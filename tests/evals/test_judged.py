"""Judging pairs by a real server: who may, what is asked, what it costs, and what a kill leaves."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from evals import gate
from evals.gate import Verdict
from evals.judged import judge_suites, removals
from pipeline.core import layout
from pipeline.core.removal import make
from pipeline.core.storage import Store
from pipeline.rewards.judge import JudgeAway
from tests.pipeline.rewards.judge.endpoint import Answer, Request, Said, Server, parts, serving

from .judging import ADAPTER, JUDGE, NEW, OLD, comparisons, evidence, gated, judge, judged, plan, reported, section

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kin", [OLD.digest, NEW.digest, ADAPTER.digest, "base", "sha256:BASE"])
def test_a_judge_of_the_lineage_is_not_asked(tmp_path: Path, kin: str) -> None:
    settings = section(role="target")
    related = JUDGE.model_copy(update={"digest": kin})
    gathered = evidence(settings)
    got, server = judged(tmp_path, judge(0.9), settings, gathered, judge=related, lineage=("base",))
    assert not server.requests
    verdict = gate.judge(reported(settings, gathered, got), settings)
    assert verdict.verdict is Verdict.INCONCLUSIVE and "lineage" in verdict.reasons[0]


def test_a_judge_that_is_not_admitted_is_inconclusive(tmp_path: Path) -> None:
    verdict, _ = gated(tmp_path, judge(0.9, admits=False), section(role="target"))
    assert verdict.verdict is Verdict.INCONCLUSIVE and "plain questions right" in verdict.reasons[0]


def test_the_labels_admission_serves_the_evaluation(tmp_path: Path) -> None:
    settings = section()
    _, server = judged(tmp_path, judge(0.6), settings)
    assert len(server.requests) == 33 + 240
    admission = next((tmp_path / layout.JUDGES).glob("*/*.json"))
    for path in (tmp_path / layout.JUDGEMENTS).glob("*/*"):
        path.unlink()
    _, server = judged(tmp_path, judge(0.6), settings)
    assert admission.exists() and len(server.requests) == 240


def test_equal_texts_are_a_tie_without_asking(tmp_path: Path) -> None:
    settings = section()
    ((got,), server) = judged(tmp_path, judge(0.99), settings, evidence(settings, equal=20))
    assert len(comparisons(server)) == 2 * 100
    assert [each.outcome for each in got.pairs[:20]] == [0.5] * 20
    assert all(each.candidate_first is None and not each.reason for each in got.pairs[:20])


def test_a_forgotten_pair_leaves_its_cost_alone(tmp_path: Path) -> None:
    settings, store = section(), Store(tmp_path)
    _, server = judged(tmp_path, judge(0.6), settings)
    (journal,) = (tmp_path / layout.JUDGEMENTS).glob("*/*")
    before = [json.loads(line) for line in journal.read_text().splitlines()]
    keys = {each["key"] for each in before if each.get("owner") in ("item-0003", "item-0007")}
    assert make(removals(store, ["item-0003", "item-0007"])) == [f"{journal.relative_to(tmp_path)}: 2 lines"]
    after = [json.loads(line) for line in journal.read_text().splitlines()]
    assert not keys & {each["key"] for each in after} and "item-0003" not in journal.read_text()
    assert (
        sum(each.get("tokens", 0) for each in after)
        == sum(each.get("tokens", 0) for each in before)
        == 100 * (33 + 240)
    )
    _, server = judged(tmp_path, judge(0.6), settings)
    assert len(server.requests) == 4


KILLED = """
import sys
from evals.judged import judge_suites
from pipeline.rewards.judge import Endpoint
from pipeline.core.storage import Store
from tests.evals.judging import JUDGE, evidence, plan, section
settings = section()
one = JUDGE.model_copy(update={"concurrency": 2})
judge_suites(Store(sys.argv[1]), plan(settings, one), Endpoint(sys.argv[2]), [evidence(settings)], print)
"""


def killing(honest: Answer, child: list[subprocess.Popen[bytes]], at: int | None) -> Answer:
    """Ends the child when it asks for the time `at`."""

    def answer(server: Server, request: Request, place: int) -> Said:
        if place == at:
            os.kill(child[0].pid, signal.SIGKILL)
        return honest(server, request, place)

    return answer


def test_a_kill_asks_nothing_twice_but_what_was_in_flight(tmp_path: Path) -> None:
    whole, server = judged(tmp_path / "whole", judge(0.6), section())
    everything = Counter(comparisons(server))
    asked: Counter[str] = Counter()
    for kill_at in (130, None):
        child: list[subprocess.Popen[bytes]] = []
        with serving(killing(judge(0.6), child, kill_at)) as server:
            child.append(subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "killed", server.url], cwd=ROOT))
            assert child[0].wait(120) == (0 if kill_at is None else -signal.SIGKILL)
        asked += Counter(comparisons(server))
    assert asked.keys() == everything.keys()
    assert sum(asked.values()) - sum(everything.values()) <= 2 * 2 * 2, "two kills, two pairs in flight, two orders"
    again, server = judged(tmp_path / "killed", judge(0.1), section())
    assert again == whole and not server.requests


def test_the_budget_is_that_of_the_iteration(tmp_path: Path) -> None:
    settings = section(role="target")
    poor = JUDGE.model_copy(update={"max_tokens": 150_000, "concurrency": 1})
    gathered, honest = evidence(settings), judge(0.9)

    def dear(server: Server, request: Request, place: int) -> Said:
        said = honest(server, request, place)
        if "answer A" not in parts(request):
            return said
        return said._replace(body=said.body.replace(b'"prompt_tokens": 90', b'"prompt_tokens": 990'))

    got, server = judged(tmp_path, dear, settings, gathered, judge=poor)
    assert 34 < len(server.requests) < 34 + 240
    verdict = gate.judge(reported(settings, gathered, got), settings)
    assert verdict.verdict is Verdict.INCONCLUSIVE and "budget ended before" in verdict.reasons[0]
    _, server = judged(tmp_path, dear, settings, gathered, judge=poor)
    assert not server.requests, "what was spent counts"


def test_a_judge_that_is_away_can_be_asked_later(tmp_path: Path) -> None:
    down = lambda server, request, place: Said(503)  # noqa: E731
    settings, store = section(role="target"), Store(tmp_path)
    with pytest.raises(JudgeAway, match="endpoint"):
        judged(tmp_path, down, settings)
    with pytest.raises(JudgeAway, match="Set JUDGE_URL"):
        judge_suites(store, plan(settings), None, [evidence(settings)], print)
    later = judge(0.75)
    breaks = lambda server, request, place: later(server, request, place) if place < 200 else Said(503)  # noqa: E731
    with pytest.raises(JudgeAway, match="did not answer about"):
        judged(tmp_path, breaks, settings)
    ((got,), server) = judged(tmp_path, later, settings)
    assert len(server.requests) <= 240 - (200 - 34) + 2 * JUDGE.concurrency and not got.problems
    (of_report,) = judge_suites(store, plan(section()), None, [evidence(section())], print)
    assert "Set JUDGE_URL" in of_report.problems[0]
    (nobody,) = judge_suites(store, plan(section(), judge=None), None, [evidence(section())], print)
    assert "rewards.judge" in nobody.problems[0] and nobody.judge is None


def test_runs_that_cannot_be_paired_are_not_judged(tmp_path: Path) -> None:
    settings = section(role="target")
    whole = evidence(settings)
    cut = whole.arms[1].model_copy(update={"results": whole.arms[1].results[1:]})
    gathered = whole.model_copy(update={"arms": (whole.arms[0], cut)})
    got, server = judged(tmp_path, judge(0.9), settings, gathered)
    assert not server.requests
    (measured,) = reported(settings, gathered, got).judged
    assert measured.problems == (
        "its answers are those to arithmetic: candidate: 1 missing item ids, such as item-0000",
    )
