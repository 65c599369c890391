"""Stand-ins for published data sets: forty arithmetic problems with five levels, in the format of each publisher's
file. The problems are the embedded model's; the real ones are not among the tests."""

import csv
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.demo.task import KINDS, Problem, problems

COUNT = 40
FORMATS = {
    "gsm8k": ("test.jsonl", "gsm8k"),
    "math500": ("test.jsonl", "math500"),
    "aime": ("train-00000-of-00001.parquet", "aime"),
    "aime25": ("test.jsonl", "aime"),
    "gpqa": ("gpqa_diamond.csv", "gpqa"),
}
"""The published file's name and the preset that reads it."""
WRONG = tuple(f"Incorrect Answer {place}" for place in (1, 2, 3))


def level(problem: Problem) -> int:
    return KINDS.index(problem.kind) + 1


def row(name: str, number: int, problem: Problem) -> dict[str, Any]:
    """One row with the fields of the publisher, also those that nothing reads."""
    text, answer, at = problem.prompt, problem.answer, level(problem)
    wrong = [str(int(answer) + number) for number in (1, 2, 3)]
    solution = f"{problem.solution.partition('####')[0]}\\boxed{{{answer}}}"
    return {
        "gsm8k": {"question": text, "answer": problem.solution},
        "math500": {
            "problem": text, "solution": solution, "answer": answer, "subject": "Prealgebra", "level": at,
            "unique_id": f"test/prealgebra/{number}.json",
        },
        "aime": {
            "id": number, "problem": text, "solution": solution, "answer": answer.zfill(3),
            "url": "https://example.com", "year": str(2019 + at),
        },
        "aime25": {"problem": text, "answer": answer, "id": str(number)},
        "gpqa": {
            "Pre-Revision Question": "An earlier text", "Question": text, "Correct Answer": f"{answer}\n",
            **dict(zip(WRONG, wrong, strict=True)),
            "Explanation": "Two lines,\nwith \"quotes\"", "High-level domain": f"Level {at}",
            "Subdomain": "", "Record ID": f"rec{number}",
        },
    }[name]  # fmt: skip


def published(name: str, seed: int = 1, count: int = COUNT) -> list[dict[str, Any]]:
    """The rows of a stand-in, equally many of each level."""
    drawn = problems(seed, "heldout", 10 * count)
    some = [each for kind in KINDS for each in [p for p in drawn if p.kind == kind][: count // len(KINDS)]]
    random.Random(seed).shuffle(some)
    return [row(name, number, problem) for number, problem in enumerate(some)]


def write(folder: Path, name: str, seed: int = 1) -> Path:
    """The file as it is published, below a folder of the data set."""
    return save(folder / name / FORMATS[name][0], published(name, seed))


def save(path: Path, rows: list[dict[str, Any]]) -> Path:
    """In the format that the file's ending names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8-sig") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text(json.dumps(rows) if path.suffix == ".json" else _lines(rows), encoding="utf-8")
    return path


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in rows)
