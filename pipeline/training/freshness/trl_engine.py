"""vLLM as TRL drives it, seen by the guard: an engine, a policy, and the two calls that a GRPOTrainer makes.

Colocated, every process has an engine of its own and all are proven; as a server, the main process asks the one. The
probes and the policy's log-probabilities are the main process's everywhere, so all processes decide alike. Imports
torch and accelerate inside, because the guard's other parts are also of use without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pipeline.training.freshness.guard import FreshnessGuard, GuardSettings, Probe
from pipeline.training.freshness.proof import MAX_RESIDUAL, FreshnessProof, LogProbabilities

T = TypeVar("T")
PROMPT_TOKENS = 64
"""Of a prompt's end, scored at the first sync, when there are no completions yet."""


class TrlFreshness:
    """Syncs a GRPOTrainer's weights to vLLM and proves it.

    Its `_generate_single_turn` calls `sync` before TRL's own and `remember` after it; TRL then finds its weights
    synced. `name` tells this training from others that may feed the same server.
    """

    def __init__(
        self, trainer: Any, name: str, tolerance: float = MAX_RESIDUAL, log: Callable[[str], None] = print
    ) -> None:
        self._trainer, self._name, self._engine = trainer, name, TrlEngine(trainer)
        self.guard = FreshnessGuard(self._engine, TrlPolicy(trainer), GuardSettings(tolerance=tolerance), log)

    def sync(self, prompt_ids: Sequence[Sequence[int]]) -> FreshnessProof | None:
        """Push the weights, if the step is new, and prove that they arrived; raises StalePolicy."""
        step = self._trainer.state.global_step
        if step == self._trainer._last_loaded_step:
            return None
        self._trainer.vllm_generation.sync_weights()
        self._trainer._last_loaded_step = step
        self._engine.stamp(self._version())
        prompts = [Probe(ids[:-kept], ids[-kept:]) for ids in prompt_ids if (kept := min(PROMPT_TOKENS, len(ids) - 1))]
        return self.guard.check(self._version(), _of_main_process(prompts))

    def remember(self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]]) -> None:
        """The rollouts that were just drawn; raises StalePolicy when the engine has another version by now."""
        # A probe is asked as a prompt and one more token, which must still fit the context that TRL sized.
        fits = max(1, self._trainer.vllm_generation.max_completion_length - 1)
        drawn = [Probe(p, c[:fits]) for p, c in zip(prompt_ids, completion_ids, strict=True)]
        self.guard.remember(self._version(), _of_main_process(drawn))

    def _version(self) -> str:
        return f"{self._name}/step-{self._trainer.state.global_step}"


class TrlEngine:
    """`trainer.vllm_generation`: `llm` when colocated, else `vllm_client` in the main process."""

    def __init__(self, trainer: Any) -> None:
        self._vllm, self._accelerator = trainer.vllm_generation, trainer.accelerator
        self._colocated = self._vllm.mode == "colocate"

    def stamp(self, version: str) -> None:
        """Name the weights that were just pushed: neither of TRL's ways does it, and vLLM forgets at a restart."""
        if self._colocated:
            self._vllm.llm.update_weight_version(version)
        elif self._accelerator.is_main_process:
            client = self._vllm.vllm_client
            client._post(f"{client.base_url}/update_weight_version", json={"new_version": version})

    def version(self) -> str:
        """The version; of replicas that disagree, all of theirs."""
        return " and ".join(sorted(set(self._replicas(self._own_version))))

    def log_probabilities(self, probes: Sequence[Probe]) -> Sequence[LogProbabilities]:
        """Of each replica."""
        return self._replicas(
            lambda: self._colocated_scores(probes) if self._colocated else self._served_scores(probes)
        )

    def _own_version(self) -> str:
        if self._colocated:
            return self._vllm.llm.get_weight_version()
        client = self._vllm.vllm_client
        return client._get(f"{client.base_url}/weight_info")["weight_version"]

    def _colocated_scores(self, probes: Sequence[Probe]) -> LogProbabilities:
        if self._vllm.enable_sleep_mode:
            self._vllm.llm.wake_up(tags=["kv_cache"])  # a sync wakes the weights alone; generate() finds it awake
        asked = self._vllm.llm.get_default_sampling_params()
        asked.max_tokens, asked.prompt_logprobs = 1, 1
        prompts = [{"prompt_token_ids": [*probe.prompt, *probe.completion]} for probe in probes]
        answers = self._vllm.llm.generate(prompts, sampling_params=asked, use_tqdm=False)
        return [
            [
                at[token].logprob
                for at, token in zip(answer.prompt_logprobs[len(probe.prompt) :], probe.completion, strict=True)
            ]
            for answer, probe in zip(answers, probes, strict=True)
        ]

    def _served_scores(self, probes: Sequence[Probe]) -> LogProbabilities:
        sequences = [[*probe.prompt, *probe.completion] for probe in probes]
        lengths = [len(probe.prompt) for probe in probes]
        response = self._vllm.vllm_client.get_sequence_logprobs(sequences, lengths, top_logprobs=1)
        return [[value for (value,) in row] for row in response["actual_logprobs"]]

    def _replicas(self, ask: Callable[[], T]) -> list[T]:
        from accelerate.utils import gather_object

        if self._colocated:
            return gather_object([ask()])
        return [_of_main_process(ask() if self._accelerator.is_main_process else None)]  # type: ignore[list-item]


class TrlPolicy:
    """`trainer.model`, with its adapter and without."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def log_probabilities(self, probes: Sequence[Probe]) -> LogProbabilities:
        return _of_main_process(model_log_probabilities(self._trainer.model, probes))

    def base_log_probabilities(self, probes: Sequence[Probe]) -> LogProbabilities | None:
        """None when every weight is trained: there is no adapter to switch off."""
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        if not hasattr(model, "disable_adapter"):
            return None
        with model.disable_adapter():
            return self.log_probabilities(probes)


def _of_main_process(value: T) -> T:
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def model_log_probabilities(model: Any, probes: Sequence[Probe], batch: int = 8) -> list[list[float]]:
    """What a Hugging Face causal language model says of each completion, in evaluation mode and without gradients."""
    import torch

    before = max(len(probe.prompt) for probe in probes)
    after = max(len(probe.completion) for probe in probes)
    ids = torch.zeros(len(probes), before + after, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(probes):
        here = slice(before - len(prompt), before + len(completion))
        ids[row, here] = torch.tensor([*prompt, *completion])
        mask[row, here] = 1
    logprobs: list[list[float]] = []
    training = model.training
    model.eval()
    with torch.no_grad():
        for first in range(0, len(probes), batch):
            some, seen = ids[first : first + batch].to(model.device), mask[first : first + batch].to(model.device)
            positions = (seen.cumsum(-1) - 1).clamp(min=0)
            output = model(
                input_ids=some, attention_mask=seen, position_ids=positions, logits_to_keep=after + 1, use_cache=False
            )
            scores = output.logits[:, :-1].float().log_softmax(-1).gather(-1, some[:, -after:, None])[..., 0]
            logprobs += scores.tolist()
    model.train(training)
    return [row[: len(probe.completion)] for row, probe in zip(logprobs, probes, strict=True)]
