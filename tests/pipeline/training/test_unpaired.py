"""Training on answers that nothing is compared with: from labelled traces with feedback to a candidate, and the limits
that KTO and SFT are held to."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, Store, digest_json, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import Problem, mistaken_solution, problems
from pipeline.recipe import Selection, Training, Validation
from pipeline.recipe.methods import KTO, METHODS
from pipeline.rewards.label import label_traces
from pipeline.selection.consent import consented
from pipeline.selection.evidence import Trust
from pipeline.selection.preferences import PreferenceDataset, build
from pipeline.selection.trainable import HeldApart
from pipeline.selection.winners import WINNERS
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import local_lake, open_lake
from pipeline.traces.lake.files import write_files
from pipeline.traces.records import Window
from pipeline.traces.rows import SCHEMA
from pipeline.training.launch import train
from pipeline.training.plan import TrainingPlan, plan_training
from pipeline.training.result import NEVER_RETRY
from pipeline.training.schedule import SCHEMAS
from tests.contexts import context_of
from tests.fork_server import ForkServer, result_of
from tests.pipeline.training.plans import DPO_SETTINGS, KTO_SETTINGS, SFT_SETTINGS, THUMBS_DOWN, folder, make_plan

DAY = "2026-01-05"
ASKED = Validation(every_steps=2, prompts=8, samples=1, max_completion_tokens=32)
USERS = 40


def governed(problem: Problem, number: int) -> dict[str, Any]:
    """A row without a reference. Who got a mistake says so; every fifth contradicts himself, every seventh is mute."""
    right = number % 3 > 0
    thumbs = [("thumb", right), *([("again", not right)] if number % 5 == 0 else [])][: 0 if number % 7 == 0 else 2]
    return {
        "trace_id": f"trace-{number}",
        "observation_id": f"o-{number}",
        "timestamp": datetime.combine(date.fromisoformat(DAY), datetime.min.time(), UTC) + timedelta(minutes=number),
        "day": date.fromisoformat(DAY),
        "model": "m",
        "consent": True,
        "user_id": f"user-{number % USERS}",
        "session_id": f"session-{number}",
        "messages": [{"role": "user", "content": problem.prompt, "tool_calls": None}],
        "completion": problem.solution if right else mistaken_solution(problem),
        "feedback": [{"name": name, "value": float(liked), "source": "API"} for name, liked in thumbs],
        "feedback_count": len(thumbs),
        "reference": None,
        "metadata": "{}",
        "source_file": "a.jsonl.gz",
    }


def deployment(root: Path, settings: KTO, method: str = "kto") -> tuple[IterationContext, PreferenceDataset]:
    """Real labels of governed traces with feedback, and the preference dataset of them."""
    store = Store(root)
    lake = local_lake(store)
    rows = [governed(problem, number) for number, problem in enumerate(problems(3, "train", 240))]
    with open_lake(lake) as table:
        table.replace_day(
            DAY, write_files(lake, DAY, "part", [pa.RecordBatch.from_pylist(rows, schema=SCHEMA)]), "digest"
        )
        window = Window(days=(DAY,), uri=table.uri, rows=len(rows), digest=digest_json(DAY), snapshot=table.snapshot)
    store.write(f"traces/datasets/{window.digest}.json", window)
    dataset = DatasetRef(uri=window.uri, rows=window.rows, digest=window.digest, snapshot=window.snapshot)
    context = context_of(
        store,
        identify(0, "m", model_ref(MODEL_DIR), dataset, "recipe"),
        selection=Selection(method=method, max_principal_share=0.05, held_out_share=0.1, min_thumbs=100),  # pyright: ignore[reportArgumentType]
        training=Training(kto=settings, validation=ASKED),
    )
    labels = label_traces(context, None, ())
    return context, build(context, labels.dataset, HeldApart({}), agreed_in(context), Trust())


def agreed_in(context: IterationContext) -> Any:
    return partial(consented, context.store, context.lake, context.iteration.dataset)


@pytest.mark.slow
@pytest.mark.usefixtures("forking")
def test_thumbs_of_labelled_traces_end_in_a_candidate(tmp_path: Path) -> None:
    context, dataset = deployment(tmp_path, KTO_SETTINGS.model_copy(update={"kl_stop": 5.0}))
    evidence = dataset.evidence
    assert dataset.prompts.rows == dataset.pairs.rows == dataset.held_out_prompts.rows == 0
    assert dataset.thumbs is not None and dataset.held_out_unverified is not None
    assert 100 < evidence.thumbs == dataset.thumbs.rows < 240 and evidence.rarer_thumb.value is not None
    contradicted = {f"trace-{number}" for number in range(240) if number % 5 == 0}
    found = pq.read_table(dataset.thumbs.uri).to_pylist()
    assert contradicted.isdisjoint(row["trace_id"] for row in found)
    assert all(row["label"] == (int(row["trace_id"].removeprefix("trace-")) % 3 > 0) for row in found)
    plan = plan_training(context, dataset, {}, agreed_in(context))
    assert (plan.decision.method, plan.decision.forced) == ("kto", True)
    (lacked,) = plan.decision.lacks["kto"]
    assert lacked.startswith("AUC on the thumbs of unseen users unknown"), (
        "no reward model says that they mean anything"
    )
    result = train(context.store, plan, 600, print)
    assert result is not None and result.checkpoint.step == 6
    assert result.checkpoint.model != plan.base and Path(result.checkpoint.model.uri).is_dir()
    last = result.metrics[-1]
    assert 0 <= last["held_out/answer_kl"] < 5 and "held_out/accuracy" not in last
    assert {"tokens_per_s", "reference_point", "rewards/margins"} <= last.keys() and "kl" not in last


@pytest.mark.variant
@pytest.mark.slow
def test_a_policy_far_from_its_base_is_stopped(tmp_path: Path, fork_server: ForkServer) -> None:
    wild = KTO_SETTINGS.model_copy(update={"steps": 12, "learning_rate": 1e-2, "beta": 0.01, "kl_stop": 0.5})
    store, plan = make_plan(tmp_path, "kto", kto=wild, validation=ASKED)
    path = folder(store, plan) / "plan.json"
    assert fork_server.attempt(path).code == 0, fork_server.said()
    result = result_of(path)
    stopped = next(finding for finding in result.health.findings if finding.rule == "answer_kl")
    assert stopped.step < 12 and "kl_stop is 0.5" in stopped.reason
    kl = {row["step"]: row["held_out/answer_kl"] for row in result.metrics if "held_out/answer_kl" in row}
    assert kl[stopped.step] > 0.5 and kl[result.checkpoint.step] <= 0.5, "what stands is within the limit"
    right = {row["step"]: row["held_out/accuracy"] for row in result.metrics if "held_out/accuracy" in row}
    better = max(value for step, value in right.items() if 0 < step < stopped.step) > right[0]
    assert (result.health.verdict == "STOP") == (not better), "a checkpoint that beat the start is a candidate"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {},
            r"measured when held-out prompts are answered: set training\.validation\.every_steps",
        ),
        ({"validation": ASKED, "engine": "nemo_rl"}, r"measured by TRL's trainers alone: set training\.engine trl"),
    ],
)
def test_a_limit_that_nothing_measures_is_refused(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"training\.kto\.kl_stop 5 is {complaint}"):
        make_plan(tmp_path, "kto", kto=KTO_SETTINGS.model_copy(update={"kl_stop": 5.0}), **changes)


def test_sft_of_all_weights_has_no_limit_on_kl(tmp_path: Path) -> None:
    limited = SFT_SETTINGS.model_copy(update={"kl_stop": 5.0})
    with pytest.raises(
        ValueError, match=r"training\.sft\.kl_stop 5 is measured against the base model.*training\.lora"
    ):
        make_plan(tmp_path, "sft", sft=limited, validation=ASKED, lora=None)
    assert make_plan(tmp_path / "kto", "kto", validation=ASKED, lora=None)[1].data is not None


def test_dpo_may_have_a_limit_on_kl(tmp_path: Path) -> None:
    limited = DPO_SETTINGS.model_copy(update={"kl_stop": 5.0})
    with pytest.raises(ValueError, match=r"training\.dpo\.kl_stop 5 is measured when held-out prompts are answered"):
        make_plan(tmp_path, "dpo", dpo=limited)
    assert make_plan(tmp_path / "watched", "dpo", dpo=limited, validation=ASKED)[1].answer_kl_stop == 5.0
    assert make_plan(tmp_path / "checked")[1].answer_kl_stop is None, "GRPO's own limit is of unchecked rewards"


@pytest.mark.parametrize("method", METHODS)
def test_rows_have_the_columns_of_their_table(method: str, tmp_path: Path) -> None:
    _, plan = make_plan(tmp_path, method)
    assert plan.data is not None and plan.data.rows == plan.trained_by().scheduled_rows
    table = pq.read_table(plan.data.uri)
    assert table.schema.names == SCHEMAS[plan.trained_by().table].names
    prompts = [json.dumps(each) for each in table["prompt"].to_pylist()]
    assert prompts[: len(set(prompts))] != sorted(prompts)[: len(set(prompts))], "they are in an order of their own"


def test_consent_withdrawn_from_one_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"thumbs of both kinds, and these are 18 up and 0 down"):
        make_plan(tmp_path, "kto", withdrawn=THUMBS_DOWN)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["kto", "sft"])
def test_prompts_longer_than_max_tokens_are_refused(method: str, tmp_path: Path, fork_server: ForkServer) -> None:
    settings = {"kto": KTO_SETTINGS, "sft": SFT_SETTINGS}[method].model_copy(update={"max_tokens": 16})
    store, plan = make_plan(tmp_path, method, **{method: settings})
    assert fork_server.attempt(folder(store, plan) / "plan.json").code == NEVER_RETRY, fork_server.said()
    assert "tokens of max_tokens, or of the model's context" in fork_server.said()


@pytest.mark.variant
@pytest.mark.slow
def test_sft_learns_what_won(tmp_path: Path, fork_server: ForkServer) -> None:
    settings = SFT_SETTINGS.model_copy(update={"steps": 20, "learning_rate": 3e-3})
    store, plan = make_plan(tmp_path, "sft", sft=settings, validation=ASKED)
    path = folder(store, plan) / "plan.json"
    assert fork_server.attempt(path).code == 0, fork_server.said()
    rows = [row for row in result_of(path).metrics if "loss" in row]
    assert rows[-1]["loss"] < rows[0]["loss"] and rows[-1]["mean_token_accuracy"] >= rows[0]["mean_token_accuracy"]
    assert WINNERS.names[:2] == list(METHODS["sft"].columns)


def test_an_older_dataset_can_still_be_planned_with(tmp_path: Path) -> None:
    """Records from before these tables name none of them."""
    store, plan = make_plan(tmp_path)
    held: dict[str, Any] = json.loads(plan.decision.model_dump_json())
    for name in ("thumbs", "thumb_users", "rarer_thumb", "contrasted_thumbs", "winners"):
        del held["evidence"][name]
    for name in ("min_thumbs", "min_rarer_thumb", "min_winners"):
        del held["thresholds"][name]
    old = TrainingPlan.model_validate_json(
        json.dumps({**json.loads(plan.model_dump_json()), "decision": held}), context=None
    )
    assert old.decision.evidence.thumbs == 0 and old.digest() == plan.digest()
    assert store.root == tmp_path
