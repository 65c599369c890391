"""Answers a second of the default engine on a GPU, and whether an answer depends on what it is drawn beside, or on the
kernels of attention that drew it.

A gate compares two models under the same seeds, and a step that was killed asks only for what is missing: in other
batches. Their shapes choose other kernels, whose sums round differently.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pipeline.core.storage import model_ref
from pipeline.demo.task import problems
from pipeline.recipe.serving import TransformersServing
from pipeline.serving.inference import Answer, AnswerRequest, Sampling, answer_seed
from pipeline.serving.transformers_engine import TransformersEngine

BATCHES = (64, 64, 16)
"""Answers at once: twice the same, and once others."""

KERNELS = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
ATTENTION = {"all": KERNELS, "without cuDNN's": KERNELS[1:], "the plain formula": KERNELS[-1:]}
"""Kernels that PyTorch may choose from, as it names them."""


def serve(base: Path, questions: int, tokens: int) -> dict[str, Any]:
    """Tokens a second by batch size, and the shares of answers that two sessions gave to the letter."""
    asked = _asked(questions)
    sampling, model = Sampling(max_completion_tokens=tokens), model_ref(base)
    rates: dict[str, float] = {}
    answers: list[dict[str, str]] = []
    for size in BATCHES:
        drawn: list[Answer] = []
        engine = TransformersEngine(TransformersServing(batch_size=size), lambda line: None)
        with engine.open("champion", model) as session:
            session.answer(asked[:size], Sampling(max_completion_tokens=2), lambda answer: None)  # weights, kernels
            begun = time.monotonic()
            session.answer(asked, sampling, drawn.append)
            rates[str(size)] = round(sum(each.tokens for each in drawn) / (time.monotonic() - begun), 1)
        answers.append({each.key: each.text for each in drawn})
    return {
        "tokens_per_s": rates,
        "same_in_the_same_batches": _same(answers[0], answers[1]),
        "same_in_other_batches": _same(answers[0], answers[2]),
    }


def attention(base: Path, questions: int, tokens: int) -> dict[str, dict[str, float]]:
    """By ATTENTION, the share of answers that two draws of one batch in this process give alike, and their seconds."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from pipeline.serving.loaded import LoadedModel

    loaded, asked = LoadedModel(str(base), questions), _asked(questions)
    sampling = Sampling(max_completion_tokens=tokens)
    list(loaded.answers(asked, Sampling(max_completion_tokens=2)))
    results: dict[str, dict[str, float]] = {}
    for name, allowed in ATTENTION.items():
        draws: list[dict[str, str]] = []
        took: list[float] = []
        for _ in range(2):
            begun = time.monotonic()
            with sdpa_kernel([SDPBackend.__members__[kernel] for kernel in allowed]):
                draws.append({each.key: each.text for each in loaded.answers(asked, sampling)})
            took.append(round(time.monotonic() - begun, 2))
        results[name] = {"same": _same(*draws), "first_s": took[0], "second_s": took[1]}
    return results


def _asked(questions: int) -> list[AnswerRequest]:
    return [
        AnswerRequest(
            key=str(number),
            messages=[{"role": "user", "content": problem.prompt}],
            seed=answer_seed(0, str(number), 0),
        )
        for number, problem in enumerate(problems(7, "heldout", questions))
    ]


def _same(one: dict[str, str], other: dict[str, str]) -> float:
    return sum(one[key] == other[key] for key in one) / len(one)
