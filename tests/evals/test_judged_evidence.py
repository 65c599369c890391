"""The evidence of judged suites: in a bundle, and of a whole evaluation."""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from evals import bundle, gate
from evals.bundle import EvalEvidence
from evals.evaluate import EvalServices, decide, evaluate
from evals.gate import GateVerdict, Verdict
from evals.judged import generation
from evals.ledger import lines
from evals.report import picture, table
from pipeline.core import layout
from pipeline.core.storage import CheckpointRef, ModelRef, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import JudgedSuite
from pipeline.rewards.judge import Endpoint
from pipeline.serving.inference import Answer as Reply
from pipeline.serving.inference import AnswerRequest, Sampling
from tests.contexts import context_of
from tests.pipeline.rewards.judge.endpoint import serving
from tests.suites import embedded_suite

from .conftest import evidence_of
from .judging import ADAPTER, JUDGE, MARK, NEW, OLD, comparisons, evidence, judge, judged, plan, section
from .test_evaluate import SECTION, SUITE, StandIn, StandInSession, check, context

pytestmark = pytest.mark.slow

PAIRS = "judged-0/pairs.jsonl"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GateVerdict]:
    root = tmp_path_factory.mktemp("bundle")
    settings = section(role="target")
    gathered = evidence(settings)
    got, _ = judged(root, judge(0.75), settings, gathered)
    bundle.publish(Store(root), "evidence", evidence_of(settings, (gathered,), judged=got))
    return root / "evidence", gate.judge(bundle.recompute(root / "evidence"), settings)


def test_verify_recomputes_the_win_rate(published: tuple[Path, GateVerdict]) -> None:
    path, verdict = published
    assert bundle.verify(path) == verdict and verdict.verdict is Verdict.PASS
    assert "word" not in (path / PAIRS).read_text(), "no text"


def test_the_picture_has_rows_for_judged_suites(published: tuple[Path, GateVerdict]) -> None:
    report = bundle.recompute(published[0])
    assert picture(report).height > picture(report.model_copy(update={"judged": ()})).height
    only = report.model_copy(update={"measurements": ()})
    assert picture(only).png().startswith(b"\x89PNG") and "pairs in 120 clusters" in table(only)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (PAIRS, '"champion_first":0.0', '"champion_first":1.0'),
        (PAIRS, '"candidate_length":', '"candidate_length":1'),
        (bundle.MEASUREMENT, '"pairs": 120', '"pairs": 121'),
        (PAIRS, "item-0000", "item-9999"),
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
    (copy / bundle.MANIFEST).write_text(bundle.manifest(copy))
    with pytest.raises(ValueError, match="do not give the recorded numbers"):
        bundle.verify(copy)


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
        guard_margin=0.1, longer_by=0.5, samples_per_item=2,
    )  # fmt: skip
    work = context(Store(tmp_path))
    work = context_of(work.store, work.iteration, evaluation=settings)
    models = {"iteration": work.iteration, "candidate": CheckpointRef(adapter=ADAPTER, model=NEW, step=1)}
    engine = Wordy({work.iteration.champion.digest: 0.6, NEW.digest: 0.6})
    asked = plan(settings, **models)
    with serving(judge(0.75)) as server:
        report = evaluate(work.store, asked, EvalServices(engine, check, judge=Endpoint(server.url)), print)
    assert len(comparisons(server)) == 2 * SUITE.items
    verdict = decide(work, report)
    assert verdict.verdict is Verdict.PASS, verdict.reasons
    assert report.target().suite == "arithmetic"
    assert evaluate(work.store, asked, EvalServices(engine, check), print) == report, "nothing is asked again"
    assert bundle.verify(report.bundle.uri) == verdict
    (line,) = lines(work.store, "m")
    assert line.suite == "preference"
    other = JUDGE.model_copy(update={"rubric": "5: short\n1: long"})
    items = work.store.path(layout.gate_ledger("m"))
    assert generation(pairs, embedded_suite(SECTION), JUDGE).identity() in {each.name for each in items.iterdir()}
    assert generation(pairs, embedded_suite(SECTION), other).identity() != line.generation


def test_a_gate_that_asked_nobody_has_a_bundle_too(tmp_path: Path) -> None:
    settings, store = section(role="target"), Store(tmp_path)
    problems = ("the settings changed",)
    unasked = EvalEvidence(iteration="it", section=settings, champion=OLD, candidate=NEW, problems=problems)
    bundle.publish(store, "evidence", unasked)
    report = bundle.recompute(tmp_path / "evidence")
    assert bundle.verify(tmp_path / "evidence").verdict is Verdict.INCONCLUSIVE
    assert report.judged == () and report.target().problems == ("the settings changed",)
