"""Judged suites against a real server: who may judge, what is asked, what it costs, and what the gate makes of it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evals import bundle, gate
from evals.bundle import SuiteEvidence
from evals.comparison import BundleRef, EvalReport
from evals.evaluate import decide, evaluate
from evals.gate import GateVerdict, Verdict
from evals.judged import generation, judge_suites
from evals.judged_evidence import JudgedEvidence
from evals.judgements import erase
from evals.ledger import lines
from evals.report import table
from pipeline import layout
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import JudgedSuite
from pipeline.rewards.judge import Endpoint, JudgeAway
from pipeline.serving.inference import Answer as Reply
from pipeline.serving.inference import AnswerRequest, Sampling
from pipeline.storage import CheckpointRef, ModelRef, Store
from tests.contexts import context_of
from tests.pipeline.rewards.judge.endpoint import Answer, Request, Said, Server, parts, serving
from tests.suites import embedded_suite

from .judging import ADAPTER, JUDGE, MARK, NEW, OLD, comparisons, evidence, judge, plan, saying, section
from .test_evaluate import SECTION, SUITE, StandIn, StandInSession, check, context

ROOT = Path(__file__).parents[2]
FILES = ("judged-0/pairs.jsonl", "judged-0/judge.json", "judged-0/measurement.json")


def judged(
    root: Path, answer: Answer, settings: Evaluation, gathered: SuiteEvidence | None = None, **changes: Any
) -> tuple[tuple[JudgedEvidence, ...], Server]:
    with serving(answer) as server:
        asked = plan(settings, **changes)
        got = judge_suites(Store(root), asked, Endpoint(server.url), [gathered or evidence(settings)], print)
    return got, server


def reported(settings: Evaluation, gathered: SuiteEvidence, of_judge: tuple[JudgedEvidence, ...]) -> EvalReport:
    whole = bundle.evidence("it", settings, (gathered,), judged=of_judge)
    return bundle.report(whole, bundle.measure(whole), BundleRef(uri="", digest="b"))


def gated(
    root: Path, answer: Answer, settings: Evaluation, longer: float = 1.0, **changes: Any
) -> tuple[GateVerdict, EvalReport]:
    gathered = evidence(settings, longer)
    report = reported(settings, gathered, judged(root, answer, settings, gathered, **changes)[0])
    return gate.judge(report, settings), report


def test_a_preferred_candidate_passes_and_a_disliked_one_fails(tmp_path: Path) -> None:
    settings = section(role="target")
    verdict, report = gated(tmp_path / "better", judge(0.75), settings)
    assert verdict.verdict is Verdict.PASS, verdict.reasons
    assert "| at equal lengths |" in table(report, verdict) and "judged-0 (target" in table(report)
    verdict, _ = gated(tmp_path / "worse", judge(0.25), settings)
    assert verdict.verdict is Verdict.FAIL
    assert verdict.reasons[0].startswith("preference not shown: judged-0")


def test_a_long_winded_candidate_is_not_preferred(tmp_path: Path) -> None:
    settings = section(items=300, role="target")
    verdict, report = gated(tmp_path, judge(0.45, habit=1.5), settings, longer=1.5)
    (measured,) = report.judged
    assert measured.win_rate is not None
    assert measured.win_rate.raw.lower > 0, "as judged it looks better"
    assert measured.win_rate.controlled.value < 0
    assert verdict.verdict is Verdict.FAIL


def test_a_guard_holds_within_its_margin(tmp_path: Path) -> None:
    settings = section(items=300, role="guard", margin=0.15)
    assert gated(tmp_path / "alike", judge(0.5), settings)[0].verdict is Verdict.PASS
    verdict, _ = gated(tmp_path / "worse", judge(0.2), settings)
    assert verdict.verdict is Verdict.FAIL
    assert any("judged-0: guard failed: losses to the champion" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("role", ["target", "guard"])
def test_a_judge_that_always_says_a_is_inconclusive(tmp_path: Path, role: str) -> None:
    verdict, _ = gated(tmp_path, saying(lambda _: "A"), section(role=role))
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert "prefers another answer of 100% of the pairs when their order is swapped" in verdict.reasons[0]


def test_a_report_decides_nothing(tmp_path: Path) -> None:
    verdict, report = gated(tmp_path, saying(lambda _: "A"), section(role="report"))
    assert verdict.verdict is Verdict.PASS and report.judged[0].win_rate is None


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
    assert len(server.requests) == 84 + 240
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


def test_both_orders_are_kept_as_they_were(tmp_path: Path) -> None:
    ((got,), _) = judged(tmp_path, saying(lambda _: "A"), section())
    assert {(each.champion_first, each.candidate_first) for each in got.pairs} == {(0.0, 1.0)}
    ((got,), _) = judged(tmp_path / "tie", saying(lambda _: "tie"), section())
    assert {(each.champion_first, each.candidate_first) for each in got.pairs} == {(0.5, 0.5)}


def test_nothing_is_judged_twice(tmp_path: Path) -> None:
    settings = section(judged=2)
    first, server = judged(tmp_path, judge(0.6), settings)
    assert len(comparisons(server)) == 240, "two suites over the same answers ask once"
    again, server = judged(tmp_path, judge(0.1), settings)
    assert again == first and not server.requests
    other = JUDGE.model_copy(update={"rubric": "5: short\n1: long"})
    _, server = judged(tmp_path, judge(0.6), settings, judge=other)
    assert len(comparisons(server)) == 240


def test_a_forgotten_pair_leaves_its_cost_alone(tmp_path: Path) -> None:
    settings, store = section(), Store(tmp_path)
    _, server = judged(tmp_path, judge(0.6), settings)
    (journal,) = (tmp_path / layout.JUDGEMENTS).glob("*/*")
    before = [json.loads(line) for line in journal.read_text().splitlines()]
    keys = {each["key"] for each in before if each["item"] in ("item-0003", "item-0007")}
    assert erase(store, ["item-0003", "item-0007"]) == [f"{journal.relative_to(tmp_path)}: 2 lines"]
    after = [json.loads(line) for line in journal.read_text().splitlines()]
    assert not keys & {each["key"] for each in after} and "item-0003" not in journal.read_text()
    assert sum(each["tokens"] for each in after) == sum(each["tokens"] for each in before) == 100 * (84 + 240)
    _, server = judged(tmp_path, judge(0.6), settings)
    assert len(server.requests) == 4


KILLED = """
import sys
from evals.judged import judge_suites
from pipeline.rewards.judge import Endpoint
from pipeline.storage import Store
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


@pytest.mark.slow
def test_a_kill_asks_nothing_twice_but_what_was_in_flight(tmp_path: Path) -> None:
    whole, server = judged(tmp_path / "whole", judge(0.6), section())
    everything = Counter(comparisons(server))
    asked: Counter[str] = Counter()
    for kill_at in (130, 60, None):
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
    poor = JUDGE.model_copy(update={"max_tokens": 150_000})
    gathered, honest = evidence(settings), judge(0.9)

    def dear(server: Server, request: Request, place: int) -> Said:
        said = honest(server, request, place)
        if "answer A" not in parts(request):
            return said
        return said._replace(body=said.body.replace(b'"prompt_tokens": 90', b'"prompt_tokens": 990'))

    got, server = judged(tmp_path, dear, settings, gathered, judge=poor)
    assert 84 < len(server.requests) < 84 + 240
    verdict = gate.judge(reported(settings, gathered, got), settings)
    assert verdict.verdict is Verdict.INCONCLUSIVE and "budget ended before" in verdict.reasons[0]
    _, server = judged(tmp_path, dear, settings, gathered, judge=poor)
    assert not server.requests, "what was spent counts"


def test_what_a_judge_cannot_say_counts_as_lost(tmp_path: Path) -> None:
    settings = section(items=300, role="target")

    def mumbling(times: int) -> Answer:
        honest = judge(0.75)

        def answer(server: Server, request: Request, place: int) -> Said:
            said = honest(server, request, place)
            number = int(parts(request)["turn 1 (user)"].split()[2]) if "answer A" in parts(request) else times
            return said._replace(body=said.body.replace(b"winner", b"victor")) if number < times else said

        return answer

    verdict, report = gated(tmp_path / "few", mumbling(3), settings)
    assert verdict.verdict is Verdict.PASS and report.judged[0].win_rate is not None
    ((got,), server) = judged(tmp_path / "few", judge(0.75), settings)
    assert [each.outcome for each in got.pairs[:3]] == [0.0] * 3 and not server.requests
    verdict, _ = gated(tmp_path / "many", mumbling(9), settings)
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert "9 of 300 pairs have no judgement (at most 1%): judge_malformed 9" in verdict.reasons[0]


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
    assert len(server.requests) <= 240 - (200 - 84) + 2 * JUDGE.concurrency and not got.provenance.problems
    (of_report,) = judge_suites(store, plan(section()), None, [evidence(section())], print)
    assert "Set JUDGE_URL" in of_report.provenance.problems[0]
    (nobody,) = judge_suites(store, plan(section(), judge=None), None, [evidence(section())], print)
    assert "rewards.judge" in nobody.provenance.problems[0] and nobody.provenance.judge is None


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


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GateVerdict]:
    root = tmp_path_factory.mktemp("bundle")
    settings = section(role="target")
    gathered = evidence(settings)
    got, _ = judged(root, judge(0.75), settings, gathered)
    bundle.publish(Store(root), "evidence", bundle.evidence("it", settings, (gathered,), judged=got))
    return root / "evidence", gate.judge(bundle.recompute(root / "evidence"), settings)


def test_verify_recomputes_the_win_rate(published: tuple[Path, GateVerdict]) -> None:
    path, verdict = published
    assert bundle.verify(path) == verdict and verdict.verdict is Verdict.PASS
    assert all((path / name).is_file() for name in FILES)
    assert "word" not in (path / FILES[0]).read_text(), "no text"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (FILES[0], '"champion_first":0.0', '"champion_first":1.0'),
        (FILES[0], '"candidate_length":', '"candidate_length":1'),
        (FILES[2], '"pairs": 120', '"pairs": 121'),
        (FILES[0], "item-0000", "item-9999"),
    ],
    ids=["an outcome", "a length", "a number", "an item"],
)
def test_verify_refuses_rewritten_judgements(
    tmp_path: Path, published: tuple[Path, GateVerdict], name: str, old: str, new: str
) -> None:
    copy = shutil.copytree(published[0], tmp_path / "carried")
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match="does not match its digest"):
        bundle.verify(copy)
    listed = bundle._files(bundle.read(published[0]).provenance)
    manifest = bundle.BundleManifest(files={each: bundle._digest(copy / each) for each in listed})
    (copy / bundle.MANIFEST).write_text(bundle._text(manifest))
    with pytest.raises(ValueError, match="do not give the recorded numbers"):
        bundle.verify(copy)


SUMS: dict[str, Any] = {"kind": "arithmetic"}
PAIRS: dict[str, Any] = {"kind": "judged", "name": "judged", "over": "arithmetic", "role": "target"}


@pytest.mark.parametrize(
    ("suites", "changes", "words"),
    [
        ([{**SUMS, "role": "report"}, PAIRS], {}, "a judge would decide alone"),
        ([PAIRS], {}, "judges answers to arithmetic, which is no suite with items"),
        ([SUMS, {**PAIRS, "over": "sums"}], {}, "Set over to one of arithmetic"),
        ([SUMS, PAIRS, {**PAIRS, "name": "twice", "over": "judged"}], {}, "judges answers to judged"),
        ([SUMS, {**PAIRS, "name": "arithmetic"}], {}, "two suites are named arithmetic"),
        ([{**SUMS, "role": "guard"}, PAIRS], {"improve": "cost"}, "the only targets are judged"),
        ([SUMS, {**PAIRS, "samples_per_item": 2}], {}, "Extra inputs"),
    ],
)
def test_a_judge_never_decides_alone(suites: list[dict[str, Any]], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Evaluation.model_validate({"suites": suites, **changes})


def test_a_judged_target_beside_a_checked_guard_is_taken() -> None:
    taken = Evaluation.model_validate({"suites": [{**SUMS, "role": "guard"}, PAIRS], "improve": "any"})
    assert [each.name for each in taken.asked] == ["arithmetic"] and [each.name for each in taken.targets] == ["judged"]


class Wordy(StandIn):
    """Answers of many lengths around 20 words; the candidate's are marked."""

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Iterator[StandInSession]:
        session = StandInSession(self, model)
        ask = session.answer

        def answer(requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Reply], None]) -> None:
            def wordy(each: Reply) -> None:
                words = random.Random(f"{arm}{each.key}").randrange(40)
                text = f"{'word ' * words}{MARK if arm == 'candidate' else ''}\n{each.text}"
                done(each.model_copy(update={"text": text, "tokens": words + 4}))

            ask(requests, sampling, wordy)

        session.answer = answer  # type: ignore[method-assign]
        yield session


def test_an_evaluation_judges_what_its_models_answered(tmp_path: Path) -> None:
    pairs = JudgedSuite(name="preference", over="arithmetic", role="target")
    settings = Evaluation(
        suites=(SUITE.model_copy(update={"role": "guard", "margin": 0.2}), pairs), max_standard_error=0.05,
        guard_margin=0.1, longer_by=0.5, luck_per_year=None, samples_per_item=2,
    )  # fmt: skip
    work = context(Store(tmp_path))
    work = context_of(work.store, work.iteration, evaluation=settings)
    models = {"iteration": work.iteration, "candidate": CheckpointRef(adapter=ADAPTER, model=NEW, step=1)}
    engine = Wordy({work.iteration.champion.digest: 0.6, NEW.digest: 0.6})
    asked = plan(settings, **models)
    with serving(judge(0.75)) as server:
        report = evaluate(work.store, asked, engine, check, print, judge=Endpoint(server.url))
    assert len(comparisons(server)) == 2 * SUITE.items
    verdict = decide(work, report)
    assert verdict.verdict is Verdict.PASS, verdict.reasons
    assert report.target().suite == "arithmetic"
    assert evaluate(work.store, asked, engine, check, print) == report, "nothing is asked again"
    assert bundle.verify(report.bundle.uri) == verdict
    (line,) = lines(work.store, "m")
    assert line.suite == "preference"
    other = JUDGE.model_copy(update={"rubric": "5: short\n1: long"})
    items = work.store.path(layout.gate_ledger("m"))
    assert generation(pairs, embedded_suite(SECTION), JUDGE).identity() in {each.name for each in items.iterdir()}
    assert generation(pairs, embedded_suite(SECTION), other).identity() != line.generation


def test_a_gate_that_asked_nobody_has_a_bundle_too(tmp_path: Path) -> None:
    settings, store = section(role="target"), Store(tmp_path)
    bundle.publish(store, "evidence", bundle.evidence("it", settings, (), ("the year's luck is spent",), (OLD, NEW)))
    report = bundle.recompute(tmp_path / "evidence")
    assert bundle.verify(tmp_path / "evidence").verdict is Verdict.INCONCLUSIVE
    assert report.judged == () and report.target().problems == ("the year's luck is spent",)


def test_a_judge_does_not_decide_alone_where_the_check_may_not(tmp_path: Path) -> None:
    settings = section(role="target")
    gathered = evidence(settings)
    suite = gathered.suite.model_copy(update={"advisory": "the reviewers do not agree"})
    gathered = gathered.model_copy(update={"suite": suite})
    got, _ = judged(tmp_path, judge(0.75), settings, gathered)
    verdict = gate.judge(reported(settings, gathered, got), settings)
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert verdict.reasons == ("arithmetic: the reviewers do not agree",)
