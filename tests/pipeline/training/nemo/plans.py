"""Plans over a few problems of the demo task, for NeMo RL."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.core.estimate import UNKNOWN
from pipeline.core.storage import DatasetRef, digest_file, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import problems
from pipeline.recipe import Checkpoints, Distribution, Lora, Rewards, Selection, Training, Validation
from pipeline.recipe.methods import GRPO
from pipeline.recipe.rewards import Weights
from pipeline.selection.choose import choose
from pipeline.selection.evidence import measure
from pipeline.selection.pairing import by_prompt
from pipeline.selection.pairing import pairs as paired
from pipeline.selection.tables import PROMPTS, table_of
from pipeline.training.plan import TrainingPlan
from tests.pipeline.selection.labelled import row

GRPO_SETTINGS = GRPO(
    steps=6, prompts_per_step=4, num_generations=4, max_completion_tokens=32, generation="vllm_colocate"
)
CORRECT = Weights(correct=1.0)
SECTIONS = {
    "grpo": GRPO_SETTINGS,
    "lora": Lora(r=4),
    "distribution": Distribution(),
    "validation": Validation(every_steps=2, max_completion_tokens=32),
    "checkpoints": Checkpoints(every_steps=2),
}


def make_plan(
    root: Path, *, rows: list[dict[str, Any]] | None = None, rewards: Rewards | None = None, nodes: int = 1,
    processes: int = 1, **sections: Any,
) -> TrainingPlan:  # fmt: skip
    """A plan with held-out prompts, whose files lie in `root`. `sections`: of Training."""
    root.mkdir(parents=True, exist_ok=True)
    evidence_rows = [row(f"{p.answer}-{reward}", reward, p.prompt) for p in drawn(8) for reward in (0.0, 1.0)]
    selection = Selection(method="grpo")
    evidence = measure(evidence_rows, paired(by_prompt(evidence_rows), selection), UNKNOWN, selection)
    training = Training.model_validate({**SECTIONS, "engine": "nemo_rl", **sections})
    return TrainingPlan(
        iteration="a",
        decision=choose(evidence, selection, 0.0),
        base=model_ref(MODEL_DIR),
        data=table(root / "data.parquet", rows or prompts(24)),
        held_out=table(root / "held_out.parquet", prompts(6)),
        without_consent=0,
        method=training.grpo,
        training=training.without_methods(),
        rewards=rewards or Rewards(verified=CORRECT),
        nodes=nodes,
        processes=processes,
        peak_tflops=312.0,
    )


def drawn(count: int) -> list[Any]:
    return problems(3, "train", count)


def prompts(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": [{"role": "user", "content": p.prompt}], "reference": p.answer, "verifier": "math"}
        for p in drawn(count)
    ]


def table(path: Path, rows: list[dict[str, Any]]) -> DatasetRef:
    pq.write_table(table_of(rows, PROMPTS), path)
    return DatasetRef(uri=str(path), rows=len(rows), digest=digest_file(path))
