"""The trainer as a process: plan in, result out, exit codes, and the same bits after an interruption."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.demo import MODEL_DIR
from pipeline.demo.task import mistaken_solution, problems
from pipeline.iteration import identify
from pipeline.recipe import DPO, GRPO, Rewards, Selection, Training
from pipeline.selection.contamination import Index
from pipeline.selection.evidence import Trust, measure
from pipeline.selection.pairing import pairs as paired
from pipeline.selection.preferences import PAIRS, PROMPTS, PreferenceDataset
from pipeline.selection.rows import by_prompt
from pipeline.storage import DatasetRef, Store, digest_file, model_ref
from pipeline.training.launch import TrainingRefused, train
from pipeline.training.plan import TrainingPlan, TrainingResult, plan_training
from tests.pipeline.selection.labelled import row

GRPO_SETTINGS = GRPO(steps=6, prompts_per_step=4, num_generations=4, max_completion_tokens=32, learning_rate=1e-3)
DPO_SETTINGS = DPO(steps=6, batch_size=8, learning_rate=3e-4, beta=0.3)


def make_plan(root: Path, method: str = "grpo", withdrawn: int = 0, **changes: Any) -> tuple[Store, TrainingPlan]:
    """A plan over a few problems of the demo task, as the selection stage would leave it."""
    store = Store(root)
    drawn = problems(3, "train", 48)
    user = [[{"role": "user", "content": p.prompt}] for p in drawn]
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
    refs = {name: table(store, name, rows, schema) for name, rows, schema in
            (("prompts", prompts, PROMPTS), ("pairs", pairs, PAIRS))}  # fmt: skip
    iteration, selection = identify(0, "m", model_ref(MODEL_DIR), refs["prompts"], ""), Selection(method=method)
    rows = [row(f"{p.answer}-{reward}", reward, p.prompt) for p in drawn for reward in (0.0, 1.0)]
    dataset = PreferenceDataset(
        iteration=iteration.id,
        **refs,
        groups=refs["pairs"],
        held_out_pairs=refs["pairs"],
        held_out_prompts=refs["prompts"],
        evidence=measure(rows, paired(by_prompt(rows), selection), Trust(), selection),
        contamination=Index({}).check(rows)[1],
        without_consent=0,
        capped_pairs=0,
        curriculum={"frontier": 48},
        clusters=48,
        held_out_clusters=0,
    )
    settings = Training(grpo=GRPO_SETTINGS, dpo=DPO_SETTINGS, checkpoint_every_steps=2, **changes)
    agreed = frozenset((p.prompt, "") for p in drawn[withdrawn:])
    rewards = Rewards(min_coverage=0)
    return store, plan_training(store, iteration, dataset, selection, settings, rewards, {}, lambda: agreed)


def table(store: Store, name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> DatasetRef:
    path = store.path(f"{name}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return DatasetRef(uri=str(path), rows=len(rows), digest=digest_file(path))


@pytest.mark.parametrize("method", ["grpo", "dpo"])
def test_consent_that_was_withdrawn_since_the_selection_leaves_its_rows_out(tmp_path: Path, method: str) -> None:
    _, plan = make_plan(tmp_path, method, withdrawn=8)
    assert plan.without_consent == 8 and plan.data is not None
    asked = {row["prompt"][0]["content"] for row in pq.read_table(plan.data.uri).to_pylist()}
    assert asked.isdisjoint(p.prompt for p in problems(3, "train", 48)[:8])
    with pytest.raises(ValueError, match="Consent to all 48 rows was withdrawn"):
        make_plan(tmp_path / "nobody", method, withdrawn=48)


def folder(store: Store, plan: TrainingPlan) -> Path:
    return store.path("iterations", plan.iteration, "training")


def adapter(store: Store, plan: TrainingPlan) -> str:
    return digest_file(folder(store, plan) / "adapter" / "adapter_model.safetensors")


def interrupt(store: Store, plan: TrainingPlan, at: str, number: signal.Signals) -> int:
    """Run the trainer and send it a signal when it says `at`; returns its exit code."""
    command = [sys.executable, "-m", "pipeline.training", str(folder(store, plan) / "plan.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if at in line:
                process.send_signal(number)
        return process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "dpo"])
def test_interrupted_training_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    said: list[str] = []
    whole, plan = make_plan(tmp_path / "whole", method)
    first = train(whole, plan, 600, said.append)
    assert first is not None
    assert [m["step"] for m in first.metrics] == [1, 2, 3, 4, 5, 6]
    broken, same = make_plan(tmp_path / "broken", method)
    assert same.digest() == plan.digest()
    assert interrupt(broken, same, "step 3/6", signal.SIGTERM) == 143
    assert interrupt(broken, same, "step 5/6", signal.SIGKILL) == -signal.SIGKILL
    second = train(broken, same, 600, said.append)
    assert second is not None
    assert second.attempts == 3
    assert any("resuming at step-" in line for line in said)
    assert adapter(broken, same) == adapter(whole, plan)
    assert second.checkpoint.model.digest == first.checkpoint.model.digest
    assert train(broken, same, 600, said.append) == second  # a finished training is not run again
    assert not (folder(broken, same) / "staging").exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"data": {"digest": "0" * 64}}, "changed since the plan was made"),
        ({"base": {"digest": "0" * 64}}, "changed since the plan was made"),
        ({"surprise": 1}, "Extra inputs are not permitted"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_never_retried(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    store, plan = make_plan(tmp_path)
    path = folder(store, plan) / "plan.json"
    tree = json.loads(path.read_text())
    for key, value in changes.items():
        tree[key] = {**tree.get(key, {}), **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(tree))
    with pytest.raises(TrainingRefused, match=complaint):
        train(store, plan, 600, print)
    assert store.read(f"iterations/{plan.iteration}/training/result.json", TrainingResult) is None


@pytest.mark.slow
def test_what_trl_does_not_take_is_refused_before_a_weight_is_loaded(tmp_path: Path) -> None:
    wrong = GRPO_SETTINGS.model_copy(update={"trainer_args": {"learning_rat": 1.0}})
    store, plan = make_plan(tmp_path)
    path = folder(store, plan) / "plan.json"
    path.write_text(plan.model_copy(update={"algorithm": wrong}).model_dump_json())
    with pytest.raises(TrainingRefused, match="learning_rat"):
        train(store, plan, 600, print)


@pytest.mark.slow
def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    store, plan = make_plan(tmp_path)
    bare = tmp_path / "bare"
    shutil.copytree(MODEL_DIR, bare)
    (bare / "chat_template.jinja").unlink()
    path = folder(store, plan) / "plan.json"
    path.write_text(plan.model_copy(update={"base": model_ref(bare)}).model_dump_json())
    with pytest.raises(TrainingRefused, match="no chat template"):
        train(store, plan, 600, print)
