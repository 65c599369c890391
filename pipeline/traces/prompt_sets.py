"""Prompt sets as they are published: files of problems, as texts or messages, with their answers, bare or as a whole
solution. Of a list of answers any is right."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple, cast

import pyarrow.parquet as pq

from pipeline.recipe.sources import PromptFields
from pipeline.traces.rows import Message
from pipeline.traces.sources import chat
from pipeline.traces.sources.paths import at, steps

LAYOUTS = (
    *(("problem", "expected_answer"), ("question", "answer"), ("problem", "answer"), ("problem", "solution")),
    *(("prompt", "reward_model.ground_truth"), ("prompt", "solution"), ("messages", "reference_answer")),
)
"""Paths of problem and reference: OpenMathInstruct-2; GSM8K; DeepScaleR; MATH; verl; TRL; OpenAI's reinforcement files.
The first that a set has counts."""
ROWS = 1_000
OPTIONS = ("choices", "options")
CONTEXTS = ("context", "passage", "article", "image", "images")
"""Fields without which a question cannot be answered."""
LINES = (".jsonl", ".jsonl.gz")
SPLITS = frozenset({"train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval"})
"""Words by which the names of files and folders tell a split."""
UNANSWERED = "unanswered"
"""Model of a row that is a prompt alone, and why it has no label."""


class PromptRow(NamedTuple):
    messages: list[Message]
    reference: str
    metadata: dict[str, Any]


def read_prompts(path: Path, fields: PromptFields) -> Iterator[PromptRow | str]:
    """The problems of a JSONL file (gzipped or not), one JSON array, a Parquet file, or a folder of JSONL and Parquet
    files; for a row that is left out, why: `unreadable`, `empty_prompt`, `strange_prompt` (neither a text nor messages
    of text that end in a user's), `empty_reference`, `strange_reference`, `duplicate`, `contradictory` (another answer
    to a problem).

    Raises ValueError when there is nothing to read, or the first row lacks a field or has one that is not read.
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
    for kinds, way in ((OPTIONS, "Name it in fields.options"), (CONTEXTS, "Write it into the problem")):
        if beside := [name for name in kinds if first.get(name) and name not in (fields.options, *fields.metadata)]:
            raise ValueError(
                f"{path} has the field {beside[0]} beside its problem. {way}; or, where a problem holds it already, "
                "name it in fields.metadata."
            )
    if isinstance(held := at(first, names[1]), dict):
        inner = " or ".join(f"{names[1]}.{key}" for key in cast(Mapping[str, Any], held))
        raise ValueError(f"{path} has an object in {names[1]}. Name what is right in fields.reference: {inner}.")
    return _prompts(chain(repeat(None, torn), [first], rows), *names, fields)


def _prompts(
    rows: Iterator[Mapping[str, Any] | None], prompt: str, reference: str, fields: PromptFields
) -> Iterator[PromptRow | str]:
    references: dict[bytes, bytes] = {}
    for row in rows:
        if row is None:
            yield "unreadable"
            continue
        prompt, reference = _layout(row, fields) or (prompt, reference)  # files of two sets may lie in one folder
        problem, answer = at(row, prompt), at(row, reference)
        messages, right = _messages(problem, fields.system), _reference(answer)
        if fields.options and messages:
            messages, right = _with_options(messages, at(row, fields.options), answer)
        if not messages or not right:
            side, value = ("reference", answer) if messages else ("prompt", problem)
            nothing = value is None or (isinstance(value, str) and not value.strip())
            yield f"{'empty' if nothing else 'strange'}_{side}"
            continue
        asked = json.dumps([[each["role"], " ".join(each["content"].split())] for each in messages])
        key, value = _digest(asked), _digest(right)
        if key in references:
            yield "duplicate" if references[key] == value else "contradictory"
            continue
        references[key] = value
        yield PromptRow(messages, right, {name: row[name] for name in fields.metadata if name in row})


def _layout(row: Mapping[str, Any], fields: PromptFields) -> tuple[str, str] | None:
    """The paths of the two fields; None where the row lacks them."""

    def has(path: str) -> bool:
        return path in row or str(steps(path)[0]) in row

    return next((names for names in _candidates(fields) if all(map(has, names))), None)


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


def _messages(value: Any, system: str | None) -> list[Message]:
    """A problem's messages; [] where it is neither a text nor messages of text that end in a user's."""
    messages: list[Message] = [{"role": "user", "content": text}] if (text := _text(value)) else []
    listed = cast(list[Any], value) if isinstance(value, list) else []
    if listed and all(isinstance(each, dict) and "role" in each for each in listed):
        with suppress(RecursionError):
            read = chat.parse(listed, "user")
            messages = [] if read.has_payload else read.messages
    if not messages or messages[-1]["role"] != "user" or not messages[-1]["content"]:
        return []
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _with_options(messages: list[Message], options: Any, answer: Any) -> tuple[list[Message], str]:
    """The messages with lettered options below the last one, and the letter that is right: `answer` is it, the text of
    an option, or its place from 0 among options of text. "" for any other."""
    listed = cast(list[Any], options) if isinstance(options, list) else []
    texts = [_text(each) for each in listed]
    by_place = type(answer) is int and all(isinstance(each, str) for each in listed)
    right = texts[answer] if by_place and 0 <= answer < len(texts) else _text(answer)
    lettered = dict(zip(ascii_uppercase, texts, strict=False))
    letters = (
        [right] if right in lettered and right not in texts else [each for each in lettered if lettered[each] == right]
    )
    shown = "\n".join(f"{letter}) {text}" for letter, text in lettered.items())
    last = {**messages[-1], "content": f"{messages[-1]['content']}\n\n{shown}"}
    return [*messages[:-1], last], letters[0] if len(letters) == 1 else ""


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
