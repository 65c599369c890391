"""The tiny models of other families: they load, and they do the task that they were fitted to."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.base_models import build
from benchmarks.base_tokenizers import question
from pipeline.models.tokenizer import load_tokenizer, stop_ids

pytestmark = pytest.mark.slow


def test_a_model_of_a_family_ends_its_answers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = str(build("gpt2", tmp_path / "gpt2"))
    tokenizer, model = load_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder)
    asked = [{"role": "user", "content": question(2, 3)}]
    prompt: Any = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert int(answer[-1]) in stop_ids(folder, tokenizer)
    assert tokenizer.decode(answer, skip_special_tokens=True).startswith("2 + 3 is ")
