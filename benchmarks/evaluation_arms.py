"""Two runs over each suite of a simulated evaluation, made from counts of right answers, and their verdict."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evals import bundle, gate
from evals.bundle import SuiteEvidence
from evals.gate import Verdict
from evals.measurements import BundleRef
from evals.results import EvalArm, EvalSample, ItemResult, Protocol
from evals.runner import sampling
from evals.statistics import Array
from evals.suites import Suite
from pipeline.core.storage import ModelRef
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import Decoding
from pipeline.serving.journal import AnswerProtocol

if TYPE_CHECKING:
    from benchmarks.evaluation_gates import Counts

DECODING = Decoding(
    engine="simulated", version="1", device="cpu", dtype="float32", stop_ids=(0,), context=None, tokens_digest="0" * 64
)
RIGHT, WRONG = (
    EvalSample(text="", tokens=9, finished=True, outcome=outcome, answer="")
    for outcome in (Outcome.correct, Outcome.wrong)
)


def judged(section: Evaluation, suites: Mapping[str, Suite], counts: Mapping[str, "Counts"], row: int) -> Verdict:
    """What the gate says of one of the evaluations, from its samples."""
    evidence = tuple(
        SuiteEvidence(
            suite=suite,
            arms=(
                arm("champion", section, suite, counts[name].champion[row]),
                arm("candidate", section, suite, counts[name].candidate[row]),
            ),
        )
        for name, suite in suites.items()
    )
    gathered = bundle.evidence("simulated", section, bundle.Gathered(evidence))
    report = bundle.report(gathered, bundle.measure(gathered), BundleRef(uri="", digest=""))
    return gate.judge(report, section).verdict


def arm(name: str, section: Evaluation, suite: Suite, right: Array) -> EvalArm:
    """One run, made from the right answers to each item."""
    plan = sampling(section, section.suite(suite.name))
    answers = AnswerProtocol(
        decoding=DECODING,
        temperature=plan.temperature,
        max_completion_tokens=plan.max_completion_tokens,
        seed=plan.seed,
    )
    protocol = Protocol(
        suite=suite.name, suite_digest=suite.digest(), samples=plan.samples, verifier="simulated", answers=answers
    )
    results = (
        ItemResult(id=item.id, samples=(RIGHT,) * int(count) + (WRONG,) * (plan.samples - int(count)))
        for item, count in zip(suite.items, right, strict=True)
    )
    return EvalArm(model=ModelRef(uri=name, digest=name), protocol=protocol, results=tuple(results))
