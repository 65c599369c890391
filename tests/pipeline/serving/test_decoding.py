"""What a model's folder says about sampling decides nothing; what does decide is on record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from pipeline.demo import MODEL_DIR
from pipeline.demo.task import problems
from pipeline.serving.__main__ import generate
from pipeline.serving.decoding import stop_ids
from pipeline.serving.sample import Messages, Sampling, SamplingRequest, SamplingResponse
from pipeline.storage import ModelRef, model_ref

OPINIONS: dict[str, Any] = {
    "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "top_k": 2, "top_p": 0.5, "temperature": 0.3,
    "min_new_tokens": 20, "suppress_tokens": [5, 6],
}  # fmt: skip
PROMPTS: list[Messages] = [[{"role": "user", "content": p.prompt}] for p in problems(5, "heldout", 40)]
PLAN = Sampling(samples=2, temperature=1.0, max_completion_tokens=32, seed=3)


def changed(folder: Path, file: str = "generation_config.json", **fields: Any) -> ModelRef:
    """The embedded model with other fields in one of its files; None removes one."""
    shutil.copytree(MODEL_DIR, folder)
    tree = json.loads((folder / file).read_text()) | fields
    (folder / file).write_text(json.dumps({name: value for name, value in tree.items() if value is not None}))
    return model_ref(folder)


def served(model: ModelRef, prompts: list[Messages] = PROMPTS[:2], plan: Sampling = PLAN) -> SamplingResponse:
    """As the serving process answers it."""
    return generate(SamplingRequest(model=model, prompts=prompts, sampling=plan))


def stops(model: ModelRef) -> tuple[int, ...]:
    return stop_ids(model.uri, AutoTokenizer.from_pretrained(model.uri))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_what_the_folder_says_about_sampling_changes_no_answer(tmp_path: Path, temperature: float) -> None:
    plan = PLAN.model_copy(update={"temperature": temperature})
    plain, opinionated = (
        [[answer.text for answer in drawn] for drawn in served(model, PROMPTS, plan).completions]
        for model in (model_ref(MODEL_DIR), changed(tmp_path / "model", **OPINIONS))
    )
    assert plain == opinionated
    assert len({text for drawn in plain for text in drawn}) > 20, "they are answers"


@pytest.mark.slow
def test_what_decides_an_answer_is_recorded_with_it(tmp_path: Path) -> None:
    plain = served(model_ref(MODEL_DIR)).decoding
    assert (plain.engine, plain.stop_ids, plain.context) == ("transformers", (3,), 1024)
    assert plain == served(changed(tmp_path / "same", **OPINIONS)).decoding
    equals: int = AutoTokenizer.from_pretrained(MODEL_DIR).convert_tokens_to_ids("=")
    stop = served(changed(tmp_path / "stop", eos_token_id=[3, equals]))
    assert stop.decoding == plain.model_copy(update={"stop_ids": (3, equals)})
    answer, stopped = served(model_ref(MODEL_DIR)).completions[0][0], stop.completions[0][0]
    assert stopped.finished and stopped.text == answer.text.partition("=")[0]
    template = changed(tmp_path / "template")
    (tmp_path / "template" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert served(template).decoding.tokens_digest != plain.tokens_digest
    context = changed(tmp_path / "context", "config.json", max_position_embeddings=512)
    assert served(context).decoding == plain.model_copy(update={"context": 512})


def test_stop_ids_are_those_of_every_file_that_names_some(tmp_path: Path) -> None:
    assert stops(model_ref(MODEL_DIR)) == (3,)
    assert stops(changed(tmp_path / "generation", eos_token_id=[7, 5])) == (3, 5, 7)
    assert stops(changed(tmp_path / "config", "config.json", eos_token_id=9)) == (3, 9)
    bare = changed(tmp_path / "bare")
    (tmp_path / "bare" / "generation_config.json").unlink()
    assert stops(bare) == (3,)
