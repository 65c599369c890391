"""Held-out prompts, answered by the policy during training at temperature 1 with the same seed each time. The
training's random state is set aside meanwhile. Every rank generates equally often: a sharded model needs it."""

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import torch
from accelerate.utils import gather_object
from transformers import GenerationConfig, Trainer
from trl.models.utils import unwrap_model_for_generation

from pipeline.core.conversation import to_prompt
from pipeline.models.rendering import rendered
from pipeline.recipe import Validation
from pipeline.recipe.rewards import VerifierKind
from pipeline.rewards.records import Finding
from pipeline.rewards.verifiers import Grader, VerifierTask
from pipeline.training.scorers import FreshAnswer
from pipeline.training.texts import completion_statistics

BATCH = 128
"""Completions generated at once."""
_GATHER: Any = gather_object  # typed as never returning
MICRO_BATCH = 16
"""Completions whose log-probabilities are taken at once: their logits are tokens x vocabulary."""
MOST_SILENT = 0.5
"""Share of answers without a second score above which the others tell nothing."""


class HeldOut(NamedTuple):
    """A prompt that is not trained on."""

    prompt: list[dict[str, str]]
    reference: str | None
    """None: its answers are not graded."""
    verifier: VerifierKind | None


class GradedCompletion(NamedTuple):
    """One completion, graded. `right` is None where the check could not tell; `kl` is summed over its tokens."""

    prompt: str
    text: str
    right: float | None
    tokens: int
    finished: bool
    kl: float | None
    second: Finding | None = None
    """Of the second scorer; None where there is none."""


def read_held_out(path: str | Path) -> list[HeldOut]:
    rows = pq.read_table(path, columns=["prompt", "reference", "verifier"]).to_pylist()
    return [HeldOut(row["prompt"], row["reference"], row["verifier"]) for row in rows]


class Validator:
    """Asks the same held-out prompts whenever it is called. `check` grades with the verifier of the rewards; `stops`:
    ids of the tokens that end an answer; `watching`: the second scorer, of prompts without references."""

    def __init__(
        self,
        rows: Sequence[HeldOut],
        check: Grader,
        settings: Validation,
        tokenizer: Any,
        stops: Collection[int],
        watching: Callable[[Sequence[FreshAnswer]], list[Finding]] | None = None,
    ) -> None:
        self._rows = [row for row in rows[: settings.prompts] for _ in range(settings.samples)]
        self._check, self._settings, self._tokenizer, self._watching = check, settings, tokenizer, watching
        self._stops = sorted(stops)

    def __call__(self, trainer: Trainer) -> dict[str, float]:
        """Metrics named `held_out/...`; what could not be measured is absent."""
        rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
        mine = self._rows[rank::world]
        asked = mine
        if len(mine) * world < len(self._rows) or not mine:  # as many on every rank: one answers a prompt for nothing
            asked = [*mine, self._rows[0]]
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        model: Any = trainer.model
        was_training = model.training
        model.eval()
        try:
            with torch.random.fork_rng(devices=devices), torch.no_grad():
                torch.manual_seed(self._settings.seed + rank)
                answers = self._answer(trainer, asked)[: len(mine)]
        finally:
            model.train(was_training)
        if self._watching is not None:
            pairs = zip(mine, answers, strict=True)
            said = self._watching([FreshAnswer(to_prompt(row.prompt), each.text, each.finished) for row, each in pairs])
            answers = [answer._replace(second=finding) for answer, finding in zip(answers, said, strict=True)]
        return measured(_GATHER(answers))

    def _answer(self, trainer: Trainer, rows: Sequence[HeldOut]) -> list[GradedCompletion]:
        answers: list[GradedCompletion] = []
        for first in range(0, len(rows), BATCH):
            batch = rows[first : first + BATCH]
            prompts, completions = self._generate(trainer, [row.prompt for row in batch])
            texts: list[str] = self._tokenizer.batch_decode(completions, skip_special_tokens=True)
            kl = self._kl(trainer, prompts, completions)
            checks = {
                at: VerifierTask(texts[at], row.reference, row.verifier)
                for at, row in enumerate(batch)
                if row.reference is not None and row.verifier
            }
            graded = dict(zip(checks, self._check(list(checks.values())) if checks else (), strict=True))
            for at, (row, tokens) in enumerate(zip(batch, completions, strict=True)):
                right = graded[at].outcome.score if at in graded else None
                finished = bool(tokens) and tokens[-1] in self._stops
                answers.append(GradedCompletion(str(row.prompt), texts[at], right, len(tokens), finished, kl[at]))
        return answers

    def _generate(
        self, trainer: Trainer, prompts: Sequence[list[dict[str, str]]]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Token ids of the prompts, and of one completion of each up to its end-of-text."""
        texts = [rendered(self._tokenizer, prompt) for prompt in prompts]
        inputs = self._tokenizer(
            texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
        ).to(trainer.accelerator.device)
        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
            config = GenerationConfig(
                max_new_tokens=self._settings.max_completion_tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                pad_token_id=self._tokenizer.pad_token_id,
                eos_token_id=self._stops,
            )
            output: Any = model.generate(**inputs, generation_config=config)
        width = inputs["input_ids"].shape[1]
        asked = [
            ids[mask.bool()].tolist() for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
        ]
        drawn: list[list[int]] = output[:, width:].tolist()
        ends = [next((at for at, token in enumerate(row) if token in self._stops), len(row) - 1) for row in drawn]
        return asked, [row[: end + 1] for row, end in zip(drawn, ends, strict=True)]

    def _kl(
        self, trainer: Trainer, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> list[float | None]:
        """Summed k3 estimate (http://joschu.net/blog/kl-approx.html) of KL(policy, base) over each completion. The base
        is the policy with its adapter off, else the trainer's reference model; None where it keeps neither."""
        model: Any = trainer.accelerator.unwrap_model(trainer.model)
        reference: Any = getattr(trainer, "ref_model", None)
        if not hasattr(model, "disable_adapter") and reference is None:
            return [None] * len(completions)
        estimates: list[float | None] = []
        for first in range(0, len(completions), MICRO_BATCH):
            part = slice(first, first + MICRO_BATCH)
            batch = prompts[part], completions[part], self._tokenizer.pad_token_id
            policy = _log_probabilities(model, *batch)
            with model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext():
                base = _log_probabilities(model if reference is None else reference, *batch)
            for mine, theirs in zip(policy, base, strict=True):
                gap = theirs - mine
                estimates.append(float((gap.exp() - 1 - gap).sum()))
        return estimates


def measured(answers: Sequence[GradedCompletion]) -> dict[str, float]:
    """The metrics of graded answers. `held_out/kl` is per token, `held_out/answer_kl` of a whole answer;
    `held_out/second_error` is the standard error of `held_out/second_score` over prompts."""
    tokens = sum(answer.tokens for answer in answers)
    graded = [answer.right for answer in answers if answer.right is not None]
    apart = [answer.kl for answer in answers if answer.kl is not None]
    texts = completion_statistics([a.text for a in answers], [a.prompt for a in answers])
    answer_metrics = {
        "length": tokens / len(answers),
        "truncated": sum(not answer.finished for answer in answers) / len(answers),
        **{name.removeprefix("text/"): value for name, value in texts.items()},
    }
    if graded:
        answer_metrics["accuracy"] = sum(graded) / len(graded)
    if apart and tokens:
        answer_metrics["kl"] = sum(apart) / tokens
        answer_metrics["answer_kl"] = sum(apart) / len(apart)
    answer_metrics |= _second(answers)
    return {f"held_out/{name}": value for name, value in answer_metrics.items() if not math.isnan(value)}


def _second(answers: Sequence[GradedCompletion]) -> dict[str, float]:
    """The second scorer's mean over prompts, which are the independent units; none where it is silent on most."""
    asked = [(answer.prompt, answer.second.value) for answer in answers if answer.second is not None]
    if not asked:
        return {}
    by_prompt: dict[str, list[float]] = {}
    for prompt, value in asked:
        if value is not None:
            by_prompt.setdefault(prompt, []).append(value)
    silent = sum(value is None for _, value in asked) / len(asked)
    means = [fmean(values) for values in by_prompt.values()]
    if silent > MOST_SILENT:
        return {"second_abstained": silent}
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 1.0
    return {"second_abstained": silent, "second_score": fmean(means), "second_error": error}


def _log_probabilities(
    model: Any, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad: int
) -> list[torch.Tensor]:
    """float32 log-probabilities of every completion's tokens."""
    rows = [[*asked, *completion_ids] for asked, completion_ids in zip(prompts, completions, strict=True)]
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
    taken = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return [row[len(row) - len(completion_ids) :] for row, completion_ids in zip(taken, completions, strict=True)]
