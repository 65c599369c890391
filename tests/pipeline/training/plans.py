"""A training plan over a few problems of the demo task, as the selection stage would leave it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.estimate import UNKNOWN
from pipeline.core.iteration import Iteration, identify
from pipeline.core.storage import DatasetRef, Store, digest_file, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import mistaken_solution, problems
from pipeline.recipe import Checkpoints, Compute, Rewards, Selection, Training
from pipeline.recipe.methods import DPO, GRPO, KTO, SFT
from pipeline.selection.contamination import Index
from pipeline.selection.evidence import Evidence, measure
from pipeline.selection.pairing import by_prompt
from pipeline.selection.pairing import pairs as paired
from pipeline.selection.preferences import PreferenceDataset
from pipeline.selection.tables import PAIRS, PROMPTS, THUMBS, WINNERS, table_of
from pipeline.selection.unpaired import thumbs
from pipeline.training.plan import TrainingPlan, plan_training
from tests.contexts import context_of
from tests.pipeline.core.tool_templates import OFFERED, calls
from tests.pipeline.core.tool_templates import answer as answer_by_call
from tests.pipeline.selection.labelled import row

GRPO_SETTINGS = GRPO(steps=6, prompts_per_step=4, num_generations=4, max_completion_tokens=32, learning_rate=1e-3)
DPO_SETTINGS = DPO(steps=6, batch_size=8, learning_rate=3e-4, beta=0.3)
KTO_SETTINGS = KTO(steps=6, batch_size=8, learning_rate=1e-4, kl_stop=None)
THUMBS_DOWN = 30
"""Problems whose mistaken answer has a thumb down; the right answer of each has one up."""
SFT_SETTINGS = SFT(steps=6, batch_size=8, learning_rate=1e-3)
REWARDS = Rewards(min_coverage=0)


def make_plan(
    root: Path,
    method: str = "grpo",
    withdrawn: int = 0,
    processes: int = 1,
    answer: str = "",
    rewards: Rewards = REWARDS,
    metadata: str = "{}",
    base: Path = MODEL_DIR,
    tools: bool = False,
    system: str = "",
    **changes: Any,
) -> tuple[Store, TrainingPlan]:
    """A plan over a few problems of the demo task, as the selection stage would leave it. `answer`: that all of them
    have, so that it is soon learned. `metadata`: of the traces of odd answers. `tools`: a tool is offered, every other
    prompt holds a call with its result, and the others are answered by a call. `system`: the message before each
    question; empty: none."""
    store = Store(root)
    drawn = problems(3, "train", 48)
    if answer:
        drawn = [problem for problem in problems(3, "train", 8000) if problem.answer == answer][:48]
    before = [{"role": "system", "content": system}] if system else []
    user = [[*before, {"role": "user", "content": p.prompt}] for p in drawn]
    prompts = [
        {"prompt": chat, "reference": p.answer, "verifier": "math", "frontier": True, "trace_ids": [p.prompt]}
        for chat, p in zip(user, drawn, strict=True)
    ]
    pairs = [
        {
            "prompt": chat,
            "chosen": [{"role": "assistant", "content": p.solution}],
            "rejected": [{"role": "assistant", "content": mistaken_solution(p)}],
            "chosen_trace": p.prompt,
            "rejected_trace": p.prompt,
        }
        for chat, p in zip(user, drawn, strict=True)
    ]
    rated = [
        {"prompt": chat, "completion": text, "label": liked, "trace_id": p.prompt}
        for number, (chat, p) in enumerate(zip(user, drawn, strict=True))
        for text, liked in ((p.solution, True), (mistaken_solution(p), False))[: 1 + (number < THUMBS_DOWN)]
    ]
    best = [
        {"prompt": chat, "completion": p.solution, "score": 1.0, "trace_ids": [p.prompt]}
        for chat, p in zip(user, drawn, strict=True)
    ]
    if tools:
        for rows in (prompts, pairs, rated, best):
            rows[:] = [with_calls(each, number) for number, each in enumerate(rows)]
    refs = {name: table(store, name, rows, schema) for name, rows, schema in
            (("prompts", prompts, PROMPTS), ("pairs", pairs, PAIRS), ("thumbs", rated, THUMBS),
             ("winners", best, WINNERS))}  # fmt: skip
    iteration, selection = identify(0, "m", model_ref(base), refs["prompts"], ""), Selection(method=method)
    rows = [row(f"{p.answer}-{reward}", reward, p.prompt, feedback=reward) for p in drawn for reward in (0.0, 1.0)]
    groups = by_prompt(rows)
    evidence = measure(rows, paired(groups, selection), UNKNOWN, selection, thumbs(groups, selection))
    evidence = evidence.model_copy(update={"winners": len(best)})
    dataset = dataset_of(store, iteration, evidence, **refs, held_out_prompts=refs["prompts"])
    methods = {"grpo": GRPO_SETTINGS, "dpo": DPO_SETTINGS, "kto": KTO_SETTINGS, "sft": SFT_SETTINGS}
    training = {**methods, "checkpoints": Checkpoints(every_steps=2), **changes}
    settings = Training(**training)
    agreed = frozenset((p.prompt, "") for p in drawn[withdrawn:])
    sections = {"rewards": rewards, "compute": Compute(processes=processes)}
    context = context_of(store, iteration, selection=selection, training=settings, **sections)
    odd = {(p.prompt, json.dumps(chat)): metadata for chat, p in zip(user, drawn, strict=True) if int(p.answer) % 2}
    return store, plan_training(context, dataset, lambda: agreed, lambda trace_ids: odd)


def dataset_of(store: Store, iteration: Iteration, evidence: Evidence, **tables: DatasetRef) -> PreferenceDataset:
    """As the selection stage leaves it; tables that are not given are empty."""
    names = ("pairs", "prompts", "held_out_prompts")
    return PreferenceDataset(
        iteration=iteration.id,
        **{**dict.fromkeys(names, table(store, "none", [], PAIRS)), **tables},
        evidence=evidence,
        contamination=Index({}).check([])[1],
        without_consent=0,
    )


def with_calls(row: dict[str, Any], number: int) -> dict[str, Any]:
    """A row of a table whose prompt offers a tool, and holds a call with its result or is answered by one."""
    (question,) = row["prompt"]
    arguments = {"sum": question["content"]}
    if number % 2:
        called = {"role": "assistant", "content": "", "tool_calls": calls(("add", arguments))}
        result = {"role": "tool", "content": "7", "tool_call_id": "c0", "name": "add"}
        return {**row, "prompt": [OFFERED, question, called, result]}
    right, wrong = answer_by_call("add", arguments), answer_by_call("take", {"n": 1})
    changed: dict[str, Any] = {"prompt": [OFFERED, question]}
    if "reference" in row:
        changed |= {"reference": json.dumps({"name": "add", "arguments": arguments}), "verifier": "calls"}
    if "chosen" in row:
        sides = (("chosen", right), ("rejected", wrong))
        changed |= {side: [{"role": "assistant", "content": text}] for side, text in sides}
    if "completion" in row:
        changed["completion"] = right if row.get("label", True) else wrong
    return {**row, **changed}


def table(store: Store, name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> DatasetRef:
    path = store.path(f"{name}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table_of(rows, schema), path)
    return DatasetRef(uri=str(path), rows=len(rows), digest=digest_file(path))


def folder(store: Store, plan: TrainingPlan) -> Path:
    return store.path("iterations", plan.iteration, "training")


def adapter(store: Store, plan: TrainingPlan) -> str:
    return digest_file(folder(store, plan) / "adapter" / "adapter_model.safetensors")
