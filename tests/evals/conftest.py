"""Small real evidence: a suite, two arms whose skills are set, and the report they give."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from evals import bundle, gate
from evals.bundle import EvalEvidence, SuiteEvidence
from evals.gate import GateVerdict
from evals.records import BundleRef, EvalArm, EvalReport, EvalSample, ItemResult, Protocol, Trial
from evals.runner import sampling
from evals.suites import Item, Suite
from pipeline.core.storage import ModelRef
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import AnswerProtocol, Decoding

DECODING = Decoding(
    engine="transformers", version="5", device="cpu", dtype="float32", stop_ids=(3,), context=1024,
    tokens_digest="a" * 64,
)  # fmt: skip


TRIAL = Trial(level=0.05, seed=0)


def evidence_of(section: Evaluation, suites: tuple[SuiteEvidence, ...], **more: Any) -> EvalEvidence:
    champion, candidate = (arm.model for arm in suites[0].arms)
    values = {"section": section, "champion": champion, "candidate": candidate, "suites": suites, "trial": TRIAL}
    return EvalEvidence(iteration="it", **values, **more)


class Kit:
    """Builds evidence piece by piece; each piece can be broken before it is judged."""

    def section(self, items: int = 200, **changes: object) -> Evaluation:
        suites = [{"kind": "items", "preset": "arithmetic", "items": items}]
        values = {
            "suites": suites,
            "samples_per_item": 4,
            "max_standard_error": 0.05,
            "guard_margin": 0.05,
            **changes,
        }
        return Evaluation.model_validate(values)

    def suite(self, section: Evaluation, items_per_cluster: int = 2, name: str = "arithmetic", count: int = 0) -> Suite:
        return Suite(
            name=name,
            items=tuple(
                Item(
                    id=f"item-{i:04d}",
                    cluster=f"step-{i // items_per_cluster:04d}",
                    messages=[{"role": "user", "content": f"What is {i} and {i}?"}],
                    reference=str(2 * i),
                    slice=("even", "odd")[i % 2],
                )
                for i in range(count or getattr(section.suite(name), "items", 200))
            ),
        )

    def arm(
        self, name: str, section: Evaluation, suite: Suite, skill: float, no_answer: float = 0.01, cut: float = 0.01,
        tokens: int = 3,
    ) -> EvalArm:  # fmt: skip
        rng = random.Random(f"{name}{skill}")
        plan = sampling(section, section.suite(suite.name))
        protocol = Protocol(
            suite=suite.name,
            suite_digest=suite.digest(),
            samples=plan.samples,
            verifier="v/1",
            answers=AnswerProtocol.under(DECODING, plan),
        )

        def draw() -> EvalSample:
            outcome = Outcome.correct if rng.random() < skill else Outcome.wrong
            outcome = Outcome.no_answer if rng.random() < no_answer else outcome
            return EvalSample(text="#### 1", tokens=tokens, finished=rng.random() >= cut, outcome=outcome, answer="1")

        results = tuple(
            ItemResult(id=item.id, samples=tuple(draw() for _ in range(plan.samples)), prompt_tokens=9)
            for item in suite.items
        )
        return EvalArm(model=ModelRef(uri=f"models/{name}", digest=name * 8), protocol=protocol, results=results)

    def report(self, section: Evaluation, suite: Suite, champion: EvalArm, candidate: EvalArm) -> EvalReport:
        return self.report_over(section, (suite, champion, candidate))

    def report_over(self, section: Evaluation, *evidence: tuple[Suite, EvalArm, EvalArm]) -> EvalReport:
        """`evidence`: a suite with its two arms, champion first, for each suite of the section."""
        suites = tuple(SuiteEvidence(suite=suite, arms=(one, other)) for suite, one, other in evidence)
        return bundle.report(evidence_of(section, suites), BundleRef(uri="", digest="b"))

    def judge(self, section: Evaluation, suite: Suite, champion: EvalArm, candidate: EvalArm) -> GateVerdict:
        return gate.judge(self.report(section, suite, champion, candidate), section)


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture(scope="session")
def good(kit: Kit) -> tuple[Evaluation, Suite, EvalArm, EvalArm]:
    """Adequate evidence for a better candidate."""
    section = kit.section()
    suite = kit.suite(section)
    return section, suite, kit.arm("old", section, suite, 0.4), kit.arm("new", section, suite, 0.6)


@pytest.fixture
def with_sample() -> Callable[..., EvalArm]:
    """Returns an arm with fields of its first `count` items' first samples changed."""

    def change(arm: EvalArm, count: int = 1, **fields: object) -> EvalArm:
        changed = tuple(
            result.model_copy(update={"samples": (result.samples[0].model_copy(update=fields), *result.samples[1:])})
            if index < count
            else result
            for index, result in enumerate(arm.results)
        )
        return arm.model_copy(update={"results": changed})

    return change
