"""Asking in looks, end to end: what a hopeless candidate is asked, what its evidence shows, and what a kill costs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assets.card import IterationRecords
from evals import bundle, futility
from evals.__main__ import main
from evals.evaluate import decide, summary
from evals.gate import Verdict
from evals.measurements import EvalReport
from evals.report import picture, table
from jobs.summary import _evaluation as summarised
from pipeline.recipe import Evaluation
from pipeline.serving.inference import Answer, AnswerRequest, Sampling
from pipeline.storage import ModelRef, Store
from tests.suites import embedded_suite

from .conftest import Kit
from .test_evaluate import NEW, SECTION, StandIn, StandInSession, context, evaluated

pytestmark = pytest.mark.slow

EVIDENCE = "iterations/it/evidence"


def gated(root: Path, skill: float, section: Evaluation = SECTION, engine: StandIn | None = None) -> Any:
    work = context(Store(root))
    work = replace(work, recipe=work.recipe.model_copy(update={"evaluation": section}))
    engine = engine or StandIn({"old": 0.4, "new": skill})
    report = evaluated(work, NEW, engine)
    return engine, report, decide(work, report)


@pytest.fixture(scope="module")
def hopeless(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StandIn, EvalReport, Any]:
    root = tmp_path_factory.mktemp("hopeless")
    return root, *gated(root, 0.2)


def test_a_hopeless_candidate_is_not_asked_to_the_end(hopeless: tuple[Path, StandIn, EvalReport, Any]) -> None:
    root, engine, report, verdict = hopeless
    assert verdict.verdict is Verdict.FAIL
    assert report.stop is not None
    (target,) = report.stop.targets
    assert f"stopped for futility at look {report.stop.look} of 5" in verdict.reasons[0]
    suite = embedded_suite(SECTION)
    first = {*futility.asking_order((item.cluster for item in suite.items), SECTION.seed)[: target.clusters]}
    assert engine.asked["new"] == 4 * sum(item.cluster in first for item in suite.items) < 960
    assert engine.asked["old"] == 960, "its answers are the next gates' as well"
    assert target.power < futility.STOP_BELOW and target.planned == suite.clusters
    assert bundle.verify(root / EVIDENCE, verdict.bundle_digest) == verdict


def test_a_stop_shows_no_score(hopeless: tuple[Path, StandIn, EvalReport, Any], tmp_path: Path) -> None:
    root, _, report, verdict = hopeless
    assert report.target().comparison is None
    shown = [table(report, verdict), *summary(report), *summarised(report)]
    assert main(["page", str(root / EVIDENCE), str(tmp_path / "page.html")]) == 0
    shown.append((tmp_path / "page.html").read_text().partition("<h2>")[0])
    for text in shown:
        assert "stopped for futility" in text.lower()
        assert not re.search(r"accuracy|difference|interval", text)
    assert picture(report).startswith(b"\x89PNG")


def test_the_registry_is_told_the_look_and_no_score(hopeless: tuple[Path, StandIn, EvalReport, Any]) -> None:
    goodput = SimpleNamespace(share=1.0, total_s=1.0, productive_s=1.0, badput_s={})
    trained: Any = SimpleNamespace(goodput=goodput, checkpoint=SimpleNamespace(step=3), metrics=())
    unused: Any = None
    report = hopeless[2]
    (last,) = IterationRecords(unused, unused, unused, trained, report).metrics
    assert report.stop is not None
    assert last["held_out/stopped_at_look"] == report.stop.look
    assert [name for name in last if name.startswith("held_out/")] == ["held_out/stopped_at_look"]


def test_the_recipe_may_ask_to_the_end(tmp_path: Path) -> None:
    whole = SECTION.model_copy(update={"futility": False})
    engine, report, verdict = gated(tmp_path, 0.2, whole)
    assert (verdict.verdict, report.stop) == (Verdict.FAIL, None)
    assert engine.asked == {"old": 960, "new": 960}
    assert report.target().comparison is not None


def test_a_hopeful_candidate_has_the_evidence_of_before(tmp_path: Path) -> None:
    """Looks leave no trace in the evidence of who is asked to the end: only the section says that there were some."""
    _, looked, passed = gated(tmp_path / "looks", 0.6)
    _, whole, _ = gated(tmp_path / "whole", 0.6, SECTION.model_copy(update={"futility": False}))
    assert passed.verdict is Verdict.PASS and looked.measurements == whole.measurements
    for name in (*(f"arithmetic/{file}" for file in bundle.SUITE_FILES), bundle.MEASUREMENT):
        one, other = (tmp_path / folder / EVIDENCE / name for folder in ("looks", "whole"))
        assert one.read_bytes() == other.read_bytes()
    assert "stop" not in json.loads((tmp_path / "looks" / EVIDENCE / bundle.MEASUREMENT).read_text())
    assert "futility" not in (tmp_path / "looks" / EVIDENCE / bundle.PROVENANCE).read_text()


class Killed(StandIn):
    """Ends after so many answers."""

    def __init__(self, after: int) -> None:
        super().__init__({"old": 0.4, "new": 0.2})
        self.left = after

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Iterator[StandInSession]:
        session = StandInSession(self, model)
        ask = session.answer

        def answer(requests: Sequence[AnswerRequest], plan: Sampling, done: Callable[[Answer], None]) -> None:
            def until(each: Answer) -> None:
                done(each)
                self.left -= 1
                if not self.left:
                    raise RuntimeError("killed")

            ask(requests, plan, until)

        session.answer = answer  # type: ignore[method-assign]
        yield session


def test_a_kill_within_a_look_asks_nothing_twice(
    tmp_path: Path, hopeless: tuple[Path, StandIn, EvalReport, Any]
) -> None:
    engines = [Killed(after) for after in (500, 500, 30, 1, 25)]
    for engine in engines:
        with pytest.raises(RuntimeError, match="killed"):
            gated(tmp_path, 0.2, engine=engine)
    last, report, verdict = gated(tmp_path, 0.2)
    assert report.bundle.digest == hopeless[2].bundle.digest and verdict.reasons == hopeless[3].reasons
    asked = [sum(engine.asked[name] for engine in (*engines, last)) for name in ("old", "new")]
    assert asked == [hopeless[1].asked["old"], hopeless[1].asked["new"]]


def test_evidence_that_merely_ends_early_is_no_stop(tmp_path: Path) -> None:
    """Of a candidate with hope a part of the answers is no FAIL: whoever cuts the evidence gets INCONCLUSIVE."""
    gated(tmp_path, 0.7)
    whole = bundle.read(tmp_path / EVIDENCE)
    (suite,) = whole.suites
    for look in range(1, 6):
        chosen = {item.id for item in futility.part(suite.suite, look, SECTION.seed)}
        arms = tuple(
            arm.model_copy(update={"results": tuple(each for each in arm.results if each.id in chosen)})
            for arm in suite.arms
        )
        cut = whole.model_copy(update={"suites": (suite.model_copy(update={"arms": arms}),)})
        measured = bundle.measure(cut)
        assert measured.stop is None and (not chosen or "missing item ids" in " ".join(measured.suites[0].problems))


def test_a_stop_is_recomputed_from_its_answers(hopeless: tuple[Path, StandIn, EvalReport, Any], tmp_path: Path) -> None:
    copy = shutil.copytree(hopeless[0] / EVIDENCE, tmp_path / "carried")
    path = copy / bundle.MEASUREMENT
    recorded = json.loads(path.read_text())
    recorded["stop"]["targets"][0]["power"] += 1e-15
    path.write_text(json.dumps(recorded, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    files = json.loads((copy / bundle.MANIFEST).read_text())["files"]
    manifest = bundle.BundleManifest(files={name: bundle._digest(copy / name) for name in files})
    (copy / bundle.MANIFEST).write_text(bundle._text(manifest))
    with pytest.raises(ValueError, match="do not give the recorded numbers"):
        bundle.verify(copy)


def test_the_off_switch_alone_decides_a_digest() -> None:
    assert Evaluation(futility=True).model_dump() == Evaluation().model_dump()
    assert "futility" not in Evaluation().model_dump() and Evaluation(futility=False).model_dump()["futility"] is False


def test_a_stop_leaves_judged_suites_unasked(kit: Kit, tmp_path: Path) -> None:
    own = {"kind": "jsonl", "name": "own", "path": "own.jsonl", "role": "guard"}
    judged = {"kind": "judged", "name": "liked", "over": "own", "role": "guard"}
    section = kit.section(suites=[{"kind": "arithmetic", "items": 200}, own, judged])
    suite = kit.suite(section)
    chosen = {item.id for item in futility.part(suite, 4, section.seed)}
    one, other = (
        arm.model_copy(update={"results": tuple(each for each in arm.results if each.id in chosen)})
        for arm in (kit.arm("old", section, suite, 0.6), kit.arm("new", section, suite, 0.3))
    )
    evidence = bundle.evidence("it", section, bundle.Gathered((bundle.SuiteEvidence(suite=suite, arms=(one, other)),)))
    bundle.publish(Store(tmp_path), "b", evidence)
    verdict = bundle.verify(tmp_path / "b")
    assert verdict.verdict is Verdict.FAIL and "at look 4 of 5" in verdict.reasons[0]
    report = bundle.recompute(tmp_path / "b")
    assert report.judged == () and [each.suite for each in report.measurements] == ["arithmetic"]
