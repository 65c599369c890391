"""A task of Inspect as a suite: listed, kept out of training, run against a server, and judged like any other."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from evals import bundle
from evals.__main__ import main
from evals.evaluate import decide, evaluate
from evals.gate import Verdict
from evals.libraries.environment import LibraryEnvironments, library_environments
from evals.libraries.runs import LibraryRun
from evals.libraries.tasks import ensure_listed, parse
from evals.plan import EvalPlan
from evals.runner import sampling
from evals.services import EvalServices
from evals.suites import Suite, pin, suite, suites
from evals.suites.tasks import list_path, task_digest
from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.rewards import Verifier
from pipeline.recipe.serving import EndpointServing
from pipeline.recipe.suites import InspectSuite
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.endpoint_engine import EndpointEngine
from pipeline.serving.inference import answer_seed
from pipeline.traces.context import IterationContext
from tests.contexts import context_of, quiet

from .served import ServedSession
from .toy_server import KEY, toy_server

TASK = Path(__file__).parent / "sums_task.py"
SHA256 = hashlib.sha256(TASK.read_bytes()).hexdigest()
SUITE: dict[str, Any] = {"kind": "inspect", "name": "sums", "task": f"{TASK}@sums", "sha256": SHA256}
SERVING = {"kind": "endpoint", "champion": "old", "candidate": "new"}
OLD, NEW = ModelRef(uri="models/old", digest="old"), ModelRef(uri="models/new", digest="new")


def section_of(**changes: Any) -> Evaluation:
    values = {"suites": [SUITE | changes], "serving": SERVING, "samples_per_item": 2, "max_standard_error": 0.1}
    return Evaluation.model_validate({**values, "guard_margin": 0.1})


def inspect_suite(**changes: Any) -> InspectSuite:
    return InspectSuite.model_validate(SUITE | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"serving": {"kind": "transformers"}}, "asks a server by its URL.*serving.kind to vllm or endpoint"),
        ({"suites": [SUITE | {"system": "Be brief."}]}, "leave system and instruction out"),
        ({"suites": [SUITE | {"task": "sums.py"}]}, "task"),
        ({"suites": [SUITE | {"task": "sums@py"}]}, "task"),
    ],
)
def test_a_recipe_that_cannot_run_a_task_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Evaluation.model_validate({"suites": [SUITE], "serving": SERVING, **changes})


def test_a_task_that_is_not_listed_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not listed yet.*INSPECT_PYTHON.*pt evals list RECIPE"):
        suites(Store(tmp_path), section_of())


def test_a_task_is_pinned_by_its_digest(tmp_path: Path) -> None:
    store, task = Store(tmp_path / "data"), tmp_path / "task.py"
    task.write_text("one = 1\n")
    outside = inspect_suite(task=f"{task}@sums", sha256="")
    with pytest.raises(ValueError, match=f"Give its sha256: {hashlib.sha256(task.read_bytes()).hexdigest()}"):
        task_digest(outside, store)
    with pytest.raises(ValueError, match=f"the recipe says {SHA256}"):
        task_digest(outside.model_copy(update={"sha256": SHA256}), store)
    with pytest.raises(ValueError, match="is not at"):
        task_digest(inspect_suite(task=f"{tmp_path}/none.py@sums"), store)
    below = Store(tmp_path)
    before = list_path(outside, below)
    assert list_path(outside.model_copy(update={"args": {"count": 3}}), below) != before
    assert list_path(outside.model_copy(update={"task": f"{task}@other"}), below) != before
    task.write_text("one = 2\n")
    assert list_path(outside, below) != before


def listed_row(id: str, text: str, **metadata: str) -> dict[str, Any]:
    return {"id": id, "messages": [{"role": "user", "content": text}], "target": "1", "metadata": metadata}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "has no items"),
        ([listed_row("a", "x"), listed_row("a", "y")], "the id of item 'a' twice"),
        ([listed_row("a", "x"), listed_row("b", "x")], "the prompt of item 'b' twice"),
    ],
)
def test_items_that_cannot_be_told_apart_are_refused(rows: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(rows, "sums")


def test_a_listed_item_keeps_its_cluster_and_slice() -> None:
    alone, grouped = parse([listed_row("a", "x"), listed_row("b", "y", cluster="c", slice="s")], "sums")
    assert (alone.cluster, alone.slice, grouped.cluster, grouped.slice) == ("a", "", "c", "s")


def test_an_engine_without_a_server_is_refused(tmp_path: Path) -> None:
    class Session:
        decoding = ServedSession("", "", "").decoding

        def answer(self, *arguments: object) -> None: ...

    section = section_of()
    asked = Suite(name="sums", items=parse([listed_row("a", "x")], "sums"))
    library = LibraryRun(OLD, Session(), section.serving, library_environments(), Store(tmp_path), print)
    with pytest.raises(ValueError, match="this engine has none"):
        library.arm(inspect_suite(), asked, sampling(section, section.suites[0]))


def context(store: Store, section: Evaluation, environments: LibraryEnvironments) -> IterationContext:
    """With the suite listed, and pinned as when the training data was cleaned of it."""
    iteration = identify(0, "m", OLD, DatasetRef(uri="", rows=0, digest="d"), "r").model_copy(update={"id": "it"})
    made = context_of(store, iteration, evaluation=section)
    for each in section.suites:
        assert isinstance(each, InspectSuite)
        ensure_listed(each, store, environments, print)
    pin(store, made.path(), suites(store, section))
    return made


def plan_of(work: IterationContext) -> EvalPlan:
    checkpoint = CheckpointRef(adapter=ModelRef(uri="adapter", digest="adapter"), model=NEW, step=1)
    section = work.recipe.evaluation
    return EvalPlan(iteration=work.iteration, section=section, verifier=Verifier(), candidate=checkpoint)


def refuse(tasks: object) -> list[Any]:
    raise AssertionError("Inspect grades by itself")


@pytest.mark.inspect
@pytest.mark.slow
def test_a_task_decides_like_any_suite(tmp_path: Path, with_inspect: LibraryEnvironments) -> None:
    store, section, lines = Store(tmp_path), section_of(), list[str]()
    with toy_server({"old": 0.3, "new": 0.9}) as server:
        work = context(store, section, with_inspect)
        plan = plan_of(work)
        assert isinstance(section.serving, EndpointServing)
        engine = EndpointEngine(section.serving, Endpoint(server.url, KEY), quiet)
        report = evaluate(store, plan, EvalServices(engine, refuse, with_inspect), lines.append)
        assert decide(work, report).verdict is Verdict.PASS
        assert server.keys == {f"Bearer {KEY}"}
        requests = [body for body in server.requests if body["max_tokens"] == 512]  # the engine's probes have 16
        asked = {(body["model"], body["messages"][-1]["content"], body["seed"]) for body in requests}
        assert len(requests) == len(asked) == 320

        # One seed for each answer, the same for both models, whatever the task says of its temperature.
        assert {(q, s) for m, q, s in asked if m == "old"} == {(q, s) for m, q, s in asked if m == "new"}
        assert answer_seed(section.seed, "sum-3", 1) in {s for _, q, s in asked if q == "What is 3 and 10?"}
        assert {(body["temperature"], body["top_p"], body["max_tokens"]) for body in requests} == {(1, 1, 512)}

        # The same champion beside another candidate: its answers are there.
        store.path("iterations/it/eval_report.json").unlink()
        evidence = bundle.read(Path(report.bundle.uri))
        store.path("iterations/it/evidence").rename(tmp_path / "moved")
        again = evaluate(store, plan, EvalServices(engine, refuse, with_inspect), lines.append)
        assert again.digest() == report.digest()
        assert "evaluation: sums: 160 answers are there, 0 asked" in lines
        assert sum(body["max_tokens"] == 512 for body in server.requests) == 320
    (pair,) = evidence.suites
    right = [sum(s.outcome is Outcome.correct for each in arm.results for s in each.samples) / 160 for arm in pair.arms]
    assert 0.2 < right[0] < 0.4 and 0.8 < right[1] < 1.0
    assert pair.suite.clusters == 40 and pair.suite.items[0].messages[0]["role"] == "system"
    assert KEY not in "".join(path.read_text() for path in tmp_path.rglob("*.json*"))


@pytest.mark.inspect
@pytest.mark.slow
def test_questions_that_fail_are_errors_and_asked_again(tmp_path: Path, with_inspect: LibraryEnvironments) -> None:
    store, section = Store(tmp_path), section_of(items=4)
    context(store, section, with_inspect)
    settings = section.suites[0]
    asked = suite(store, settings, section.seed)
    failing = asked.items[0].messages[-1]["content"]
    with toy_server({"old": 0.5}, fails=failing) as server:
        session = ServedSession(server.url, KEY, "old")
        library = LibraryRun(OLD, session, section.serving, with_inspect, store, print)
        assert isinstance(settings, InspectSuite)
        first = library.arm(settings, asked, sampling(section, settings))
        server.fails = ""
        assert {tuple(body["stop_token_ids"]) for body in server.requests} == {(3,)}
        second = library.arm(settings, asked, sampling(section, settings))
    assert [s.outcome for s in first.results[0].samples] == [Outcome.error] * 2
    assert Outcome.error not in {s.outcome for each in (*first.results[1:], *second.results) for s in each.samples}
    assert first.results[1:] == second.results[1:]


@pytest.mark.inspect
@pytest.mark.slow
def test_the_list_command_lists_a_recipes_tasks(
    tmp_path: Path,
    with_inspect: LibraryEnvironments,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = {
        "name": "r",
        "data_root": str(tmp_path / "data"),
        "base_model": {"name": "m", "uri": "models/m"},
        "traces": {"source": {"kind": "demo"}},
        "evaluation": {"suites": [SUITE | {"task": f"{TASK}@unnamed"}], "serving": SERVING},
    }
    file = tmp_path / "r.yaml"
    file.write_text(json.dumps(recipe))
    monkeypatch.delenv("INSPECT_PYTHON", raising=False)
    assert main(["list", str(file)]) == 1
    assert "INSPECT_PYTHON" in capsys.readouterr().err
    monkeypatch.setenv("INSPECT_PYTHON", with_inspect.inspect.python)
    assert main(["list", str(file)]) == 0
    assert "sums: 3 items in " in capsys.readouterr().out
    section = inspect_suite(task=f"{TASK}@unnamed")
    assert [item.id for item in suite(Store(tmp_path / "data"), section, 0).items] == ["1", "2", "3"]
    with pytest.raises(ValueError, match=r"has no task none \(it has sums, unnamed\)"):
        ensure_listed(inspect_suite(task=f"{TASK}@none"), Store(tmp_path), with_inspect, print)
