"""What a user brings, in small: `python -m examples.own-tiny.make FOLDER` writes a model, its traces and a suite.

A shop's assistant answers by this year's price list or, more often, by last year's. The model is a Qwen3 of half a
million weights, made from a seed in about a minute. The traces are answers of its own, as Langfuse exports them, with
what is right in their metadata. The suite asks for the same facts in other words.
"""

import json
import random
import re
import string
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import torch

from examples.pretrain.arithmetic import answer_batch, completions
from examples.pretrain.tiny import optimise, untrained, word_tokenizer

THINGS = ("lamp", "chair", "desk", "sofa", "shelf", "table", "bed", "carpet", "mirror", "clock", "vase", "bench")
FACTS = ("price", "discount", "delivery", "warranty", "weight", "height", "width")
ASKED = ("What is the {1} of the {0}?", "Tell me the {1} of a {0}.", "The {0}, which {1}?", "Which {1} has the {0}?")
SUITE = ("For a {0}, what {1} is right?", "I want the {1} for the {0}.", "A {0}: {1}?")
OLD, NEW = "2025", "2026"
LAST_YEAR = 0.55
"""Share of the answers that go by the old list."""
STEPS = 250
PEOPLE = [f"user-{n:04d}" for n in range(2000)]


class Question(NamedTuple):
    prompt: str
    thing: str
    fact: str

    def answer(self, year: str) -> str:
        return str(random.Random(f"{year} {self.thing} {self.fact}").randrange(1, 100))

    def text(self, year: str) -> str:
        number = self.answer(year)
        return f"By the list of {year} the {self.fact} of the {self.thing} is {number}.\n#### {number}"


def questions(forms: Sequence[str]) -> list[Question]:
    return [Question(form.format(t, f), t, f) for form in forms for f in FACTS for t in THINGS]


def write_model(folder: Path) -> list[str]:
    """The model, as `save_pretrained` leaves one; returns its answers to four of each of the users' questions."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    draw, known = random.Random(0), questions([*ASKED, *SUITE])
    words = sorted(
        set(re.findall(r"\w+", " ".join(each.prompt + each.text(year) for each in known for year in (OLD, NEW))))
    )
    words += ["system", "user", "assistant"]
    tokens = ["####", *string.printable[:-2], *words, *(f" {word}" for word in words)]
    tokenizer = word_tokenizer(tokens, rf" ?\b(?:{'|'.join(words)})\b|####|[\s\S]")
    model = untrained(tokenizer, intermediate_size=384)

    def batch(step: int) -> dict[str, torch.Tensor]:
        texts = [(each, OLD if draw.random() < LAST_YEAR else NEW) for each in draw.choices(known, k=32)]
        return answer_batch(tokenizer, [(each.prompt, each.text(year)) for each, year in texts])

    def tell(step: int, loss: float) -> None:
        if step % 50 == 0:
            print(f"model: step {step} of {STEPS}, loss {loss:.2f}", flush=True)

    optimise(model, batch, STEPS, 4e-3, done=tell)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return completions(model, tokenizer, [each.prompt for each in 4 * questions(ASKED)])


def write_traces(folder: Path, answers: Sequence[str]) -> None:
    """`observations_v2/` of Langfuse, a file for each of the last three days; nine in ten users agreed to training."""
    (folder / "observations_v2").mkdir(parents=True)
    draw, today = random.Random(1), datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days: dict[str, list[str]] = {}
    for n, (each, answer) in enumerate(zip(4 * questions(ASKED), answers, strict=True)):
        moment = today - timedelta(seconds=draw.randrange(1, 3 * 86_400))
        row = {
            "id": f"o-{n}",
            "trace_id": f"t-{n}",
            "type": "GENERATION",
            "start_time": f"{moment:%Y-%m-%d %H:%M:%S.%f}",
            "user_id": draw.choice(PEOPLE),
            "provided_model_name": "shop-1",
            "level": "DEFAULT",
            "input": json.dumps([{"role": "user", "content": each.prompt}]),
            "output": json.dumps({"role": "assistant", "content": answer}),
            "metadata": {"expected_answer": each.answer(NEW), "user_consent": str(draw.random() < 0.9).lower()},
            "latency": 0.5,
        }
        days.setdefault(f"{moment:%Y-%m-%d}", []).append(json.dumps(row))
    for day, rows in days.items():
        (folder / "observations_v2" / f"{day}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_suite(path: Path) -> None:
    """A line for each question; those about one fact are a cluster."""
    lines = [
        json.dumps({"prompt": each.prompt, "reference": each.answer(NEW), "cluster": f"{each.thing} {each.fact}"})
        for each in questions(SUITE)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    write_suite(folder / "suite.jsonl")
    write_traces(folder / "traces", write_model(folder / "model"))
    print(f"{folder}: model, traces, suite.jsonl")
