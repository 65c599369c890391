"""One pass of the loop without an orchestrator: `python examples/loop.py FOLDER [KEY=VALUE ...]`, from the repository.

Each call reads the records of the calls before, publishes its own below FOLDER, and does nothing where that exists:
kill the program anywhere, start it again, and it goes on. Dagster's assets make the same calls. Left out are judge,
reward model, fresh samples, MLflow and the rollout.
"""

import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from evals.evaluate import EvalServices, decide, evaluate, inference, publish_plan
from evals.freezing import held_apart
from evals.gate import GateVerdict
from evals.records import EvalPlan
from pipeline.core import layout
from pipeline.core.storage import Store, model_ref
from pipeline.demo.suite import ensure_suite
from pipeline.demo.traffic import ensure_days
from pipeline.recipe import load
from pipeline.recipe.pinning import pin
from pipeline.recipe.sources import DemoSource
from pipeline.recipe.suites import ItemsSuite
from pipeline.rewards.label import label_traces
from pipeline.rewards.verifiers import Grader
from pipeline.selection.preferences import build
from pipeline.serving.endpoint import ServingAddresses
from pipeline.serving.transformers_engine import sampler
from pipeline.traces.context import IterationContext, StageContext
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import materialize
from pipeline.traces.records import GovernedTraces
from pipeline.traces.scope import Producer, consented
from pipeline.traces.sources.protocol import Address
from pipeline.training.launch import train
from pipeline.training.plan import plan_training

RECIPE = Path(__file__).parent.parent / "jobs" / "recipes" / "embedded.yaml"


def main(folder: str, *overrides: str) -> GateVerdict | None:
    recipe = load(RECIPE, [f"data_root={folder}", *overrides])
    store, source, champion = Store(recipe.data_root), recipe.traces.source, model_ref(recipe.base_model.uri)
    assert isinstance(source, DemoSource), "a source of your own has an address here, and no traffic to make"

    # The embedded production: a small model answers simulated users, and its suite is a file of held-out problems.
    with sampler(print) as sample:
        ensure_days(store.path(layout.PRODUCTION), champion, source, sample, print)
    for suite in recipe.evaluation.suites:
        if isinstance(suite, ItemsSuite) and suite.embedded:
            ensure_suite(store, suite, recipe.evaluation.seed)

    # Traces -> the governed table, of which the newest days are the iteration's dataset.
    stage = StageContext(store, recipe, local_lake(store), print, "")
    address = Address(source, str(store.path(layout.PRODUCTION)))
    governed = materialize(stage, address, Producer(champion, recipe.base_model.name), 0, datetime.now(UTC))
    iteration = governed.iteration
    pin(store, iteration, recipe)
    store.once(iteration.path(layout.GOVERNED), GovernedTraces, lambda: governed)
    work = IterationContext(store, recipe, stage.lake, print, "", iteration)

    # Rewards: a null label where nothing can be said.
    labels = label_traces(work, None, frozenset({champion.digest}))
    print(f"{labels.labelled:,} of {labels.dataset.rows:,} traces labelled, mean reward {labels.mean_reward:.3f}")

    # Pairs, prompts and evidence; the method that the evidence allows, or "not now".
    def agreed() -> frozenset[tuple[str, str]]:
        return consented(store, work.lake, iteration.dataset)

    apart = held_apart(work, labels.dataset, datetime.now(UTC))
    preferences = build(work, labels.dataset, apart, agreed, labels.human_noise)
    plan = plan_training(work, preferences, agreed)
    print(f"method {plan.decision.method}: {'; '.join(plan.decision.reasons)}")

    # A trainer in a process of its own, which resumes to the bit.
    result = train(store, plan, recipe.training.timeout_s, print)
    if result is None or result.health.verdict == "STOP":
        return None

    # Both models on the same items, and a verdict with its evidence.
    asked = EvalPlan(
        iteration=iteration,
        section=recipe.evaluation,
        verifier=recipe.rewards.verifier,
        candidate=result.checkpoint,
        judge=recipe.gate_judge,
        lineage=(champion.digest,),
    )
    publish_plan(store, asked)
    with inference(store, asked.section, ServingAddresses(), print) as engine, closing(Grader(asked.verifier)) as check:
        report = evaluate(store, asked, EvalServices(engine, check), print)
    return decide(work, report)


if __name__ == "__main__":
    verdict = main(*sys.argv[1:])
    print("nothing was trained" if verdict is None else f"{verdict.verdict}: {'; '.join(verdict.reasons)}")
