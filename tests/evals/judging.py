"""Two finished runs whose answers differ as a test wants, and judges on loopback that prefer as a test wants."""

import hashlib
import math
import random
from pathlib import Path
from typing import Any

from evals import bundle, gate
from evals.bundle import SuiteEvidence
from evals.gate import GateVerdict
from evals.judged import judge_suites
from evals.records import BundleRef, EvalArm, EvalPlan, EvalReport
from evals.win_rate import JudgedEvidence
from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.rewards import Judge, Verifier
from pipeline.rewards.judge import Endpoint
from pipeline.rewards.judge.admission import CONTROLS
from tests.evals.conftest import Kit, evidence_of
from tests.pipeline.rewards.judge.endpoint import (
    MODEL,
    Answer,
    Request,
    Said,
    Server,
    parts,
    preferring,
    scored,
    serving,
)

JUDGE = Judge(model=MODEL, digest="sha256:0f", timeout_s=30, concurrency=8, attempts=1)
MARK = "[new]"
RIGHT = {control.right for control in CONTROLS}
OLD, NEW, ADAPTER = (ModelRef(uri=f"models/{name}", digest=name * 8) for name in ("old", "new", "adapter"))


def section(items: int = 120, judged: int = 1, **suite: Any) -> Evaluation:
    """The sums as a target with wide margins, and judged suites over them."""
    asked = {"kind": "items", "preset": "arithmetic", "items": items}
    over = [{"kind": "judged", "name": f"judged-{n}", "over": "arithmetic", **suite} for n in range(judged)]
    bounds = {"max_standard_error": 0.1, "guard_margin": 0.2, "longer_by": 1.0}
    values = {"suites": [asked, *over], "samples_per_item": 1, **bounds}
    return Evaluation.model_validate(values)


def plan(settings: Evaluation, judge: Judge | None = JUDGE, **changes: Any) -> EvalPlan:
    iteration = identify(0, "m", OLD, DatasetRef(uri="", rows=0, digest="d"), "r")
    checkpoint = CheckpointRef(adapter=ADAPTER, model=NEW, step=1)
    values = {"iteration": iteration, "section": settings, "verifier": Verifier(), "candidate": checkpoint}
    return EvalPlan(**{**values, "judge": judge, **changes})


def evidence(settings: Evaluation, longer: float = 1.0, equal: int = 0) -> SuiteEvidence:
    """Answers of lengths around 60 words, the candidate's `longer` times that; the first `equal` pairs are equal."""
    kit, rng = Kit(), random.Random(3)
    suite = kit.suite(settings, items_per_cluster=1)
    arms = [kit.arm(name, settings, suite, skill) for name, skill in (("old", 0.3), ("new", 0.6))]
    lengths = [[round(math.exp(rng.gauss(math.log(60 * times), 0.4))) for _ in suite.items] for times in (1.0, longer)]
    texts = [["word " * words + mark for words in each] for each, mark in zip(lengths, ("", MARK), strict=True)]
    for place in range(equal):
        texts[1][place], lengths[1][place] = texts[0][place], lengths[0][place]
    old, new = (answered(arm, *each) for arm, each in zip(arms, zip(texts, lengths, strict=True), strict=True))
    return SuiteEvidence(suite=suite, arms=(old, new))


def answered(arm: EvalArm, texts: list[str], lengths: list[int]) -> EvalArm:
    results = tuple(
        result.model_copy(update={"samples": (result.samples[0].model_copy(update={"text": text, "tokens": words}),)})
        for result, text, words in zip(arm.results, texts, lengths, strict=True)
    )
    return arm.model_copy(update={"results": results})


def judge(win: float, habit: float = 0.0, admits: bool = True) -> Answer:
    """A judge that passes its admission (unless not `admits`) and prefers the candidate with probability `win` at equal
    lengths; its logit gains `habit` for each 30 words that the candidate's answer is longer, at most so much."""

    def answer(server: Server, request: Request, place: int) -> Said:
        data = parts(request)
        if "answer to be scored" in data:
            return scored(5 if admits and data["answer to be scored"] in RIGHT else 1)
        first, second = data["answer A"], data["answer B"]
        new, old = (first, second) if MARK in first else (second, first)
        longer = len(new.split()) - len(old.split())
        chance = 1 / (1 + math.exp(-(math.log(win / (1 - win)) + habit * math.tanh(longer / 30))))
        drawn = int.from_bytes(hashlib.sha256(data["turn 1 (user)"].encode()).digest()[:8]) / 2**64
        better = new if drawn < chance else old
        return preferring("A" if better == first else "B")

    return answer


def comparisons(server: Server) -> list[str]:
    """The bodies of the requests that compare, without their random marks. A killed client may leave a request that
    has no body yet."""
    pairs = [parts(each) for each in server.requests if each.body]
    return [str(sorted(each.items())) for each in pairs if "answer A" in each]


def judged(
    root: Path, answer: Answer, settings: Evaluation, gathered: SuiteEvidence | None = None, **changes: Any
) -> tuple[tuple[JudgedEvidence, ...], Server]:
    with serving(answer) as server:
        asked = plan(settings, **changes)
        got = judge_suites(Store(root), asked, Endpoint(server.url), [gathered or evidence(settings)], print)
    return got, server


def reported(settings: Evaluation, gathered: SuiteEvidence, of_judge: tuple[JudgedEvidence, ...]) -> EvalReport:
    return bundle.report(evidence_of(settings, (gathered,), judged=of_judge), BundleRef(uri="", digest="b"))


def gated(
    root: Path, answer: Answer, settings: Evaluation, longer: float = 1.0, **changes: Any
) -> tuple[GateVerdict, EvalReport]:
    gathered = evidence(settings, longer)
    report = reported(settings, gathered, judged(root, answer, settings, gathered, **changes)[0])
    return gate.judge(report, settings), report
