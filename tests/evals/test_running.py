"""`python -m evals answer PLAN` as typed: how it ends, and that what went wrong for now is over at the next run."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.__main__ import main
from evals.evaluate import publish_plan
from evals.records import EvalPlan
from evals.suites import pin, suites
from pipeline.core import layout
from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store
from pipeline.demo.suite import ensure_suite
from pipeline.recipe import Evaluation
from pipeline.recipe.rewards import Verifier
from pipeline.recipe.suites import preset_suite
from pipeline.serving.chat import PROBE_SAMPLING
from tests.pipeline.serving.chat_server import ChatServer, HttpRequest, HttpResponse, chat_server, completion

from .judging import ADAPTER, NEW, OLD

pytestmark = pytest.mark.slow

CRASHED, NEVER_RETRY = 1, 64
SUITE = preset_suite("arithmetic", items=40)
IN_FLIGHT = 8
ENGINE = {"kind": "endpoint", "champion": "old", "candidate": "new", "in_flight": IN_FLIGHT}


@pytest.fixture
def server() -> Iterator[ChatServer]:
    def other(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        """The candidate's answers are not the champion's."""
        return completion(request.body, seed=request.body["seed"] + 1) if request.body["model"] == "new" else None

    with chat_server(other) as opened:
        yield opened


def planned(root: Path, candidate: ModelRef = NEW) -> Path:
    """A plan below the data root, as the stage leaves it."""
    store = Store(root)
    settings = {"serving": ENGINE, "samples_per_item": 2}
    section = Evaluation.model_validate({"suites": [SUITE.model_dump()], **settings})
    ensure_suite(store, SUITE, section.seed)
    iteration = identify(0, "m", OLD, DatasetRef(uri="", rows=0, digest=candidate.digest), "r")
    plan = EvalPlan(
        iteration=iteration,
        section=section,
        verifier=Verifier(),
        candidate=CheckpointRef(adapter=ADAPTER, model=candidate, step=1),
    )
    pin(store, plan.path(), suites(store, section))
    return store.path(publish_plan(store, plan))


def kept(root: Path) -> int:
    """Answers in the journals."""
    return sum(len(file.read_bytes().splitlines()) for file in (root / layout.ANSWERS).rglob("*.jsonl"))


def test_a_plan_that_cannot_be_asked_is_never_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SERVING_URL", raising=False)
    assert main(["answer", str(planned(tmp_path))]) == NEVER_RETRY
    assert "SERVING_URL is empty. Set it" in capsys.readouterr().err


def test_each_gate_asks_both_models_by_seeds_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ChatServer
) -> None:
    monkeypatch.setenv("SERVING_URL", server.url)
    for candidate in (NEW, ModelRef(uri="models/newer", digest="f" * 64)):
        before = len(server.asked)
        assert main(["answer", str(planned(tmp_path, candidate))]) == 0
        drawn = [
            each for each in server.asked[before:] if each.body["max_tokens"] != PROBE_SAMPLING.max_completion_tokens
        ]
        seeds = {name: {each.body["seed"] for each in drawn if each.body["model"] == name} for name in ("old", "new")}
        assert seeds["old"] == seeds["new"] and len(seeds["old"]) == 80, "a champion answers each gate"


def test_a_lost_server_ends_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drops(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        return HttpResponse(503) if place >= 60 else None

    plan = planned(tmp_path)
    with chat_server(drops) as server:
        monkeypatch.setenv("SERVING_URL", server.url)
        assert main(["answer", str(plan)]) == CRASHED
    assert "see to the server, and run again" in capsys.readouterr().err
    assert 0 < kept(tmp_path) < 160 and not plan.with_name("eval_report.json").exists()


def test_a_killed_run_asks_again_what_was_in_flight_alone(tmp_path: Path) -> None:
    """Counted where it is asked; the probes of each start are no questions of the suite."""
    plan, child = planned(tmp_path / "killed"), list[subprocess.Popen[bytes]]()
    kills = [70, 190, None]

    def kills_its_client(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        if place == kills[len(child) - 1]:
            child[-1].send_signal(signal.SIGKILL)
        return None

    with chat_server(kills_its_client) as server:
        for at in kills:
            environment = {**os.environ, "SERVING_URL": server.url}
            child.append(subprocess.Popen([sys.executable, "-m", "evals", "answer", str(plan)], env=environment))
            assert child[-1].wait(240) == (0 if at is None else -signal.SIGKILL)
        asked = Counter(
            (str(body["model"]), str(body["messages"]), int(body["seed"]))
            for body in (request.body for request in server.asked if request.body)  # a kill can cut one off
            if body["max_tokens"] != PROBE_SAMPLING.max_completion_tokens
        )
    assert len(asked) == 160 == kept(tmp_path / "killed")
    assert 0 < asked.total() - 160 <= 2 * IN_FLIGHT
