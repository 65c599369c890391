"""A task of lm-evaluation-harness as a suite that reports: its environment, its list, a run, its samples."""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evals import harness as lm_eval
from evals.harness import LmEvalEnvironment, LmEvalRun, ensure_listed, read_rows
from evals.runner import sampling
from evals.suites import Item, Suite, suite, task_digest, task_list
from pipeline.core.storage import ModelRef, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import LmEvalSuite
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import ServedAt

from .conftest import DECODING
from .toy_server import KEY, toy_server

TASK = Path(__file__).parent / "sums_task.yaml"
SUITE: dict[str, Any] = {"kind": "lm_eval", "name": "sums", "filter": "number"}
ASKED = Suite(
    name="sums",
    items=tuple(
        Item(id=str(n), cluster="c", messages=[{"role": "user", "content": f"{n}?"}], reference=str(n), slice="")
        for n in (2, 0)
    ),
)


def section(**changes: Any) -> LmEvalSuite:
    return LmEvalSuite.model_validate({**SUITE, "task": "t.yaml", **changes})


def row(number: int, answer: str, score: float, **changes: Any) -> dict[str, Any]:
    given = {"id": str(number), "prompt": f"{number}?", "target": str(number), "filter": "number"}
    return {**given, "response": f"It is {answer}", "answer": answer, "metrics": {"exact_match": score}, **changes}


OTHER = row(0, "9", 0.0, filter="none")


def test_samples_become_results_in_the_suites_order() -> None:
    two, none = read_rows([row(0, "0", 1.0), row(2, "[invalid]", 0.0), OTHER], ASKED, section())
    assert (two.id, two.samples[0].outcome, none.id) == ("2", Outcome.no_answer, "0")
    assert (none.samples[0].outcome, none.samples[0].text, none.samples[0].tokens) == (Outcome.correct, "It is 0", 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "3"}, "no item '2' as it was listed"),
        ({"prompt": "3?"}, "no item '2' as it was listed"),
        ({"target": "3"}, "no item '2' as it was listed"),
        ({"filter": "x"}, r"filter number \(of none, number, x\) has no item"),
        ({"metrics": {"exact_match": 0.5}}, "exact_match is neither 0 nor 1"),
        ({"metrics": {"bleu": 1.0}}, "exact_match is neither 0 nor 1"),
    ],
)
def test_samples_that_say_too_little_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_rows([row(0, "0", 1.0), row(2, "2", 1.0, **changes), OTHER], ASKED, section())


def test_a_failure_of_the_library_ends_with_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.py").write_text("raise RuntimeError('a fault of the library')")
    monkeypatch.setattr(lm_eval, "SCRIPT", tmp_path / "script.py")
    with pytest.raises(RuntimeError, match="a fault of the library"):
        LmEvalEnvironment(sys.executable).run(section())


def test_a_missing_environment_says_how_to_make_one() -> None:
    for python in ("", "/nowhere/python"):
        with pytest.raises(ValueError, match=r"(?s)no Python at.*-r constraints/lm-eval.txt.*LM_EVAL_PYTHON"):
            LmEvalEnvironment(python).run(section())


def test_a_task_is_pinned_by_its_digest(tmp_path: Path) -> None:
    store, task = Store(tmp_path / "data"), tmp_path / "task.yaml"
    task.write_text("task: one\n")
    outside = section(task=str(task))
    with pytest.raises(ValueError, match=f"Give its sha256: {hashlib.sha256(task.read_bytes()).hexdigest()}"):
        task_digest(outside, store)
    below = Store(tmp_path)
    with pytest.raises(ValueError, match=r"not listed yet.*LM_EVAL_PYTHON.*pt evals list RECIPE"):
        suite(below, outside, 1)
    before = task_list(outside, below)
    assert task_list(outside.model_copy(update={"args": {"count": 3}}), below) != before
    task.write_text("task: two\n")
    assert task_list(outside, below) != before


def test_an_engine_without_a_server_is_refused() -> None:
    with pytest.raises(ValueError, match=r"asks a server by its URL.*serving\.kind to vllm or endpoint"):
        Evaluation.model_validate({"suites": [{"kind": "items", "preset": "arithmetic"}, SUITE | {"task": "t.yaml"}]})


@pytest.fixture
def with_lm_eval() -> LmEvalEnvironment:
    python = Path(os.environ.get("LM_EVAL_PYTHON", Path(__file__).parents[2] / ".venv-lm-eval" / "bin" / "python"))
    if not python.exists():
        pytest.skip(
            f"no environment at {python} (docs/evaluation.md says how to make one, LM_EVAL_PYTHON names another)"
        )
    return LmEvalEnvironment(str(python))


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task's file with its data beside it."""
    copied = tmp_path / "task" / TASK.name
    copied.parent.mkdir()
    shutil.copy(TASK, copied)
    rows = ({"one": n, "other": 7, "sum": str(n + 7), "cluster": f"c{n // 2}"} for n in range(8))
    (copied.parent / "sums.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return copied


@pytest.mark.lm_eval
@pytest.mark.slow
def test_a_task_is_listed_and_asked(
    tmp_path: Path, task: Path, with_lm_eval: LmEvalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    sha256 = hashlib.sha256(task.read_bytes()).hexdigest()
    suites = [{"kind": "items", "preset": "arithmetic"}, SUITE | {"task": str(task), "sha256": sha256, "items": 5}]
    serving = {"kind": "endpoint", "champion": "old", "candidate": "new"}
    evaluation = Evaluation.model_validate({"suites": suites, "serving": serving, "seed": 4})
    settings, store = evaluation.suites[1], Store(tmp_path / "data")
    assert isinstance(settings, LmEvalSuite)
    ensure_listed(settings, store, with_lm_eval, print)
    asked = suite(store, settings, evaluation.seed)
    assert len(asked.items) == 5 and asked.items[0].cluster == f"c{int(asked.items[0].id) // 2}"
    with toy_server({"old": 0.5}) as server:
        at: Any = SimpleNamespace(server=ServedAt(server.url, KEY, "old", {"stop_token_ids": [3]}), decoding=DECODING)
        model, served = ModelRef(uri="models/old", digest="old"), evaluation.serving
        run = LmEvalRun(model, at, served, with_lm_eval, store)  # pyright: ignore[reportArgumentType]
        arm = run.arm(settings, asked, sampling(evaluation, settings))
        again = run.arm(settings, asked, sampling(evaluation, settings))
    assert again == arm
    assert server.keys == {f"Bearer {KEY}"} and len(server.requests) == 5
    assert {b["messages"][-1]["content"] for b in server.requests} == {i.messages[0]["content"] for i in asked.items}
    assert {(b["temperature"], b["top_p"], b["seed"], tuple(b["stop_token_ids"])) for b in server.requests} == {
        (1.0, 1.0, 4, (3,))
    }
    for item, result in zip(asked.items, arm.results, strict=True):
        right = result.samples[0].text == f"It is {item.reference}"
        assert result.samples[0].outcome is (Outcome.correct if right else Outcome.wrong)
    assert KEY not in "".join(path.read_text() for path in store.root.rglob("*.json*"))
