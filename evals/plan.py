"""The evaluation plan: all that an evaluation needs to know, so that it runs in any process, on any machine."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import CheckpointRef, Record, Store, digest_json
from pipeline.recipe import Evaluation
from pipeline.recipe.rewards import Judge, Verifier
from pipeline.recipe.section import Operational, settings
from pipeline.serving.endpoint import ServingAddresses
from pipeline.serving.engines import open_engine
from pipeline.serving.inference import InferenceEngine


class EvalPlan(Record):
    """One evaluation of one candidate against the champion of its iteration."""

    iteration: Iteration
    section: Evaluation
    verifier: Verifier
    candidate: CheckpointRef
    judge: Judge | None = None
    """Of the suites that are judged; None where the recipe names none."""
    lineage: tuple[str, ...] = ()
    """Digests of what the champion came from: with both models', none of them may judge."""

    def path(self, *parts: str) -> str:
        """Name of something that the evaluation publishes, relative to the store's root."""
        return self.iteration.path(*parts)

    def digest(self) -> str:
        """sha256 of what decides the evidence: not where the models lie, nor how fast they are asked."""
        judge = settings(self.judge, Operational) if self.judge is not None else None
        asked = settings(self.section, Operational), settings(self.verifier, Operational), judge
        candidate = self.candidate.model.digest, self.candidate.adapter.digest
        return digest_json([self.iteration.id, self.iteration.champion.digest, *candidate, *asked])

    def models(self) -> frozenset[str]:
        """Digests of both models and of what they came from."""
        candidate = self.candidate.model.digest, self.candidate.adapter.digest
        return frozenset({*self.lineage, self.iteration.champion.digest, *candidate})


def inference(
    store: Store, plan: EvalPlan, addresses: ServingAddresses, log: Callable[[str], None]
) -> AbstractContextManager[InferenceEngine]:
    """What answers this evaluation's questions; what it started ends with the block."""
    return open_engine(plan.section.serving, addresses, log, store.path(layout.SERVING))


def publish_plan(store: Store, plan: EvalPlan) -> str:
    """Write the plan where `python -m evals run` reads it; its name below the root. The one that stands is replaced:
    where and how it runs may have changed."""
    name = plan.path(layout.EVAL_PLAN)
    store.write(name, plan)
    return name
