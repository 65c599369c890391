"""vLLM's OpenAI server with base and adapter, as serving runs it: the same tokens as transformers, and proven fresh."""

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
from pipeline.training.freshness import FreshnessProof, LogProbabilities, Probe, StalePolicy, prove_fresh
from pipeline.training.freshness.proof import StalePolicies
from pipeline.training.freshness.trl_engine import model_log_probabilities

from ...servers import vllm_server

MODEL = Path(__file__).parents[3] / "pipeline" / "demo" / "model"
TOKENS = 28
TIE = 1e-4
pytestmark = [pytest.mark.slow, pytest.mark.vllm]


class Served:
    """One model of the server, by the name that requests give."""

    def __init__(self, url: str, name: str) -> None:
        self.name, self._client = name, httpx2.Client(base_url=url, trust_env=False, timeout=120)

    def answer(self, prompts: Sequence[Sequence[int]], **asked: Any) -> list[dict[str, Any]]:
        asked = {"model": self.name, "prompt": prompts, "temperature": 0, "return_token_ids": True} | asked
        done = self._client.post("/completions", json=asked)
        assert done.status_code == 200, done.text
        return sorted(done.json()["choices"], key=lambda choice: choice["index"])

    def greedy(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        return [choice["token_ids"] for choice in self.answer(prompts, max_tokens=TOKENS)]

    def version(self) -> str:
        """The folder that the server says this name was loaded from."""
        cards = {card["id"]: card for card in self._client.get("/models").json()["data"]}
        return cards[self.name]["root"] if self.name in cards else "nothing"

    def rollouts(self, prompts: Sequence[Sequence[int]]) -> tuple[list[Probe], LogProbabilities]:
        """Sampled completions, and what the server says of them.

        Not `prompt_logprobs`: with adapters enabled, one request for these ends vLLM 0.31's engine on CPU.
        """
        choices = self.answer(prompts, max_tokens=TOKENS, temperature=1, seed=1, logprobs=0)
        probes = [Probe(p, choice["token_ids"]) for p, choice in zip(prompts, choices, strict=True)]
        return probes, [choice["logprobs"]["token_logprobs"] for choice in choices]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[list[int]]:
    chats = [[{"role": "user", "content": problem.prompt}] for problem in problems(7, "heldout", 40)]
    return [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=True)["input_ids"] for c in chats]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> list[Path]:
    """Two versions of an adapter, after ten and after twelve steps of learning, as the trainer exports one."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL), lora)
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=2e-3)
    folders = []
    for step, first in enumerate(range(0, 12 * 16, 16)):
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
        if step in (9, 11):
            folders.append(tmp_path_factory.mktemp("adapter"))
            model.save_pretrained(folders[-1])
    return folders


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    lora = ("--enable-lora", "--max-lora-rank", "16", "--max-loras", "2", "--max-model-len", "256")
    exact = ("--dtype", "float32", "--max-num-seqs", "40")
    folder = tmp_path_factory.mktemp("vllm")
    with vllm_server(MODEL, "base", folder, *lora, *exact, VLLM_ALLOW_RUNTIME_LORA_UPDATING="True") as root:
        yield root


@pytest.fixture(scope="module")
def served(url: str, adapters: list[Path]) -> dict[str, Served]:
    """Loaded at runtime, each version under a name and from a path of its own."""
    for name, folder in zip(("older", "newer"), adapters, strict=True):
        asked = {"lora_name": name, "lora_path": str(folder)}
        done = httpx2.post(f"{url}/load_lora_adapter", json=asked, trust_env=False, timeout=120)
        assert done.status_code == 200, done.text
    return {name: Served(url, name) for name in ("base", "older", "newer")}


@pytest.fixture(scope="module")
def models(adapters: list[Path]) -> dict[str, Any]:
    """The same three in transformers."""
    found: dict[str, Any] = {"base": AutoModelForCausalLM.from_pretrained(MODEL).eval()}
    for name, folder in zip(("older", "newer"), adapters, strict=True):
        found[name] = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(MODEL), folder).eval()
    return found


@pytest.mark.parametrize("name", ["base", "newer"])
def test_the_server_draws_the_tokens_that_transformers_draws(
    served: dict[str, Served], models: dict[str, Any], prompts: list[list[int]], name: str
) -> None:
    theirs, ours = served[name].greedy(prompts), [greedy(models[name], p) for p in prompts]
    for prompt, left, right in zip(prompts, theirs, ours, strict=True):
        if left != right:
            parted = next(n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
            seen = Probe([*prompt, *left[:parted]], [left[parted]]), Probe([*prompt, *left[:parted]], [right[parted]])
            (first,), (second,) = model_log_probabilities(models[name], seen)
            assert abs(first - second) < TIE, "not the same model: the tokens part where there is no tie"
    equal = sum(left == right for left, right in zip(theirs, ours, strict=True))
    print(f"vllm: {equal} of {len(prompts)} greedy completions equal")
    assert equal >= len(prompts) - 1


def test_the_adapter_answers_otherwise_than_the_base(served: dict[str, Served], prompts: list[list[int]]) -> None:
    assert served["base"].greedy(prompts) != served["newer"].greedy(prompts)


def prove(models: dict[str, Any], prompts: list[list[int]], pushed: str, engine: Served) -> FreshnessProof:
    probes, told = engine.rollouts(prompts)
    base, previous, policy = (model_log_probabilities(models[name], probes) for name in ("base", "older", "newer"))
    return prove_fresh(pushed, engine.version(), told, policy, StalePolicies(base, previous))


def test_the_served_adapter_is_proven_fresh(
    served: dict[str, Served], models: dict[str, Any], prompts: list[list[int]], adapters: list[Path]
) -> None:
    proof = prove(models, prompts, str(adapters[1]), served["newer"])
    print(f"vllm: {proof}")
    assert proof.proven
    assert proof.residual < 1e-4
    assert proof.since_previous is not None and proof.since_previous.share == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("name", "lie"), [("base", "base policy"), ("older", "stale adapter")])
def test_another_model_that_poses_as_the_adapter_is_refused(
    served: dict[str, Served], models: dict[str, Any], prompts: list[list[int]], name: str, lie: str
) -> None:
    with pytest.raises(StalePolicy) as refused:
        prove(models, prompts, served[name].version(), served[name])
    assert refused.value.lie == lie


@pytest.mark.parametrize("name", ["base", "older", "no-such-name"])
def test_a_wrong_name_is_refused_by_its_version(url: str, served: dict[str, Served], name: str) -> None:
    assert "newer" in served
    with pytest.raises(StalePolicy, match="wrong version"):
        prove_fresh(served["newer"].version(), Served(url, name).version(), [], [])


def greedy(model: Any, prompt: Sequence[int]) -> list[int]:
    drawn = model.generate(
        input_ids=torch.tensor([prompt]), do_sample=False, temperature=None, max_new_tokens=TOKENS, pad_token_id=0
    )
    return drawn[0, len(prompt) :].tolist()
