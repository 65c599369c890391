import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.record import read_events
from pipeline.rollout.unseen import lineage, prompt_key, unseen
from pipeline.selection.preferences import PAIRS, PROMPTS
from tests.pipeline.rollout.conftest import BASE, NAME, POLICY, World, iteration_over, model

FEW: RolloutPolicy = POLICY.model_copy(update={"min_canary_requests": 2})


def ask(text: str, role: str = "user"):
    return [{"role": role, "content": text}]


def trained_on(world: World, iteration: str, *texts: str, name: str = "data", schema: pa.Schema = PROMPTS) -> None:
    """What an iteration's plan leaves: the rows of its training, or of its validation."""
    path = world.store.path("iterations", iteration, "training", f"{name}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    blank = dict.fromkeys(schema.names)
    pq.write_table(pa.Table.from_pylist([{**blank, "prompt": ask(text)} for text in texts], schema=schema), path)


def left(world: World, *texts: str, log=print) -> list[str]:
    requests = [(ask(text), "4") for text in texts]
    kept = unseen(world.store, read_events(world.store, NAME), requests, log)
    return [prompt[0]["content"] for prompt, _ in kept]


@pytest.fixture
def first(world: World) -> str:
    """The iteration of a candidate whose rollout is open."""
    world.propose("new", policy=FEW)
    return iteration_over(BASE).id


@pytest.mark.parametrize("schema", [PROMPTS, PAIRS], ids=["grpo", "dpo"])
def test_what_was_trained_on_is_not_replayed(world, first, schema):
    trained_on(world, first, "1+1?", schema=schema)
    lines: list[str] = []
    assert left(world, "1+1?", "2+2?", "3+3?", "1+1?", "2+2?", log=lines.append) == ["2+2?", "3+3?", "2+2?"]
    assert "2 of 5 recorded requests" in lines[0]
    assert "2 distinct prompts" in lines[0]


def test_what_chose_the_checkpoint_is_not_replayed(world, first):
    trained_on(world, first, "1+1?")
    trained_on(world, first, "2+2?", name="held_out")
    assert left(world, "2+2?", "3+3?", "4+4?") == ["3+3?", "4+4?"]


def test_the_same_question_in_another_form_is_the_same(world, first):
    trained_on(world, first, "What  is\n1+1?")
    assert left(world, "what is 1+1?", "What is \uff11+\uff11? ", "What is 1+2?", "2+2?") == ["What is 1+2?", "2+2?"]
    assert prompt_key(ask("a", "user")) != prompt_key(ask("a", "system"))


def test_what_an_ancestor_was_trained_on_is_not_replayed(world, first):
    trained_on(world, first, "1+1?")
    world.tick_until("promoted")
    world.propose("aside", data="other", number=2, policy=FEW)
    world.metrics.canary = {"quality": 0.2}
    world.tick_until("rolled_back")
    trained_on(world, iteration_over(model("new"), 1, "other").id, "2+2?")
    world.propose("newest", data="more", number=3, policy=FEW)
    trained_on(world, iteration_over(model("new"), 1, "more").id, "3+3?")
    assert [p.version.model.digest for p in lineage(read_events(world.store, NAME))] == ["newest", "new"]
    assert left(world, "1+1?", "2+2?", "3+3?", "4+4?") == ["2+2?", "4+4?"]


def test_too_few_new_prompts_are_none(world, first):
    trained_on(world, first, "1+1?", "2+2?")
    with pytest.raises(ValueError, match=r"not enough held-out traffic to replay: 2 of 5 .* 1 distinct prompts, 2 are"):
        left(world, "1+1?", "2+2?", "3+3?", "3+3?", "3+3?")


def test_without_the_training_rows_nothing_is_new(world, first):
    with pytest.raises(ValueError, match=rf"iteration {first} was trained on are gone"):
        left(world, "1+1?", "2+2?", "3+3?")


def test_a_prompt_of_no_text_has_a_key():
    assert prompt_key(json.loads("[]")) != prompt_key(ask(""))
