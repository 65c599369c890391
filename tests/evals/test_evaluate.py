"""The two stages end to end on the real suite and the real checker; only the models are stand-ins."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evals import bundle
from evals.__main__ import main
from evals.evaluate import EvalServices, decide, evaluate, summary
from evals.gate import Verdict
from evals.records import EvalPlan, EvalReport
from evals.report import picture, table
from evals.runner import sampling
from evals.suites import pin, suites
from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store
from pipeline.demo.suite import ensure_suite
from pipeline.recipe import Evaluation
from pipeline.recipe.rewards import Verifier
from pipeline.recipe.suites import preset_suite
from pipeline.rewards.verifiers import Grade, VerifierTask
from pipeline.serving.inference import Answer, AnswerRequest, Decoding, Sampling
from pipeline.traces.context import IterationContext
from tests.contexts import context_of
from tests.grading import grade
from tests.suites import embedded_suite

from .conftest import DECODING

pytestmark = pytest.mark.slow

SUITE = preset_suite("arithmetic", items=240)
SECTION = Evaluation(suites=(SUITE,), max_standard_error=0.05, guard_margin=0.05)
OLD, NEW = ModelRef(uri="models/old", digest="old"), ModelRef(uri="models/new", digest="new")
FILES = [bundle.MEASUREMENT, bundle.PROVENANCE, *(f"arithmetic/{name}" for name in (bundle.ITEMS, *bundle.ARMS))]


class StandIn:
    """An engine whose models know a share of the answers; counts what it is asked."""

    def __init__(self, skills: dict[str, float], decoding: dict[str, Decoding] | None = None) -> None:
        self.skills, self.decodings, self.asked = skills, decoding or {}, dict.fromkeys(skills, 0)
        self.answers = {item.messages[0]["content"]: item.reference for item in embedded_suite(SECTION).items}

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Iterator[StandInSession]:
        yield StandInSession(self, model)


class StandInSession:
    def __init__(self, engine: StandIn, model: ModelRef) -> None:
        self.engine, self.model = engine, model
        self.decoding = engine.decodings.get(model.digest, DECODING)

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        for request in requests:
            self.engine.asked[self.model.digest] += 1
            known = random.Random(f"{self.model.digest}{request.seed}").random() < self.engine.skills[self.model.digest]
            number = self.engine.answers[request.messages[0]["content"]] if known else "0"
            done(Answer(key=request.key, text=f"#### {number}", tokens=4, prompt_tokens=9, stop="stop", latency_s=0))


def check(tasks: Sequence[VerifierTask]) -> list[Grade]:
    return grade(tasks, workers=1, timeout_s=5.0)


def plan_of(work: IterationContext, candidate: ModelRef = NEW) -> EvalPlan:
    checkpoint = CheckpointRef(adapter=ModelRef(uri="adapter", digest="adapter"), model=candidate, step=1)
    section = work.recipe.evaluation
    return EvalPlan(iteration=work.iteration, section=section, verifier=Verifier(), candidate=checkpoint)


def evaluated(work: IterationContext, candidate: ModelRef, engine: StandIn, grader: Any = None) -> EvalReport:
    return evaluate(work.store, plan_of(work, candidate), EvalServices(engine, grader or check), work.log)


def context(store: Store, id: str = "it", champion: ModelRef = OLD) -> IterationContext:
    iteration = identify(0, "m", champion, DatasetRef(uri="", rows=0, digest="d"), "r").model_copy(update={"id": id})
    ensure_suite(store, SUITE, SECTION.seed)
    return context_of(store, iteration, evaluation=SECTION)


def launch(root: Path, skill: float = 0.7) -> tuple[Store, StandIn, Any]:
    store, engine = Store(root), StandIn({"old": 0.4, "new": skill})
    return store, engine, evaluated(context(store), NEW, engine)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Any]:
    store, _, report = launch(tmp_path_factory.mktemp("store"))
    decide(context(store), report)
    return store, report


def test_a_better_model_passes_and_a_second_run_does_nothing(tmp_path: Path) -> None:
    store, server, report = launch(tmp_path)
    verdict = decide(context(store), report)
    assert verdict.verdict is Verdict.PASS
    assert (verdict.report_digest, verdict.bundle_digest) == (report.digest(), report.bundle.digest)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = evaluated(context(store), NEW, server)
    assert (again, decide(context(store), again)) == (report, verdict)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert server.asked == {"old": 960, "new": 960}


def test_a_failed_engine_publishes_no_evidence(tmp_path: Path) -> None:
    class Fails(StandIn):
        @contextmanager
        def open(self, arm: str, model: ModelRef) -> Iterator[StandInSession]:
            raise RuntimeError("serving failed")
            yield

    with pytest.raises(RuntimeError, match="serving failed"):
        evaluated(context(Store(tmp_path)), NEW, Fails({}))
    assert {path.name for path in tmp_path.rglob("*.json")} == {"suites.json", "new.json"}, (
        "the suites, and the gate that was begun"
    )


def test_a_suite_changed_since_the_training_data_is_inconclusive(tmp_path: Path) -> None:
    store, work = Store(tmp_path), context(Store(tmp_path))
    pin(store, work.path(), suites(store, SECTION))
    path = next((tmp_path / "suites").iterdir())
    path.write_text(path.read_text().replace('"reference": "', '"reference": "1', 1))
    engine = StandIn({"old": 0.4, "new": 0.7})
    verdict = decide(work, evaluated(work, NEW, engine))
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert "arithmetic: its items are not those that the training data was cleaned of" in verdict.reasons[0]
    assert engine.asked == {"old": 0, "new": 0}, "nothing is paid for"
    assert bundle.verify(store.path("iterations", "it", "evidence"), verdict.bundle_digest) == verdict


def test_verify_repeats_the_verdict_wherever_the_bundle_is(
    tmp_path: Path, published: tuple[Store, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    store, report = published
    verdict = decide(context(store), report)
    copy = shutil.copytree(store.path("iterations", "it", "evidence"), tmp_path / "carried")
    assert bundle.verify(copy, verdict.bundle_digest) == verdict
    assert main(["verify", str(copy)]) == 0
    assert verdict.report_digest in capsys.readouterr().out
    assert main(["verify", str(copy), "another"]) == 1
    assert "Take the bundle that was judged" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*FILES, bundle.MANIFEST, "extra.jsonl"])
def test_an_altered_missing_or_added_file_is_found(tmp_path: Path, published: tuple[Store, Any], name: str) -> None:
    copy = shutil.copytree(published[0].path("iterations", "it", "evidence"), tmp_path / "carried")
    original = (copy / name).read_bytes() if (copy / name).exists() else b"{}"
    places = random.Random(name).sample(range(len(original)), min(len(original), 12))
    flipped = [original[:place] + bytes([original[place] ^ 1]) + original[place + 1 :] for place in places]
    for content in (*flipped, original + b"\n"):
        (copy / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"\."):
            bundle.verify(copy)
    if name != "extra.jsonl":
        (copy / name).unlink()
    assert main(["verify", str(copy)]) == 1


def test_verify_refuses_outcomes_rewritten_with_their_digests(tmp_path: Path, published: tuple[Store, Any]) -> None:
    copy = shutil.copytree(published[0].path("iterations", "it", "evidence"), tmp_path / "carried")
    lines = (copy / "arithmetic/candidate.jsonl").read_text()
    (copy / "arithmetic/candidate.jsonl").write_text(lines.replace('"wrong"', '"correct"', 1))
    (copy / bundle.MANIFEST).write_text(bundle.manifest(copy))
    with pytest.raises(ValueError, match="do not give the recorded numbers"):
        bundle.verify(copy)


def test_a_report_that_the_evidence_does_not_support_is_refused(tmp_path: Path) -> None:
    store, engine = Store(tmp_path), StandIn({"old": 0.4, "new": 0.1})
    work = context(store)
    report = evaluated(work, NEW, engine)
    (measured,) = report.measurements
    better = measured.comparison.difference.model_copy(update={"lower": 0.2, "bootstrap_lower": 0.2})
    comparison = measured.comparison.model_copy(update={"difference": better})
    forged = report.model_copy(update={"measurements": (measured.model_copy(update={"comparison": comparison}),)})
    with pytest.raises(ValueError, match="evaluate again"):
        decide(work, forged)
    assert decide(work, report).verdict is Verdict.FAIL


def test_a_suite_is_sampled_as_it_says_else_as_the_recipe_says() -> None:
    section = Evaluation(samples_per_item=2, max_completion_tokens=9)
    plan = sampling(section, section.suites[0], 5)
    assert (plan.samples, plan.temperature, plan.max_completion_tokens, plan.seed) == (2, 1.0, 9, 5)
    own = preset_suite("arithmetic", samples_per_item=3, temperature=0.2, max_completion_tokens=7)
    plan = sampling(section, own, 5)
    assert (plan.samples, plan.temperature, plan.max_completion_tokens, plan.seed) == (3, 0.2, 7, 5)
    greedy = preset_suite("arithmetic", role="report", temperature=0.0)
    assert (sampling(section, greedy).samples, sampling(section, greedy).temperature) == (1, 0.0)


def test_the_report_is_readable(published: tuple[Store, Any]) -> None:
    store, report = published
    text = table(report, decide(context(store), report))
    assert text.startswith("**PASS**")
    assert all(word in text for word in ("| accuracy |", "| no answer |", "| truncated |", r"multiply\_add"))
    row = next(line for line in text.splitlines() if line.startswith("| add |"))
    assert row.count("[") == 3, "of champion, candidate and difference"
    assert [line.split(":")[0] for line in summary(report)][:2] == ["arithmetic", "arithmetic, add"]
    assert picture(report).png().startswith(b"\x89PNG")
    refused = report.measurements[0].model_copy(update={"problems": ("champion: empty",), "comparison": None})
    without = report.model_copy(update={"measurements": (refused,)})
    assert "champion: empty" in table(without)
    assert picture(without).png().startswith(b"\x89PNG")


def test_no_digest_depends_on_where_the_data_root_lies(tmp_path: Path) -> None:
    def reported(root: Path) -> Any:
        old, new = (ModelRef(uri=str(root / "iterations" / name / "model"), digest=name) for name in ("old", "new"))
        sampler = StandIn({"old": 0.4, "new": 0.7})
        return evaluated(context(Store(root), champion=old), new, sampler)

    one, other = reported(tmp_path / "one"), reported(tmp_path / "another" / "place")
    assert (one.digest(), one.bundle.digest) == (other.digest(), other.bundle.digest)
    (tmp_path / "one").rename(tmp_path / "moved")
    store = Store(tmp_path / "moved")
    report = reported(store.root)
    assert report.candidate.uri == str(tmp_path / "moved" / "iterations" / "new" / "model")
    verdict = decide(context(store), report)
    assert (verdict.report_digest, verdict.bundle_digest) == (one.digest(), one.bundle.digest)
    carried = shutil.copytree(store.path("iterations", "it", "evidence"), tmp_path / "carried" / "away")
    assert bundle.verify(carried, verdict.bundle_digest).report_digest == verdict.report_digest
