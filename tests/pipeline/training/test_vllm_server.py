"""vLLM's OpenAI server with base and adapter, as serving runs it: the same tokens as transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.demo.task import problems

from ...servers import vllm_server

MODEL = Path(__file__).parents[3] / "pipeline" / "demo" / "model"
TOKENS = 28
TIE = 1e-4
pytestmark = [pytest.mark.slow, pytest.mark.vllm]


class Served:
    """One model of the server, by the name that requests give."""

    def __init__(self, url: str, name: str) -> None:
        self.name, self._client = name, httpx2.Client(base_url=url, trust_env=False, timeout=120)

    def greedy(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        asked = {"model": self.name, "prompt": prompts, "temperature": 0, "return_token_ids": True}
        done = self._client.post("/completions", json=asked | {"max_tokens": TOKENS})
        assert done.status_code == 200, done.text
        return [each["token_ids"] for each in sorted(done.json()["choices"], key=lambda choice: choice["index"])]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[list[int]]:
    chats = [[{"role": "user", "content": problem.prompt}] for problem in problems(7, "heldout", 40)]
    return [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=True)["input_ids"] for c in chats]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """After twelve steps of learning, as the trainer exports it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL), lora)
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=2e-3)
    for first in range(0, 12 * 16, 16):
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": p.prompt}, {"role": "assistant", "content": p.solution}], tokenize=False
            )
            for p in problems(3, "train", 12 * 16)[first : first + 16]
        ]
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    lora = ("--enable-lora", "--max-lora-rank", "16", "--max-model-len", "256")
    exact = ("--dtype", "float32", "--max-num-seqs", "40")
    folder = tmp_path_factory.mktemp("vllm")
    with vllm_server(MODEL, "base", folder, *lora, *exact, VLLM_ALLOW_RUNTIME_LORA_UPDATING="True") as root:
        yield root


@pytest.fixture(scope="module")
def served(url: str, adapter: Path) -> dict[str, Served]:
    asked = {"lora_name": "adapter", "lora_path": str(adapter)}
    done = httpx2.post(f"{url}/load_lora_adapter", json=asked, trust_env=False, timeout=120)
    assert done.status_code == 200, done.text
    return {name: Served(url, name) for name in ("base", "adapter")}


@pytest.fixture(scope="module")
def models(adapter: Path) -> dict[str, Any]:
    """The same two in transformers."""
    base, adapted = (AutoModelForCausalLM.from_pretrained(MODEL).eval() for _ in range(2))
    return {"base": base, "adapter": PeftModel.from_pretrained(adapted, adapter).eval()}


@pytest.mark.parametrize("name", ["base", "adapter"])
def test_the_server_draws_the_tokens_that_transformers_draws(
    served: dict[str, Served], models: dict[str, Any], prompts: list[list[int]], name: str
) -> None:
    theirs, ours = served[name].greedy(prompts), [greedy(models[name], p) for p in prompts]
    for prompt, left, right in zip(prompts, theirs, ours, strict=True):
        if left != right:
            parted = next(n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
            with torch.inference_mode():
                scores = models[name](torch.tensor([[*prompt, *left[:parted]]])).logits[0, -1].log_softmax(-1)
            first, second = scores[left[parted]], scores[right[parted]]
            assert abs(first - second) < TIE, "not the same model: the tokens part where there is no tie"
    equal = sum(left == right for left, right in zip(theirs, ours, strict=True))
    print(f"vllm: {equal} of {len(prompts)} greedy completions equal")
    assert equal >= len(prompts) - 1


def test_the_adapter_answers_otherwise_than_the_base(served: dict[str, Served], prompts: list[list[int]]) -> None:
    assert served["base"].greedy(prompts) != served["adapter"].greedy(prompts)


def greedy(model: Any, prompt: Sequence[int]) -> list[int]:
    drawn = model.generate(
        input_ids=torch.tensor([prompt]), do_sample=False, temperature=None, max_new_tokens=TOKENS, pad_token_id=0
    )
    return drawn[0, len(prompt) :].tolist()
