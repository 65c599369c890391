"""Inspect against vLLM's real server: its answers are those that our runner would draw."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from evals.libraries.environment import LibraryEnvironments
from evals.libraries.runs import LibraryRun
from evals.libraries.tasks import ensure_listed
from evals.runner import sampling
from evals.suites import suite
from pipeline.core.storage import Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.recipe import Evaluation
from pipeline.recipe.serving import VllmServing
from pipeline.recipe.suites import InspectSuite
from pipeline.serving.inference import Answer, AnswerRequest, answer_seed
from pipeline.serving.vllm_engine import VllmEngine
from tests.contexts import quiet
from tests.servers import VLLM_ON_CPU, vllm_python

TASK = Path(__file__).parent / "sums_task.py"


@pytest.mark.inspect
@pytest.mark.vllm
@pytest.mark.slow
def test_inspect_draws_what_our_runner_draws(
    tmp_path: Path, with_inspect: LibraryEnvironments, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = vllm_python()
    for name, value in (VLLM_ON_CPU | {"OMP_NUM_THREADS": "1"}).items():
        monkeypatch.setenv(name, value)
    store = Store(tmp_path / "data")
    sha256 = hashlib.sha256(TASK.read_bytes()).hexdigest()
    settings = InspectSuite(name="sums", task=f"{TASK}@unnamed", sha256=sha256)
    serving = VllmServing(in_flight=16, start_timeout_s=240, dtype="float32")
    section = Evaluation(suites=(settings,), serving=serving, samples_per_item=4, max_completion_tokens=64)
    ensure_listed(settings, store, with_inspect, quiet)
    asked, plan = suite(store, settings, section.seed), sampling(section, settings)
    model, ours = model_ref(MODEL_DIR), dict[str, Answer]()
    with VllmEngine(serving, python, tmp_path / "vllm", quiet) as engine, engine.open("champion", model) as session:
        arm = LibraryRun(model, session, serving, with_inspect, store, quiet).arm(settings, asked, plan)
        requests = [
            AnswerRequest(
                key=f"{item.id}/{sample}",
                messages=asked.messages(item),
                seed=answer_seed(plan.seed, item.id, sample),
            )
            for item in asked.items
            for sample in range(plan.samples)
        ]
        session.answer(requests, plan, lambda answer: ours.update({answer.key: answer}))
    theirs = {f"{each.id}/{n}": sample.text for each in arm.results for n, sample in enumerate(each.samples)}
    assert theirs == {key: answer.text for key, answer in ours.items()}
    assert len(theirs) == 12 and len(set(theirs.values())) > 3
