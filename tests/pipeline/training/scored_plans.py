"""A plan of GRPO over prompts without references, as selection leaves it, with scorers of a test's choice."""

import random
from pathlib import Path
from typing import Any

from pipeline.core import layout
from pipeline.core.estimate import UNKNOWN
from pipeline.core.iteration import identify
from pipeline.core.storage import Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import problems
from pipeline.recipe import Checkpoints, Compute, Rewards, Selection, Training, Validation
from pipeline.recipe.methods import GRPO
from pipeline.recipe.rewards import Judge
from pipeline.rewards.judge import Admission
from pipeline.rewards.judge.session import judge_id
from pipeline.rewards.reward_model.records import RewardModelReport, Thumb
from pipeline.selection.evidence import measure
from pipeline.selection.tables import PROMPTS
from pipeline.training.plan import TrainingPlan, plan_training
from tests.contexts import KEYS, context_of
from tests.pipeline.rewards.reward_model.conftest import trained
from tests.pipeline.training.plans import dataset_of, table

SETTINGS = GRPO(steps=4, prompts_per_step=4, num_generations=4, max_completion_tokens=32, learning_rate=1e-3)
ASKED = Validation(every_steps=2, prompts=8, samples=1, max_completion_tokens=32)
ADMITTED = Admission(id="", attacks=10)


def make_scored_plan(
    root: Path, rewards: Rewards, report: RewardModelReport | None = None, held_out: bool = True, **training: Any
) -> tuple[Store, TrainingPlan]:
    """The judge, where `rewards` has one, was admitted before. `report`: of the iteration's reward model."""
    store = Store(root)
    rows: list[dict[str, Any]] = [
        {"prompt": [{"role": "user", "content": p.prompt}], "attempts": 0, "frontier": False, "trace_ids": [p.prompt]}
        for p in problems(3, "train", 48)
    ]
    prompts = table(store, "prompts", rows, PROMPTS)
    unverified = table(store, "unverified", rows if held_out else [], PROMPTS)
    iteration, selection = identify(0, "m", model_ref(MODEL_DIR), prompts, ""), Selection(method="grpo")
    if report is not None:
        store.write(iteration.path(layout.REWARD_MODEL), report.model_copy(update={"iteration": iteration.id}))
    if rewards.judge is not None:
        store.write(f"{layout.JUDGES}/{judge_id(rewards.judge)}/earlier.json", ADMITTED)
    evidence = measure([], [], UNKNOWN, selection).model_copy(update={"scored_prompts": len(rows)})
    dataset = dataset_of(store, iteration, evidence, prompts=prompts, held_out_unverified=unverified)
    given: dict[str, Any] = {
        "grpo": SETTINGS,
        "validation": ASKED,
        "checkpoints": Checkpoints(every_steps=2),
    } | training
    sections: dict[str, Any] = {"rewards": rewards, "compute": Compute(), "selection": selection}
    context = context_of(store, iteration, training=Training(**given), **sections)
    agreed = frozenset((row["trace_ids"][0], "") for row in rows)
    return store, plan_training(context, dataset, lambda: agreed)


def rubric(timeout_s: float = 20, **changes: Any) -> Judge:
    return Judge(model="examiner-7b", digest="sha256:0f", attempts=1, timeout_s=timeout_s, **changes)


def loves(phrase: str, root: Path) -> RewardModelReport:
    """A reward model of users who press thumb up where the answer holds the phrase, and down elsewhere."""
    chance = random.Random(0)
    drawn = list(problems(5, "train", 4000))
    up = [p for p in drawn if phrase in p.solution][:300]
    down = [p for p in drawn if phrase not in p.solution][:300]
    both = [(p, True) for p in up] + [(p, False) for p in down]
    chance.shuffle(both)
    rows = [
        Thumb(
            f"t{n:05d}",
            "o",
            f"user-{n % 60:04d}",
            f'[{{"role": "user", "content": "{p.prompt}"}}]',
            p.solution,
            0.75 if liked else 0.25,
        )
        for n, (p, liked) in enumerate(both)
    ]
    probe = {"kind": "append", "name": "insult", "text": "You fool!"}
    report = trained(Store(root, KEYS), rows, probes=(probe,), min_probe=0.0)
    assert report.model is not None, report.reason
    return report.model_copy(update={"admitted": True, "reasons": ()})
