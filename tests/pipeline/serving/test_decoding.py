"""What a model's folder says about sampling decides nothing; what does decide is on record."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from pipeline.core.storage import ModelRef, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import problems
from pipeline.models.tokenizer import stop_ids
from pipeline.recipe.serving import TransformersServing
from pipeline.serving.inference import Answer, AnswerRequest, Decoding, Messages, Sampling, answer_seed
from pipeline.serving.loaded import LoadedModel
from pipeline.serving.transformers_engine import TransformersEngine
from tests.variants import one_and_variants

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forking")]

OPINIONS: dict[str, Any] = {
    "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "top_k": 2, "top_p": 0.5, "temperature": 0.3,
    "min_new_tokens": 20, "suppress_tokens": [5, 6],
}  # fmt: skip
PROMPTS: list[Messages] = [[{"role": "user", "content": p.prompt}] for p in problems(5, "heldout", 20)]
PLAN = Sampling(samples=2, temperature=1.0, max_completion_tokens=32, seed=3)


def changed(folder: Path, file: str = "generation_config.json", **fields: Any) -> ModelRef:
    """The embedded model with other fields in one of its files; None removes one."""
    shutil.copytree(MODEL_DIR, folder)
    tree = json.loads((folder / file).read_text()) | fields
    (folder / file).write_text(json.dumps({name: value for name, value in tree.items() if value is not None}))
    return model_ref(folder)


def requests(prompts: list[Messages], plan: Sampling) -> list[AnswerRequest]:
    return [
        AnswerRequest(key=f"{place}/{n}", messages=messages, seed=answer_seed(plan.seed, str(place), n))
        for place, messages in enumerate(prompts)
        for n in range(plan.samples)
    ]


def served(
    model: ModelRef, prompts: list[Messages] = PROMPTS[:2], plan: Sampling = PLAN, batch_size: int = 256
) -> dict[str, Answer]:
    """As the serving process answers it, by key."""
    loaded = LoadedModel(model.uri, batch_size)
    return {answer.key: answer for answer in loaded.answers(requests(prompts, plan), plan)}


def decoding(model: ModelRef) -> Decoding:
    return LoadedModel(model.uri, 1).decoding


def stops(model: ModelRef) -> tuple[int, ...]:
    return stop_ids(model.uri, AutoTokenizer.from_pretrained(model.uri))


@pytest.mark.parametrize("temperature", one_and_variants([1.0, 0.0]))
def test_what_the_folder_says_about_sampling_changes_no_answer(tmp_path: Path, temperature: float) -> None:
    plan = PLAN.model_copy(update={"temperature": temperature})
    plain, opinionated = (
        {key: answer.text for key, answer in served(model, PROMPTS, plan).items()}
        for model in (model_ref(MODEL_DIR), changed(tmp_path / "model", **OPINIONS))
    )
    assert plain == opinionated
    assert len(set(plain.values())) > 10, "they are answers"


@pytest.mark.variant
def test_an_answer_hangs_on_its_seed_and_not_on_its_batch() -> None:
    whole, small = (served(model_ref(MODEL_DIR), PROMPTS, PLAN, size) for size in (256, 7))
    texts = {key: answer.text for key, answer in whole.items()}
    assert texts == {key: answer.text for key, answer in small.items()}
    few = served(model_ref(MODEL_DIR), PROMPTS[:3])
    assert {key: answer.text for key, answer in few.items()} == {key: texts[key] for key in few}
    assert sum(texts[f"{place}/0"] != texts[f"{place}/1"] for place in range(20)) >= 5, "samples differ"


def test_draws_follow_the_models_distribution() -> None:
    """The first token over many seeds against softmax(logits / T): total variation within what chance allows."""
    loaded = LoadedModel(str(MODEL_DIR), 512)
    plan = Sampling(samples=2048, temperature=8.0, max_completion_tokens=1)
    asked = requests(PROMPTS[:1], plan)
    prompt = loaded.prompt(asked[0], 1)
    rows = [loaded.generate([prompt] * 512, [r.seed for r in asked[n : n + 512]], plan) for n in range(0, 2048, 512)]
    drawn = torch.bincount(torch.tensor(rows).flatten(), minlength=len(loaded.tokenizer)) / 2048
    logits = loaded.model(torch.tensor([prompt])).logits[0, -1]
    right, wrong = (torch.softmax(logits / t, -1) for t in (8.0, 4.0))
    assert 0.5 * (drawn - right).abs().sum() < 0.16
    assert 0.5 * (drawn - wrong).abs().sum() > 0.3, "the test tells temperatures apart"


def test_what_decides_an_answer_is_recorded(tmp_path: Path) -> None:
    plain = decoding(model_ref(MODEL_DIR))
    assert (plain.engine, plain.stop_ids, plain.context) == ("transformers", (3,), 1024)
    assert plain == decoding(changed(tmp_path / "same", **OPINIONS))
    equals: int = AutoTokenizer.from_pretrained(MODEL_DIR).convert_tokens_to_ids("=")
    stop = changed(tmp_path / "stop", eos_token_id=[3, equals])
    assert decoding(stop) == plain.model_copy(update={"stop_ids": (3, equals)})
    answer, stopped = served(model_ref(MODEL_DIR))["0/0"], served(stop)["0/0"]
    assert stopped.finished and stopped.text == answer.text.partition("=")[0]
    template = changed(tmp_path / "template")
    (tmp_path / "template" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert decoding(template).tokens_digest != plain.tokens_digest
    context = changed(tmp_path / "context", "config.json", max_position_embeddings=512)
    assert decoding(context) == plain.model_copy(update={"context": 512})


def test_stop_ids_are_those_of_every_file_that_names_some(tmp_path: Path) -> None:
    assert stops(model_ref(MODEL_DIR)) == (3,)
    assert stops(changed(tmp_path / "generation", eos_token_id=[7, 5])) == (3, 5, 7)
    assert stops(changed(tmp_path / "config", "config.json", eos_token_id=9)) == (3, 9)
    bare = changed(tmp_path / "bare")
    (tmp_path / "bare" / "generation_config.json").unlink()
    assert stops(bare) == (3,)


def test_a_prompt_that_the_model_cannot_take_is_refused(tmp_path: Path) -> None:
    """Before anything is drawn, whichever of the prompts it is."""
    strict = changed(tmp_path / "strict")
    template = Path(strict.uri) / "chat_template.jinja"
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    template.write_text(refusal + template.read_text())
    told: Messages = [{"role": "system", "content": "Be brief."}, *PROMPTS[1]]
    long: Messages = [{"role": "user", "content": "How many tins? " * 400}]
    answers: list[Answer] = []
    for prompt, words in ((told, "template leaves out system messages"), (long, "context of 1,024. Lower")):
        asked = requests([PROMPTS[0], prompt], PLAN)
        with (
            TransformersEngine(TransformersServing(), lambda line: None).open("champion", strict) as session,
            pytest.raises(ValueError, match=f"cannot be asked this: .*{words}"),
        ):
            session.answer(asked, PLAN, answers.append)
    assert not answers


def test_an_answer_has_both_tags_of_its_thought() -> None:
    """A template may open the thought in the prompt, and a tag may be a special token, which decoding leaves out."""
    model = LoadedModel(str(MODEL_DIR), 1)
    model.tokenizer.add_tokens(["<think>", "</think>"], special_tokens=True)
    asked, opened, cut, whole = (
        model.tokenizer(text)["input_ids"] for text in ("1+1=", "1+1=<think>\n", "#### 3", "#### 3</think>#### 2")
    )
    assert [model.text(asked, cut), model.text(opened, cut)] == ["#### 3", "<think>\n#### 3"]
    assert model.text(opened, whole) == "<think>\n#### 3</think>#### 2"
