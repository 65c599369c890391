"""A task of lm-evaluation-harness as a suite that reports: its environment, its list, a run, its samples."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evals import harness as lm_eval
from evals.harness import LmEvalEnvironment, LmEvalRun, ensure_listed, parse, read_samples
from evals.runner import sampling
from evals.suites import Item, Suite, suite
from evals.suites.tasks import list_path, task_digest
from pipeline.core.storage import ModelRef, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import LmEvalSuite
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import Answer, AnswerRequest, Decoding, Sampling, ServedAt

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


OLD = ModelRef(uri="models/old", digest="old")


def row(number: int, answer: str, score: float, **changes: Any) -> dict[str, Any]:
    given = {"id": str(number), "prompt": f"{number}?", "target": str(number), "filter": "number"}
    return {**given, "response": f"It is {answer}", "answer": answer, "metrics": {"exact_match": score}, **changes}


def log(*rows: dict[str, Any]) -> dict[str, Any]:
    """As the harness gives them, one row more for another filter."""
    samples = [*(rows or (row(0, "0", 1.0), row(2, "[invalid]", 0.0))), row(0, "9", 0.0, filter="none")]
    return {"lm_eval": "0.4.13", "samples": samples}


def test_samples_become_results_in_the_suites_order() -> None:
    two, none = read_samples(log(), ASKED, "exact_match", "number")
    assert (two.id, two.samples[0].outcome, none.id) == ("2", Outcome.no_answer, "0")
    assert (none.samples[0].outcome, none.samples[0].text, none.samples[0].tokens) == (Outcome.correct, "It is 0", 3)


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
        read_samples(log(*rows), ASKED, "exact_match", "number")


class ServedSession(NamedTuple):
    """A session whose model answers at a URL alone."""

    server: ServedAt
    decoding: Decoding = Decoding(
        engine="endpoint", version="1", device="unknown", dtype="unknown", stop_ids=(), context=None,
        tokens_digest="a" * 64,
    )  # fmt: skip

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        raise AssertionError("a library asks the server by itself")


SCRIPT = """
import json, sys
kind = json.loads(sys.stdin.readline())["arguments"]["spec"]
if kind == "breaks":
    raise RuntimeError("a fault of the library")
print(json.dumps({"refused": "Put a file there."} if kind == "refuses" else {"result": [kind]}))
"""


def test_a_call_returns_a_result_or_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setattr(lm_eval, "SCRIPT", tmp_path / "script.py")
    environment = LmEvalEnvironment(sys.executable)
    assert environment.call("listing", spec="works") == ["works"]
    with pytest.raises(ValueError, match=r"^Put a file there\.$"):
        environment.call("listing", spec="refuses")
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1.*a fault of the library"):
        environment.call("listing", spec="breaks")


@pytest.mark.parametrize(("python", "word"), [("", "none is named"), ("/nowhere/python", "no Python at /nowhere")])
def test_a_missing_environment_says_how_to_make_one(python: str, word: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s){word}.*-r constraints/lm-eval.txt.*LM_EVAL_PYTHON"):
        LmEvalEnvironment(python).call("version")


def test_the_script_ends_with_its_caller_and_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "lm_eval.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    hanging = (
        f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    request = {"function": "run", "arguments": {"spec": {}, "server": {}, "plan": {}, "sample_ids": []}}
    with subprocess.Popen(
        [sys.executable, "-c", hanging, str(lm_eval.SCRIPT)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        assert process.stderr.readline() == b"begun\n", "what a library prints is no reply"
        process.stdin.close()  # as the kernel does for a caller that was killed
        assert process.wait(60) == 3
    lines = [line.strip() for line in lm_eval.SCRIPT.read_text().splitlines()]
    assert not [line for line in lines if line.startswith(("import evals", "from pipeline", "from evals"))]


def test_a_task_is_pinned_by_its_digest(tmp_path: Path) -> None:
    store, task = Store(tmp_path / "data"), tmp_path / "task.yaml"
    task.write_text("task: one\n")
    outside = harness(task=str(task))
    with pytest.raises(ValueError, match=f"Give its sha256: {hashlib.sha256(task.read_bytes()).hexdigest()}"):
        task_digest(outside, store)
    with pytest.raises(ValueError, match=f"the recipe says {'0' * 64}"):
        task_digest(outside.model_copy(update={"sha256": "0" * 64}), store)
    with pytest.raises(ValueError, match="is not at"):
        task_digest(harness(task=f"{tmp_path}/none.yaml"), store)
    below = Store(tmp_path)
    with pytest.raises(ValueError, match=r"not listed yet.*LM_EVAL_PYTHON.*pt evals list RECIPE"):
        suite(below, outside, 1)
    before = list_path(outside, below)
    assert list_path(outside.model_copy(update={"args": {"count": 3}}), below) != before
    task.write_text("task: two\n")
    assert list_path(outside, below) != before


def harness(**changes: Any) -> LmEvalSuite:
    return LmEvalSuite.model_validate(SUITE | changes)


def listed_row(id: str, text: str, **metadata: str) -> dict[str, Any]:
    return {"id": id, "messages": [{"role": "user", "content": text}], "target": "1", "metadata": metadata}


def test_an_engine_without_a_server_is_refused(tmp_path: Path) -> None:
    class Session:
        decoding = ServedSession(ServedAt("", "", "", {})).decoding

        def answer(self, *arguments: object) -> None: ...

    alone, grouped = parse([listed_row("a", "x"), listed_row("b", "y", cluster="c", slice="s")], "sums")
    assert (alone.cluster, alone.slice, grouped.cluster, grouped.slice) == ("a", "", "c", "s")
    run = LmEvalRun(OLD, Session(), None, LmEvalEnvironment(), Store(tmp_path), print)
    section = Evaluation.model_validate({"suites": [{"kind": "items", "preset": "arithmetic"}]})
    with pytest.raises(ValueError, match="this engine has none"):
        settings = harness(task="t.yaml")
        run.arm(settings, Suite(name="sums", items=(alone, grouped)), sampling(section, settings))
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
    section = Evaluation.model_validate({"suites": suites, "serving": SERVING, "seed": 4})
    settings, store = section.suites[1], Store(tmp_path / "data")
    assert isinstance(settings, LmEvalSuite)
    ensure_listed(settings, store, with_lm_eval, print)
    asked = suite(store, settings, section.seed)
    assert len(asked.items) == 5 and asked.items[0].cluster == f"c{int(asked.items[0].id) // 2}"
    with toy_server({"old": 0.5}) as server:
        run = LmEvalRun(
            OLD,
            ServedSession(ServedAt(server.url, KEY, "old", {"stop_token_ids": [3]})),
            section.serving,
            with_lm_eval,
            store,
            print,
        )
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
