"""Prompt sets as they are published: files of problems with their answers, bare or as a whole solution. Of a list of
answers any is right."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow.parquet as pq

from pipeline.recipe.sources import PromptFields

LAYOUTS = (("problem", "expected_answer"), ("question", "answer"), ("problem", "answer"), ("problem", "solution"))
"""Fields of problem and reference: OpenMathInstruct-2; GSM8K; DeepScaleR; MATH. The first that a set has counts."""
ROWS = 1_000
OPTIONS = ("choices", "options")
"""Fields of a multiple choice, without which its questions cannot be answered."""
LINES = (".jsonl", ".jsonl.gz")
SPLITS = frozenset({"train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval"})
"""Words by which the names of files and folders tell a split."""
UNANSWERED = "unanswered"
"""Model of a row that is a prompt alone, and why it has no label."""


class PromptRow(NamedTuple):
    """`messages` are of role and content."""

    messages: list[dict[str, str]]
    reference: str
    metadata: dict[str, Any]


def read_prompts(path: Path, fields: PromptFields) -> Iterator[PromptRow | str]:
    """The problems of a JSONL file (gzipped or not), one JSON array, a Parquet file, or a folder of JSONL and Parquet
    files; for a row that is left out, why: `unreadable`, `empty_prompt`, `empty_reference`, `duplicate`,
    `contradictory` (another answer to a problem).

    Raises ValueError when there is nothing to read, or the first row lacks a field.
    """
    rows, first, torn = _rows(path, fields.split), None, 0
    for first in rows:
        if first is not None:
            break
        torn += 1
    if first is None:
        raise ValueError(
            f"{path} holds no problem that can be read. Give a JSONL or Parquet file, or a folder of them."
        )
    names = _layout(first, fields)
    if names is None:
        wanted = " or ".join(dict.fromkeys(f"{prompt} and {reference}" for prompt, reference in _candidates(fields)))
        raise ValueError(
            f"{path} has the fields {', '.join(map(str, first)) or 'none'}, and a prompt set has {wanted}. "
            "Name the fields of problem and answer: fields.prompt and fields.reference."
        )
    if beside := [name for name in OPTIONS if first.get(name)]:
        raise ValueError(
            f"{path} has options in its field {', '.join(beside)}. Write them into the problem, the letter into the "
            'answer, and set rewards.verifier.kind to "choice".'
        )
    return _prompts(chain(repeat(None, torn), [first], rows), *names, fields)


def _prompts(
    rows: Iterator[Mapping[str, Any] | None], prompt: str, reference: str, fields: PromptFields
) -> Iterator[PromptRow | str]:
    references: dict[bytes, bytes] = {}
    before = [{"role": "system", "content": fields.system}] if fields.system else []
    for row in rows:
        if row is None:
            yield "unreadable"
            continue
        prompt, reference = _layout(row, fields) or (prompt, reference)  # files of two sets may lie in one folder
        problem, answer = _text(row.get(prompt)), _reference(row.get(reference))
        metadata = {name: row[name] for name in fields.metadata if name in row}
        if not problem or not answer:
            yield "empty_reference" if problem else "empty_prompt"
            continue
        key, value = _digest(" ".join(problem.split())), _digest(answer)
        if key in references:
            yield "duplicate" if references[key] == value else "contradictory"
            continue
        references[key] = value
        messages = [*before, {"role": "user", "content": problem}]
        yield PromptRow(messages, answer, metadata)


def _layout(row: Mapping[str, Any], fields: PromptFields) -> tuple[str, str] | None:
    """The names of the two fields; None where the row lacks them."""
    return next((names for names in _candidates(fields) if all(name in row for name in names)), None)


def _candidates(fields: PromptFields) -> list[tuple[str, str]]:
    return [(fields.prompt or prompt, fields.reference or reference) for prompt, reference in LAYOUTS]


def set_files(path: Path) -> list[Path]:
    """Every file of a set, in name order. Raises ValueError when there is none."""
    if not path.exists():
        raise ValueError(f"There is no prompt set at {path}. Give the path of a file or folder.")
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    files = [file for file in found if file == path or file.name.endswith((*LINES, ".parquet"))]
    if not files:
        raise ValueError(f"{path} holds no JSONL and no Parquet file. Give the file or folder of a prompt set.")
    return files


def _rows(path: Path, split: str | None) -> Iterator[Mapping[str, Any] | None]:
    """Rows of a set; None for a line that is no object."""
    files = _of_split(path, set_files(path), split)
    return chain.from_iterable(_parquet(file) if file.suffix == ".parquet" else _lines(file) for file in files)


def _of_split(path: Path, files: list[Path], split: str | None) -> list[Path]:
    """Of a folder with files of several splits (`train-00000-of-00032.parquet`, `train/1.jsonl`) those of the one."""
    words = {
        file: {word for part in file.relative_to(path).parts for word in re.split(r"[-.]", part)} for file in files
    }
    if split is not None and (named := [file for file in files if split in words[file]]):
        return named
    several = sorted({word for each in words.values() for word in each & SPLITS})
    if several and (split is not None or len(several) > 1):
        none = f"no {split!r}" if split is not None else "the recipe names none"
        raise ValueError(f"{path} has the splits {', '.join(several)} and {none}. Name one: fields.split.")
    return files


def _parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    with pq.ParquetFile(file) as table:
        for batch in table.iter_batches(ROWS):
            yield from batch.to_pylist()


def _lines(file: Path) -> Iterator[Mapping[str, Any] | None]:
    """Of a file that is one JSON array, as DeepScaleR's, its elements; it is read at once."""
    with gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as stream:
        is_array = stream.peek(1)[:1] == b"["
        rows = _loaded(stream.read()) if is_array else map(_loaded, filter(bytes.strip, stream))
        for row in rows if isinstance(rows, list | map) else [None]:
            yield cast(Mapping[str, Any], row) if isinstance(row, dict) else None


def _loaded(text: bytes) -> Any:
    """None for what is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _reference(value: Any) -> str:
    """A text, or the JSON of a list of texts, of which any is right."""
    if isinstance(value, list) and value and all(isinstance(each, str) for each in cast(list[Any], value)):
        return json.dumps(value, ensure_ascii=False)
    return _text(value)


def _text(value: Any) -> str:
    """Numbers are answers too; anything else is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) else ""


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
