"""A task of lm-evaluation-harness as a suite that reports: listed, run against a server, its samples read."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals.libraries.environment import LibraryEnvironments
from evals.libraries.lm_eval_log import results, version
from evals.libraries.runs import LibraryRun
from evals.libraries.tasks import ensure_listed
from evals.runner import sampling
from evals.suites import Item, Suite, suite
from pipeline.core.storage import ModelRef, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import LmEvalSuite
from pipeline.rewards.verifiers import Outcome

from .served import ServedSession
from .toy_server import KEY, toy_server

TASK = Path(__file__).parent / "sums_task.yaml"
SUITE: dict[str, Any] = {"kind": "lm_eval", "name": "sums", "filter": "number"}
SERVING = {"kind": "endpoint", "champion": "old", "candidate": "new"}
ASKED = Suite(
    name="sums",
    items=tuple(
        Item(id=str(n), cluster="c", messages=[{"role": "user", "content": f"{n}?"}], reference=str(n), slice="")
        for n in (2, 0)
    ),
)


def row(number: int, answer: str, score: float, **changes: Any) -> dict[str, Any]:
    given = {"id": str(number), "prompt": f"{number}?", "target": str(number), "filter": "number"}
    return {**given, "response": f"It is {answer}", "answer": answer, "metrics": {"exact_match": score}, **changes}


def log(*rows: dict[str, Any]) -> dict[str, Any]:
    """As the harness gives them, one row more for another filter."""
    samples = [*(rows or (row(0, "0", 1.0), row(2, "[invalid]", 0.0))), row(0, "9", 0.0, filter="none")]
    return {"lm_eval": "0.4.13", "samples": samples}


def test_samples_become_results_in_the_suites_order() -> None:
    two, none = results(log(), ASKED, "exact_match", "number")
    assert (two.id, two.samples[0].outcome, none.id) == ("2", Outcome.no_answer, "0")
    assert (none.samples[0].outcome, none.samples[0].text, none.samples[0].tokens) == (Outcome.correct, "It is 0", 3)
    assert version(log(), "exact_match", "number") == "lm_eval 0.4.13: exact_match of number"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row(0, "0", 1.0)], "answered 1 items, and 2"),
        ([row(0, "0", 1.0), row(2, "2", 0.5)], r"exact_match is 0\.5"),
        ([row(0, "0", 1.0), row(2, "2", 1.0, prompt="3?")], "another text or target"),
        ([row(0, "0", 1.0), row(2, "2", 1.0, target="3")], "another text or target"),
        ([row(0, "0", 1.0), row(2, "2", 1.0, metrics={"bleu": 1.0})], "the metrics bleu, not exact_match"),
        ([row(0, "0", 1.0, filter="x"), row(2, "2", 1.0, filter="x")], "the filters none, x, not number"),
    ],
)
def test_samples_that_say_too_little_are_refused(rows: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        results(log(*rows), ASKED, "exact_match", "number")


@pytest.mark.parametrize("changes", [{"role": "guard"}, {"role": "target"}, {"samples_per_item": 2}])
def test_a_harness_suite_decides_nothing(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="role report and samples_per_item 1"):
        LmEvalSuite.model_validate({**SUITE, "task": "t.yaml", **changes})


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
    tmp_path: Path, task: Path, with_lm_eval: LibraryEnvironments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    sha256 = hashlib.sha256(task.read_bytes()).hexdigest()
    suites = [{"kind": "arithmetic"}, SUITE | {"task": str(task), "sha256": sha256, "items": 5}]
    section = Evaluation.model_validate({"suites": suites, "serving": SERVING, "seed": 4})
    settings, store = section.suites[1], Store(tmp_path / "data")
    assert isinstance(settings, LmEvalSuite)
    ensure_listed(settings, store, with_lm_eval, print)
    asked = suite(store, settings, section.seed)
    assert len(asked.items) == 5 and asked.items[0].cluster == f"c{int(asked.items[0].id) // 2}"
    with toy_server({"old": 0.5}) as server:
        run = LibraryRun(OLD, ServedSession(server.url, KEY, "old"), section.serving, with_lm_eval, store, print)
        arm = run.arm(settings, asked, sampling(section, settings))
        again = run.arm(settings, asked, sampling(section, settings))
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


OLD = ModelRef(uri="models/old", digest="old")


@pytest.mark.lm_eval
@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text.replace("generate_until", "loglikelihood"), "asks for loglikelihood"),
        (lambda text: text.replace("task: sums\n", ""), "no line `task: NAME`"),
    ],
)
def test_a_task_that_cannot_be_asked_is_refused(
    tmp_path: Path, task: Path, with_lm_eval: LibraryEnvironments, monkeypatch: pytest.MonkeyPatch,
    edit: Callable[[str], str], words: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    task.write_text(edit(task.read_text()))
    sha256 = hashlib.sha256(task.read_bytes()).hexdigest()
    section = LmEvalSuite.model_validate({**SUITE, "task": str(task), "sha256": sha256})
    with pytest.raises(ValueError, match=words):
        ensure_listed(section, Store(tmp_path / "data"), with_lm_eval, print)
