"""Answers a second of the default engine on a GPU, and whether an answer depends on what it is drawn beside.

A gate compares two models under the same seeds, and a step that was killed asks only for what is missing: in other
batches. Their shapes choose other kernels, whose sums round differently.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pipeline.demo.task import problems
from pipeline.recipe.serving import TransformersServing
from pipeline.serving.inference import Answer, AnswerRequest, Sampling, answer_seed
from pipeline.serving.transformers_engine import TransformersEngine
from pipeline.storage import model_ref

BATCHES = (64, 64, 16)
"""Answers at once: twice the same, and once others."""


def serve(base: Path, questions: int, tokens: int) -> dict[str, Any]:
    """Tokens a second by batch size, and the shares of answers that two sessions gave to the letter."""
    asked = [
        AnswerRequest(
            key=str(number),
            messages=[{"role": "user", "content": problem.prompt}],
            seed=answer_seed(0, str(number), 0),
        )
        for number, problem in enumerate(problems(7, "heldout", questions))
    ]
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

    def same(one: dict[str, str], other: dict[str, str]) -> float:
        return sum(one[key] == other[key] for key in one) / len(one)

    return {
        "tokens_per_s": rates,
        "same_in_the_same_batches": same(answers[0], answers[1]),
        "same_in_other_batches": same(answers[0], answers[2]),
    }
