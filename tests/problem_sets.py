"""The sets of problems that the seeds train on, in small and as their authors publish them, and a model with random
weights whose words they are."""

import random
import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import NamedTuple

from tests.evals.published import save


class Problem(NamedTuple):
    prompt: str
    answer: str
    level: int

    @property
    def solution(self) -> str:
        return f"so it is {self.answer}"


def problems(count: int, things: tuple[str, ...]) -> list[Problem]:
    """All different, in a seeded order; of each thing there are about 200."""
    every = [
        Problem(f"{name} has {a} {what} and buys {b} . How many {what} has {name} ?", str(a + b), 1 + a % 5)
        for name, what, a, b in product(("Ada", "Max", "Eva", "Tom"), things, range(10), range(10))
        if 0 < a + b < 10
    ]
    return random.Random(0).sample(every, count)


TRAINED = problems(600, ("pears", "books", "coins", "cups"))
ASKED = problems(60, ("trees", "boats"))
"""Nothing that is near one of the others."""


def write_gsm8k(path: Path, rows: Iterable[Problem]) -> Path:
    return save(path, [{"question": each.prompt, "answer": f"{each.solution}\n#### {each.answer}"} for each in rows])


def write_deepscaler(path: Path, rows: Iterable[Problem]) -> Path:
    """One JSON array."""
    return save(path, [{"problem": each.prompt, "answer": each.answer, "solution": each.solution} for each in rows])


def write_math(path: Path, rows: Iterable[Problem]) -> Path:
    """A file of MATH's training problems: the answer stands in the solution."""
    boxed = [
        {"problem": each.prompt, "level": f"Level {each.level}", "type": "Algebra",
         "solution": f"so it is $\\boxed{{{each.answer}}}$"}
        for each in rows
    ]  # fmt: skip
    return save(path, boxed)


def write_math500(path: Path, rows: Iterable[Problem]) -> Path:
    written = [
        {"problem": each.prompt, "solution": each.solution, "answer": each.answer, "subject": "Algebra",
         "level": each.level, "unique_id": f"test/algebra/{number}.json"}
        for number, each in enumerate(rows)
    ]  # fmt: skip
    return save(path, written)


def write_aime(path: Path, rows: Iterable[Problem]) -> Path:
    """Parquet, whose answers have three digits."""
    columns = [
        {"id": number, "problem": each.prompt, "solution": each.solution, "answer": each.answer.zfill(3),
         "url": "https://example.com", "year": "2024"}
        for number, each in enumerate(rows)
    ]  # fmt: skip
    return save(path, columns)


def write_labelled(folder: Path, rows: Iterable[Problem]) -> Path:
    """Two answers to each problem, with the reward of a stage before."""
    columns = [
        {"input": each.prompt, "output": f"{each.solution}\n#### {answer}", "final_reward": reward}
        for each in rows
        for answer, reward in ((each.answer, 0.9), ("0", 0.1))
    ]
    save(folder / "part-0.parquet", columns)
    return folder


def write_openmathinstruct(folder: Path, rows: Iterable[Problem]) -> Path:
    """`data/train_1M-00000-of-00001.parquet` and `data/train-...`, with several solutions of each problem."""
    table = [
        {"problem": each.prompt, "generated_solution": f"{words} {each.solution}", "expected_answer": each.answer,
         "problem_source": "augmented_gsm8k"}
        for each in rows
        for words in ("and", "so")
    ]  # fmt: skip
    for split in ("train", "train_1M"):
        save(folder / "data" / f"{split}-00000-of-00001.parquet", table)
    return folder


def write_own(path: Path, rows: Iterable[Problem]) -> Path:
    """In the project's own fields."""
    return save(path, [{"prompt": each.prompt, "reference": each.answer} for each in rows])


WORD = r"\n#### \d|\\boxed\{\d\}| ?[A-Za-z]+|[\s\S]"


def random_model(folder: Path) -> Path:
    """A model with random weights whose tokens are the words of all the problems, and the ways to give an answer: it
    learns nothing in a few steps, but about one in ten of its answers is right."""
    import torch

    from examples.pretrain.tiny import untrained, word_tokenizer

    answers = "".join(f"\n#### {digit}\\boxed{{{digit}}}{digit}" for digit in range(10))
    texts = [f"{each.prompt} {each.solution}" for each in (*TRAINED, *ASKED)]
    tokens = {token for text in (*texts, answers, "\nsystem\nuser\nassistant\n") for token in re.findall(WORD, text)}
    tokenizer = word_tokenizer(sorted(tokens), WORD)
    torch.manual_seed(0)
    untrained(tokenizer, intermediate_size=96).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
