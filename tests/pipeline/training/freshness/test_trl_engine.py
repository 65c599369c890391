"""The guard on TRL's vLLM, colocated and as a server, with the surface of vLLM's objects over the real tiny model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from trl import GRPOTrainer
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from pipeline.training.freshness import Probe, StalePolicy
from pipeline.training.freshness.trl_engine import TrlFreshness, model_log_probabilities

from .conftest import Run


class FakeLLM:
    """As vllm.LLM, as far as it is used. `weights` is what a sync left in it."""

    def __init__(self, run: Run) -> None:
        self.run, self.weights, self.named, self.awake = run, run.adapters[0], "default", False

    def update_weight_version(self, new_version: str) -> None:
        self.named = new_version

    def get_weight_version(self) -> str:
        return self.named

    def wake_up(self, tags: list[str]) -> None:
        self.awake = tags == ["kv_cache"]

    def get_default_sampling_params(self) -> SimpleNamespace:
        return SimpleNamespace(max_tokens=16, prompt_logprobs=None)

    def generate(self, prompts: list[dict], sampling_params: Any, use_tqdm: bool) -> list[SimpleNamespace]:
        assert self.awake and (sampling_params.max_tokens, sampling_params.prompt_logprobs, use_tqdm) == (1, 1, False)
        rows = [prompt["prompt_token_ids"] for prompt in prompts]
        scores = model_log_probabilities(self.run.engine(self.weights), [Probe(ids[:1], ids[1:]) for ids in rows])
        return [
            SimpleNamespace(
                prompt_logprobs=[None, *({t: SimpleNamespace(logprob=s)} for t, s in zip(ids[1:], row, strict=True))]
            )
            for ids, row in zip(rows, scores, strict=True)
        ]


class FakeClient:
    """As trl's VLLMClient before a vLLM server."""

    base_url = "http://server"

    def __init__(self, run: Run) -> None:
        self.run, self.weights, self.named = run, run.adapters[0], "default"

    def _post(self, url: str, json: dict[str, str]) -> None:
        assert url == "http://server/update_weight_version"
        self.named = json["new_version"]

    def _get(self, url: str) -> dict[str, str]:
        assert url == "http://server/weight_info"
        return {"weight_version": self.named}

    def get_sequence_logprobs(self, sequences: list, prompt_lengths: list, top_logprobs: int) -> dict[str, list]:
        probes = [Probe(ids[:n], ids[n:]) for ids, n in zip(sequences, prompt_lengths, strict=True)]
        scores = model_log_probabilities(self.run.engine(self.weights), probes)
        return {"actual_logprobs": [[[score] for score in row] for row in scores]}


class FakeTrainer:
    """A GRPOTrainer's attributes that the guard reads. `push` decides what a sync brings to the engine."""

    def __init__(self, run: Run, mode: str, push: bool = True) -> None:
        self.run, self.push, self.syncs = run, push, 0
        self.state, self._last_loaded_step = SimpleNamespace(global_step=0), -1
        self.accelerator = SimpleNamespace(is_main_process=True, unwrap_model=lambda model: model)
        self.holder = FakeLLM(run) if mode == "colocate" else FakeClient(run)
        self.vllm_generation = SimpleNamespace(
            mode=mode,
            enable_sleep_mode=True,
            max_completion_length=28,
            sync_weights=self.sync_weights,
            **{"llm" if mode == "colocate" else "vllm_client": self.holder},
        )

    @property
    def model(self) -> Any:
        return self.run.policy(self.state.global_step)

    def sync_weights(self) -> None:
        self.syncs += 1
        if self.push:
            self.holder.weights = self.run.adapters[self.state.global_step]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_training_is_proven_from_its_second_sync_on(run_of: Callable[[int, float], Run], mode: str) -> None:
    trainer = FakeTrainer(run_of(8, 2e-3), mode)
    freshness = TrlFreshness(trainer, "iteration")
    proven = []
    for step in range(4):
        trainer.state.global_step = step
        prompts, completions = zip(*trainer.run.batch(step), strict=True)
        proof = freshness.sync(prompts)
        assert proof is not None and proof.version == f"iteration/step-{step}"
        assert freshness.sync(prompts) is None  # as TRL: once a step
        freshness.remember(prompts, completions)
        proven.append(proof.proven)
    assert proven == [False, True, True, True]
    assert trainer.syncs == 4


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_push_that_never_arrives_is_refused(run_of: Callable[[int, float], Run], mode: str) -> None:
    trainer = FakeTrainer(run_of(8, 2e-3), mode, push=False)
    freshness = TrlFreshness(trainer, "iteration")
    prompts, completions = zip(*trainer.run.batch(0), strict=True)
    freshness.sync(prompts)
    freshness.remember(prompts, completions)
    trainer.state.global_step = 1
    with pytest.raises(StalePolicy, match="base policy"):
        freshness.sync(prompts)


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_server_that_another_training_feeds_is_refused(run_of: Callable[[int, float], Run], mode: str) -> None:
    trainer = FakeTrainer(run_of(8, 2e-3), mode)
    freshness = TrlFreshness(trainer, "iteration")
    prompts, completions = zip(*trainer.run.batch(0), strict=True)
    freshness.sync(prompts)
    trainer.holder.named = "another/step-3"
    with pytest.raises(StalePolicy, match="claims 'another/step-3' where 'iteration/step-0' was pushed"):
        freshness.remember(prompts, completions)


def test_log_probabilities_are_those_without_padding(run_of: Callable[[int, float], Run]) -> None:
    run = run_of(8, 2e-3)
    batch = run.batch(0)
    alone = [model_log_probabilities(run.policy(3), [probe])[0] for probe in batch]
    assert model_log_probabilities(run.policy(3), batch, batch=5) == [pytest.approx(row, abs=1e-4) for row in alone]


def test_trl_has_what_the_guard_leans_on() -> None:
    turn = inspect.getsource(GRPOTrainer._generate_single_turn)
    assert "self.state.global_step != self._last_loaded_step" in turn and "vllm_generation.sync_weights()" in turn
    engine = inspect.getsource(VLLMGeneration)
    assert all(f"self.{name} = " in engine for name in ("llm", "vllm_client", "mode", "enable_sleep_mode"))
    assert {"sequences", "prompt_lengths", "top_logprobs"} <= set(
        inspect.signature(VLLMClient.get_sequence_logprobs).parameters
    )
