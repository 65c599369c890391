"""An answer alone and the same answer in a left-padded batch have the same log-probabilities."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.models.tokenizer import load_tokenizer
from pipeline.training.methods.builder import count_positions_from_first_token

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["gpt2", "qwen35c"])
def test_padding_moves_no_answer(family: Callable[[str], Path], name: str) -> None:
    """Learned positions, and linear attention, whose state padding could reach."""
    folder = str(family(name))
    tokenizer, model = load_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    count_positions_from_first_token(model)

    def scores(*texts: str) -> torch.Tensor:
        batch: Any = tokenizer(list(texts), return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            return model(**batch).logits[0].log_softmax(-1)

    alone = scores("Add 3 and 4.")
    padded = scores("Add 3 and 4.", "Add 3 and 4. Add 17 and 28. Add 5 and 6.")
    assert (padded[-len(alone) :] - alone).abs().max() < 1e-4
