"""Candidates that are served as adapters by the champion's server: which can be, what they answer, and how they come
and go while requests are answered."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.gateway_arms import Tuned, tuned_model
from pipeline.core.storage import ModelRef, Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import problems
from pipeline.recipe.training import Lora
from pipeline.rollout.gateway.keeper import SlotKeeper
from pipeline.rollout.gateway.pool import PooledSlots
from pipeline.rollout.gateway.split import ServedSlot, read_slots
from pipeline.serving.adapters import ServedAdapter, load_adapter, unload_adapter, unservable, unservable_recipe
from pipeline.serving.inference import AnswerRequest, Sampling
from pipeline.serving.loaded import LoadedModel
from tests.pipeline.serving.listening import listening
from tests.processes import wait_for

NAME = "arithmetic"
BASE = model_ref(MODEL_DIR)
PROMPTS = [p.prompt for p in problems(7, "heldout", 4)]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, ""),
        ({"use_rslora": True, "lora_dropout": 0.1}, ""),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"bias": "all"}, "bias"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"something_new": 1}, "something_new"),
    ],
)
def test_only_known_settings_are_served_beside_a_base(changed: dict[str, Any], word: str, tmp_path: Path) -> None:
    from peft import LoraConfig

    LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM").save_pretrained(str(tmp_path))
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    why = unservable(tmp_path)
    assert (word in why) if word else why == ""


def test_a_recipe_says_what_its_adapter_will_be() -> None:
    assert unservable_recipe(Lora(rslora=True)) == ""
    assert "full fine-tuning" in unservable_recipe(None)
    assert "dora and training.lora.trainable_tokens" in unservable_recipe(Lora(dora=True, trainable_tokens=("<x>",)))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return tuned_model(tmp_path_factory.mktemp("tuned"))


def answers(model: ModelRef) -> list[str]:
    requests = [AnswerRequest(key=p, messages=[{"role": "user", "content": p}], seed=n) for n, p in enumerate(PROMPTS)]
    found = {a.key: a.text for a in LoadedModel(model.uri, 8).answers(requests, Sampling(max_completion_tokens=16))}
    return [found[prompt] for prompt in PROMPTS]


def served(slot: ServedSlot) -> list[str]:
    def one(number: int) -> str:
        messages = [{"role": "user", "content": PROMPTS[number]}]
        body = {"model": slot.name, "messages": messages, "seed": number, "max_tokens": 16}
        reply = httpx2.post(f"{slot.url}/chat/completions", json=body, timeout=60).json()
        assert reply["model"] == slot.name, reply
        return reply["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, range(len(PROMPTS))))


@pytest.fixture
def keeper(tmp_path: Path, forking: None) -> Iterator[SlotKeeper]:
    with SlotKeeper(Store(tmp_path / "data"), NAME, 32, print) as keeper:
        yield keeper


@pytest.mark.slow
def test_both_arms_answer_from_one_server(keeper: SlotKeeper, tuned: Tuned, tmp_path: Path) -> None:
    store, wanted = Store(tmp_path / "data"), [BASE, tuned.merged]
    over = {tuned.merged.digest: ServedAdapter(base=BASE.digest, adapter=tuned.adapter)}
    keeper.serve(wanted, over)
    champion, canary = (read_slots(store, NAME).slot_of(model.digest) for model in wanted)
    assert champion is not None and canary is not None and champion.url == canary.url
    with ThreadPoolExecutor(2) as pool:  # in one batch
        both = list(pool.map(served, (champion, canary)))
    assert both == [answers(BASE), answers(tuned.merged)] and both[0] != both[1]

    load_adapter(champion.url, canary.name, tuned.adapter.uri)  # again: nothing changes
    with pytest.raises(ValueError, match="left no adapter"):
        load_adapter(champion.url, "arithmetic@ffffffffffff", BASE.uri)
    assert served(canary) == both[1], "a refused adapter leaves the others"

    keeper.serve([BASE], over)
    assert read_slots(store, NAME).slot_of(tuned.merged.digest) is None
    reply = httpx2.post(f"{champion.url}/chat/completions", json={"model": canary.name, "messages": [{"role": "user"}]})
    assert reply.status_code == 404

    pool = PooledSlots(NAME, [champion.url], lambda model: model.uri)
    wanted_digests = {model.digest for model in wanted}
    assert pool.slot_of(tuned.merged.digest, wanted_digests, {}) is None, "nothing makes it of what is there"
    again = pool.slot_of(tuned.merged.digest, wanted_digests, over)
    assert again is not None and again == canary and served(again) == both[1]
    unload_adapter(champion.url, canary.name)
    unload_adapter(champion.url, canary.name)


@pytest.mark.slow
def test_arms_come_back_after_their_server_was_killed(keeper: SlotKeeper, tuned: Tuned, tmp_path: Path) -> None:
    store, wanted = Store(tmp_path / "data"), [BASE, tuned.merged]
    over = {tuned.merged.digest: ServedAdapter(base=BASE.digest, adapter=tuned.adapter)}
    keeper.serve(wanted, over)
    before = read_slots(store, NAME)
    os.kill(listening(before.slots[0].url), signal.SIGKILL)
    wait_for(lambda: keeper.due)
    keeper.serve(wanted, over)
    after = read_slots(store, NAME)
    assert {slot.name for slot in after.slots} == {slot.name for slot in before.slots}
    assert served(after.slots[1]) == answers(wanted[1])


@pytest.mark.slow
def test_an_adapter_that_is_refused_gets_a_server_of_its_own(keeper: SlotKeeper, tuned: Tuned, tmp_path: Path) -> None:
    over = {tuned.merged.digest: ServedAdapter(base=BASE.digest, adapter=ModelRef(uri=str(MODEL_DIR), digest="d"))}
    keeper.serve([BASE, tuned.merged], over)
    slots = read_slots(Store(tmp_path / "data"), NAME).slots
    assert len({slot.url for slot in slots}) == 2
    assert served(slots[1]) == answers(tuned.merged)
    keeper.serve([tuned.merged], over)
    assert [slot.digest for slot in read_slots(Store(tmp_path / "data"), NAME).slots] == [tuned.merged.digest]
