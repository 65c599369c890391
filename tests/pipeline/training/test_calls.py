"""All methods train on prompts that hold calls of tools and on answers that are calls."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.kills import result_of
from pipeline.models.rendering import chat_tokenizer, rendered, rendered_answer
from pipeline.recipe import Checkpoints, Validation
from pipeline.recipe.methods import METHODS
from pipeline.training.methods import tokenised
from pipeline.training.result import NEVER_RETRY
from tests.fork_server import ForkServer
from tests.pipeline.core.tool_models import tool_model
from tests.pipeline.training.plans import DPO_SETTINGS, GRPO_SETTINGS, KTO_SETTINGS, SFT_SETTINGS, folder, make_plan
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow
ASKED = Validation(every_steps=2, prompts=4, samples=1, max_completion_tokens=32)
CALM = SFT_SETTINGS.model_copy(update={"learning_rate": 1e-4})
SETTINGS = {"grpo": GRPO_SETTINGS, "dpo": DPO_SETTINGS, "kto": KTO_SETTINGS, "sft": CALM}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tool_model(tmp_path_factory.mktemp("base") / "model")


def plan_of(root: Path, base: Path, method: str, **changes: Any) -> Path:
    kind: Any = SETTINGS[method]
    settings = {method: kind.model_copy(update={"steps": 4, **changes})}
    store, made = make_plan(
        root,
        method,
        base=base,
        tools=True,
        checkpoints=Checkpoints(every_steps=2, keep_best=0),
        validation=ASKED,
        **settings,
    )
    return folder(store, made) / "plan.json"


@pytest.mark.variant
@pytest.mark.parametrize("method", METHODS)
def test_calls_are_trained(method: str, base: Path, tmp_path: Path, fork_server: ForkServer) -> None:
    path = plan_of(tmp_path, base, method)
    assert fork_server.attempt(path).code == 0, fork_server.said()
    whole = result_of(path)
    assert whole.checkpoint.step == 4 and "held_out/accuracy" in whole.metrics[-1]


def test_what_is_trained_is_what_the_template_has_of_calls(base: Path, tmp_path: Path) -> None:
    store, plan = make_plan(tmp_path, "sft", base=base, tools=True)
    assert plan.data is not None and store.root == tmp_path
    tokenizer = chat_tokenizer(plan.base.uri)
    rows = pq.read_table(plan.data.uri).to_pylist()
    (row,) = [each for each in rows if "<tool_call>" in each["completion"]][:1]
    answers = tokenised(tokenizer, [tokenizer.eos_token_id], [row])
    call = {"name": "add", "arguments": {"sum": row["prompt"][1]["content"]}}
    assert tokenizer.decode(answers.answers[0]) == f"<tool_call>\n{json.dumps(call)}\n</tool_call><|im_end|>"
    assert rendered_answer(tokenizer, row["prompt"], row["completion"]) == tokenizer.decode(answers.answers[0])
    held = next(each for each in rows if any(message["role"] == "tool" for message in each["prompt"]))
    text = rendered(tokenizer, held["prompt"])
    assert '"arguments": {"sum": ' in text and "<|im_start|>tool\n7" in text and "null" not in text


@pytest.mark.parametrize("method", one_and_variants(METHODS))
def test_a_template_without_tools_stops_before_training(method: str, tmp_path: Path, fork_server: ForkServer) -> None:
    store, plan = make_plan(tmp_path, method, tools=True)
    assert fork_server.attempt(folder(store, plan) / "plan.json").code == NEVER_RETRY, fork_server.said()
    assert "chat template leaves out the definitions of tools" in fork_server.said()
    assert not list((folder(store, plan)).glob("checkpoints/*"))
