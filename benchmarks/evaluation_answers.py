"""What answers cost, with the embedded model and a candidate that the trainer makes of it: batches, seeds, and
SIGKILLs of `python -m evals answer` at random instants."""

import functools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contexts import quiet
from benchmarks.kills import result_of
from benchmarks.training import write_plan
from evals.evaluate import publish_plan
from evals.records import EvalArm, EvalPlan
from evals.runner import Respondent, sampling
from evals.suites import Suite, suites
from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.suite import ensure_suite
from pipeline.recipe import Evaluation, Training
from pipeline.recipe.methods import GRPO
from pipeline.recipe.rewards import Verifier
from pipeline.recipe.serving import TransformersServing
from pipeline.recipe.suites import preset_suite
from pipeline.rewards.verifiers import Grader
from pipeline.serving.inference import Answer, AnswerRequest, answer_seed
from pipeline.serving.transformers_engine import TransformersEngine

BATCH = 32
"""Answers in flight where the evaluation is killed."""
STEPS = 32
"""Of the candidate's training, as in the embedded recipe."""


def batches(small: bool) -> dict[str, float]:
    """The same questions in batches of 256 and of 17: the share of equal texts, and answers a second."""
    asked = _requests(_suite(20 if small else 200), 4, seed=1)
    texts: list[dict[str, str]] = []
    for size in (256, 17):
        started = time.monotonic()
        texts.append({answer.key: answer.text for answer in _answers(_base(), asked, size)})
        print(
            f"  batches of {size}: {len(asked) / (time.monotonic() - started):.0f} answers a second, loading included"
        )
    return {"texts_equal_across_batches": sum(texts[0][key] == texts[1][key] for key in texts[0]) / len(asked)}


def seeds(small: bool) -> dict[str, float]:
    """Variance of the paired difference of one sample each, with one seed for both models and with unrelated ones."""
    suite, k = _suite(40 if small else 400), 2
    other = _trained(1, small).model
    with closing(Grader(Verifier())) as check:
        scores = {
            (name, seed): _scores(model, suite, k, seed, check)
            for name, model in (("champion", _base()), ("candidate", other))
            for seed in (1, 2)
        }
    paired = [scores["candidate", seed] - scores["champion", seed] for seed in (1, 2)]
    unrelated = [scores["candidate", a] - scores["champion", b] for a, b in ((1, 2), (2, 1))]
    shared, apart = (float(np.mean([each.var() for each in pair])) for pair in (paired, unrelated))
    before, after = (np.mean([scores[name, seed].mean() for seed in (1, 2)]) for name in ("champion", "candidate"))
    print(f"  right: {before:.3f} of the champion's answers, {after:.3f} of the trained candidate's")
    print(f"  variance of the difference: {shared:.3f} with a seed for each answer, {apart:.3f} with unrelated seeds")
    return {"variance_ratio": shared / apart}


def kills(small: bool) -> dict[str, float]:
    """20 SIGKILLs at random instants, in as many evaluations as that takes; each then ends. What was asked twice, and
    whether the evidence is that of an evaluation without a kill."""
    draw, times, items = random.Random(7), 1 if small else 20, 40 if small else 600
    killed = twice = evaluations = 0
    same = True
    with tempfile.TemporaryDirectory() as folder:
        candidate = _trained(1, small)
        whole = Store(Path(folder) / "whole")
        plan = _plan(whole, items, candidate, batch_size=256)
        with _run(whole, plan) as process:
            assert process.wait() == 0
        while killed < times:
            evaluations += 1
            store = Store(Path(folder) / f"killed-{evaluations}")
            plan = _plan(store, items, candidate, BATCH)
            while not _done(store, plan):
                with _run(store, plan) as process:
                    if killed < times:
                        time.sleep(draw.uniform(4, 14))
                        process.send_signal(signal.SIGKILL)
                    assert process.wait() in (0, -signal.SIGKILL)
                killed += not _done(store, plan)
            keys = [(file, json.loads(line)["answer"]["key"]) for file in _journals(store) for line in file.open("rb")]
            twice += len(keys) - len(set(keys))
            same &= _bundle(store, plan) == _bundle(whole, plan)
    print(f"  {killed} kills; evaluations: {evaluations}, of {4 * items:,} answers")
    print(f"  the evidence has {'the same' if same else 'ANOTHER'} digest as without a kill")
    return {
        "kills": float(killed),
        "answers_asked_twice": float(twice),
        "same_evidence_after_kills": float(same),
    }


def _base() -> ModelRef:
    return model_ref(MODEL_DIR)


TRAINED = tempfile.TemporaryDirectory(prefix="trained-")
"""Until the process ends: parts share a candidate."""


@functools.cache
def _trained(seed: int, small: bool) -> CheckpointRef:
    """What the trainer makes of the embedded model."""
    root = Path(TRAINED.name, str(seed))
    grpo = GRPO(steps=2 if small else STEPS, learning_rate=1.2e-3, max_completion_tokens=32)
    path = write_plan(root, Training(grpo=grpo, seed=seed, threads=1), seed=seed)
    subprocess.run([sys.executable, "-m", "pipeline.training", str(path)], check=True, capture_output=True)
    return result_of(path).checkpoint


def _suite(items: int) -> Suite:
    with tempfile.TemporaryDirectory() as folder:
        section = Evaluation(suites=(preset_suite("arithmetic", items=items),))
        ensure_suite(Store(folder), preset_suite("arithmetic", items=items), section.seed)
        return suites(Store(folder), section)[0]


def _requests(suite: Suite, k: int, seed: int) -> list[AnswerRequest]:
    return [
        AnswerRequest(key=f"{item.id}/{n}", messages=suite.messages(item), seed=answer_seed(seed, item.id, n))
        for item in suite.items
        for n in range(k)
    ]


def _answers(model: ModelRef, asked: Sequence[AnswerRequest], batch_size: int) -> list[Answer]:
    answers: list[Answer] = []
    plan = sampling(Evaluation(max_completion_tokens=32), preset_suite("arithmetic"))
    with TransformersEngine(TransformersServing(batch_size=batch_size), quiet).open("model", model) as session:
        session.answer(asked, plan, answers.append)
    return answers


def _arm(model: ModelRef, suite: Suite, section: Evaluation, check: Grader, store: Store) -> EvalArm:
    with TransformersEngine(TransformersServing(), quiet).open("model", model) as session:
        return Respondent(model, session, check, store, quiet).run(suite, sampling(section, section.suites[0]))


def _scores(model: ModelRef, suite: Suite, k: int, seed: int, check: Grader) -> Any:
    section = Evaluation(samples_per_item=k, max_completion_tokens=32, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        arm = _arm(model, suite, section, check, Store(folder))
    return np.array([sample.outcome.score or 0.0 for result in arm.results for sample in result.samples])


def _plan(store: Store, items: int, candidate: CheckpointRef, batch_size: int, id: str = "benchmark") -> EvalPlan:
    section = Evaluation(
        suites=(preset_suite("arithmetic", items=items),),
        serving=TransformersServing(batch_size=batch_size),
        samples_per_item=2,
        max_completion_tokens=32,
    )
    ensure_suite(store, preset_suite("arithmetic", items=items), section.seed)
    iteration = identify(0, "m", _base(), DatasetRef(uri="", rows=0, digest="d"), "r").model_copy(update={"id": id})
    plan = EvalPlan(iteration=iteration, section=section, verifier=Verifier(), candidate=candidate)
    publish_plan(store, plan)
    return plan


def _run(store: Store, plan: EvalPlan) -> subprocess.Popen[bytes]:
    path = store.path(plan.path("eval_plan.json"))
    return subprocess.Popen([sys.executable, "-m", "evals", "answer", str(path)], stdout=subprocess.DEVNULL)


def _done(store: Store, plan: EvalPlan) -> bool:
    return store.path(plan.path("eval_report.json")).exists()


def _journals(store: Store) -> list[Path]:
    return sorted(store.path("evaluation", "answers").rglob("*.jsonl"))


def _bundle(store: Store, plan: EvalPlan) -> str:
    """Of the evidence what does not hang on the batch size, which the section names."""
    folder = store.path(plan.path("evidence"))
    names = ("measurement.json", "arithmetic/champion.jsonl")
    return json.dumps({name: (folder / name).read_text(encoding="utf-8") for name in names})
