"""GRPO over recorded tools: real trainings of the desk's model, what is refused, and a resume to the bit."""

import json
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.iteration import identify
from pipeline.core.storage import Store, model_ref
from pipeline.demo.desk import MODEL_DIR
from pipeline.demo.desk.conversation import Turn, begin
from pipeline.demo.desk.requests import result_message
from pipeline.recipe import Checkpoints, Compute, Rewards, Selection, Training
from pipeline.recipe.methods import GRPO
from pipeline.recipe.training import RecordedTools
from pipeline.selection.evidence import Trust, measure
from pipeline.selection.pairing import by_prompt
from pipeline.selection.pairing import pairs as paired
from pipeline.selection.tables import PROMPTS
from pipeline.traces.recorded_calls import Call, conversation_key
from pipeline.training.plan import TrainingPlan, plan_training
from pipeline.training.schedule import recorded_by_prompt
from tests.contexts import context_of
from tests.fork_server import ForkServer, adapter_of, result_of, survive
from tests.pipeline.selection.labelled import row
from tests.pipeline.training.plans import dataset_of, folder, table
from tests.variants import one_and_variants

SETTINGS = GRPO(steps=4, prompts_per_step=4, num_generations=4, max_completion_tokens=48, learning_rate=1e-3)
TOOLS = RecordedTools(max_tokens=200)
Results = Mapping[str, Mapping[Call, str]]


def turns() -> list[Turn]:
    rng = random.Random(0)
    return list({str(turn.messages): turn for turn in [begin(rng, "train", tool=True) for _ in range(24)]}.values())


def result_of_turn(turn: Turn) -> dict[Call, str]:
    result = result_message(turn.request.rows, turn.request.order, "")
    return {Call("lookup_order", json.dumps({"order": turn.request.order})): result["content"]}


def recorded(prompts: Collection[str], agreed: Collection[str]) -> Results:
    """As the traces would have it."""
    held = {conversation_key(turn.conversation): result_of_turn(turn) for turn in turns()}
    return {key: results for key, results in held.items() if key in prompts}


def make_tool_plan(root: Path, results: Any = recorded, **training: Any) -> tuple[Store, TrainingPlan]:
    """Prompts whose facts have to be looked up; an answer is right that names the value."""
    store, asked = Store(root), turns()
    rows = [
        {
            "prompt": turn.conversation,
            "reference": turn.request.fact.value,
            "verifier": "contains",
            "frontier": True,
            "trace_ids": [str(place)],
        }
        for place, turn in enumerate(asked)
    ]
    prompts = table(store, "prompts", rows, PROMPTS)
    iteration, selection = identify(0, "m", model_ref(MODEL_DIR), prompts, ""), Selection(method="grpo")
    labelled = [row(f"{place}-{reward}", reward, str(place)) for place in range(len(rows)) for reward in (0.0, 1.0)]
    evidence = measure(labelled, paired(by_prompt(labelled), selection), Trust(), selection)
    dataset = dataset_of(store, iteration, evidence, prompts=prompts, held_out_prompts=prompts)
    given: dict[str, Any] = {
        "grpo": SETTINGS,
        "tools": TOOLS,
        "checkpoints": Checkpoints(every_steps=2, keep_best=0),
        **training,
    }
    sections = {"rewards": Rewards(min_coverage=0), "compute": Compute(), "selection": selection}
    context = context_of(store, iteration, training=Training(**given), **sections)
    agreed = frozenset((str(place), "") for place in range(len(rows)))
    return store, plan_training(context, dataset, {}, lambda: agreed, recorded=results)


def test_a_plan_holds_the_results_of_its_prompts(tmp_path: Path) -> None:
    _, plan = make_tool_plan(tmp_path)
    assert plan.data is not None
    held = recorded_by_prompt(plan.data)
    assert held == recorded(held, ()) and len(held) > 10


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"results": lambda prompts, agreed: {}}, "for none of the .* prompts has a conversation with a result"),
        ({"engine": "nemo_rl"}, r"set training\.engine trl"),
        (
            {"grpo": SETTINGS.model_copy(update={"generation": "vllm_colocate"})},
            r"set training\.grpo\.generation to transformers",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_tool_plan(tmp_path, **changes)


@pytest.mark.variant
@pytest.mark.slow
@pytest.mark.parametrize("dynamic", one_and_variants([False, True]))
def test_recorded_tools_are_trained_and_resumed_to_the_bit(
    dynamic: bool, tmp_path: Path, fork_server: ForkServer
) -> None:
    settings = SETTINGS.model_copy(update={"dynamic_sampling": 2 if dynamic else None})

    def plan(name: str) -> Path:
        store, made = make_tool_plan(tmp_path / name, grpo=settings)
        return folder(store, made) / "plan.json"

    undisturbed = plan("undisturbed")
    assert fork_server.attempt(undisturbed).code == 0, fork_server.said()
    whole, bits = result_of(undisturbed), adapter_of(undisturbed)
    steps = [each for each in whole.metrics if "loss" in each]
    assert len(steps) == 4
    for step in steps:
        assert 0.2 < step["tools/call_turns"] < 2, "most episodes call once, and are given the result"
        assert step["completions/mean_length"] < step["completions/max_length"] <= 200
    assert any(step["accuracy"] > 0 for step in steps), "the answers after the results are what is checked"
    for seed in range(6):
        broken = plan(f"broken-{seed}")
        attempts = survive(fork_server, broken, random.Random(f"tools/{seed}"), 2, whole.goodput.total_s)
        assert adapter_of(broken) == bits, attempts
        if len(attempts) > 1:
            return
    raise AssertionError("no kill hit a running training")
