"""A policy that really moves: the demo's model under a LoRA adapter, trained for some steps, each adapter kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.demo.task import Problem, mistaken_solution, problems
from pipeline.training.freshness import Probe
from pipeline.training.freshness.trl_engine import model_log_probabilities

MODEL = Path(__file__).parents[4] / "pipeline" / "demo" / "model"
Adapter = dict[str, torch.Tensor]


class Run:
    """A training of `steps` steps. `adapters[k]` is what the policy holds after k of them."""

    def __init__(self, steps: int, learning_rate: float) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
        lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL), lora)
        self.merged: Any = AutoModelForCausalLM.from_pretrained(MODEL)
        self.weights = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self.drawn = problems(1, "train", 8 * (steps + 1))
        self.adapters = [self._kept()]
        optimizer = torch.optim.AdamW(self.weights.values(), lr=learning_rate)
        for step in range(steps):
            self._step(step)
            optimizer.step()
            optimizer.zero_grad()
            self.adapters.append(self._kept())

    def batch(self, step: int) -> list[Probe]:
        """Right and mistaken solutions: what step `step` learns from, in pairs."""
        mine = self.drawn[8 * step : 8 * (step + 1)]
        return [self._probe(p, text) for p in mine for text in (p.solution, mistaken_solution(p))]

    def policy(self, step: int) -> Any:
        """The model, with what it held after `step` steps."""
        self.hold(self.adapters[step])
        return self.model

    def hold(self, adapter: Adapter) -> None:
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(adapter[name])

    def engine(self, adapter: Adapter) -> Any:
        """Another model with the adapter merged into its weights, rounded to bf16 as a sync leaves them in vLLM."""
        self.hold(adapter)
        with torch.no_grad():
            for name, module in self.model.get_base_model().named_modules():
                if hasattr(module, "lora_A"):
                    whole = module.base_layer.weight + module.get_delta_weight("default")
                    self.merged.get_parameter(f"{name}.weight").copy_(whole.bfloat16())
        return self.merged

    def scores(self, step: int, probes: Sequence[Probe]) -> list[list[float]]:
        return model_log_probabilities(self.policy(step), probes)

    def base_scores(self, probes: Sequence[Probe]) -> list[list[float]]:
        with self.model.disable_adapter():
            return model_log_probabilities(self.model, probes)

    def _probe(self, problem: Problem, text: str) -> Probe:
        chat = [{"role": "user", "content": problem.prompt}]
        prompt = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        answer = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return Probe(prompt, [*answer, self.tokenizer.eos_token_id])

    def _step(self, step: int) -> None:
        """The gradient of a policy that is paid 1 for right solutions and -1 for mistaken ones."""
        for sign, rows in ((1, self.batch(step)[::2]), (-1, self.batch(step)[1::2])):
            texts = [torch.tensor([*p, *c]) for p, c in rows]
            ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
            labels = torch.full_like(ids, -100)
            for row, (prompt, completion) in enumerate(rows):
                labels[row, len(prompt) : len(prompt) + len(completion)] = torch.tensor(completion)
            (sign * self.model(input_ids=ids, labels=labels).loss).backward()
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)

    def _kept(self) -> Adapter:
        return {name: weight.detach().clone() for name, weight in self.weights.items()}


@pytest.fixture(scope="session")
def run_of() -> Callable[[int, float], Run]:
    made: dict[tuple[int, float], Run] = {}

    def run(steps: int, learning_rate: float) -> Run:
        key = (steps, learning_rate)
        if key not in made:
            made[key] = Run(steps, learning_rate)
        return made[key]

    return run
