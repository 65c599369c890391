"""The runner: one model answers every item of a suite, and every answer is graded.

Owns the protocol that two compared runs must share and the per-sample outcomes. Refuses to average anything: a check
that timed out, failed or had no usable reference is an outcome of its own, never a silent score of 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from evals.suites import Suite
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import VERSION, Grade, Outcome
from pipeline.serving.sample import Decoding, Sampling, Server
from pipeline.storage import ModelRef, Record, digest_json

Grader = Callable[[Sequence[tuple[str, str]]], list[Grade]]
"""Grades (completion, reference) pairs; the result follows the input."""


class Protocol(Record):
    """Everything but the weights that decides an outcome. Runs are comparable when their digests are equal."""

    suite: str
    suite_digest: str
    template_digest: str
    sampling: Sampling
    verifier: str
    decoding: Decoding | None = None
    """Of the process that served; None in evidence that is older than this field."""

    def digest(self) -> str:
        return digest_json(self)


class EvalSample(Record):
    """One graded completion. `finished` is False when it was cut at the token limit."""

    text: str
    tokens: int
    finished: bool
    outcome: Outcome
    answer: str


class ItemResult(Record):
    """All samples of one item, in the order in which they were drawn."""

    id: str
    samples: tuple[EvalSample, ...]


class EvalArm(Record):
    """One model's run over a suite."""

    model: ModelRef
    protocol: Protocol
    results: tuple[ItemResult, ...]


def sampling(section: Evaluation) -> Sampling:
    """The sampling plan of the recipe: both arms draw with the same seed."""
    return Sampling(
        samples=section.samples_per_item,
        temperature=section.temperature,
        max_completion_tokens=section.max_completion_tokens,
        seed=section.seed,
    )


def run(model: ModelRef, suite: Suite, plan: Sampling, serve: Server, grader: Grader) -> EvalArm:
    """Sample `plan.samples` completions of every item and grade them.

    Raises ValueError when the server or the grader answers with another number of results than it was asked for:
    then nothing says which completion belongs to which item.
    """
    items = suite.items
    served = serve(model, [item.messages for item in items], plan)
    drawn = served.completions
    if [len(completions) for completions in drawn] != [plan.samples] * len(items):
        raise ValueError(
            f"The server returned {sum(map(len, drawn))} completions of {len(drawn)} prompts; it was asked for "
            f"{plan.samples} of each of {len(items)}. Make it return one full list for each prompt."
        )
    pairs = [(c.text, item.reference) for item, completions in zip(items, drawn, strict=True) for c in completions]
    grades = grader(pairs)
    if len(grades) != len(pairs):
        raise ValueError(f"The grader returned {len(grades)} grades of {len(pairs)} pairs. Make it grade each pair.")
    graded = iter(grades)
    results = (
        ItemResult(
            id=item.id,
            samples=tuple(
                EvalSample(
                    text=c.text, tokens=c.tokens, finished=c.finished, outcome=grade.outcome, answer=grade.answer
                )
                for c, grade in zip(completions, graded, strict=False)  # `graded` runs on to the next item
            ),
        )
        for item, completions in zip(items, drawn, strict=True)
    )
    protocol = Protocol(
        suite=suite.name,
        suite_digest=suite.digest(),
        template_digest=template_digest(model),
        sampling=plan,
        verifier=VERSION,
        decoding=served.decoding,
    )
    return EvalArm(model=model, protocol=protocol, results=tuple(results))


def template_digest(model: ModelRef) -> str:
    """sha256 of the model's chat template, wherever its tokenizer keeps it; of '' when it has none."""
    file, config = Path(model.uri, "chat_template.jinja"), Path(model.uri, "tokenizer_config.json")
    template = ""
    if file.is_file():
        template = file.read_text()
    elif config.is_file():
        template = str(json.loads(config.read_text()).get("chat_template") or "")
    return hashlib.sha256(template.strip().encode()).hexdigest()
