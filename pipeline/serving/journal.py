"""The journal of answers: what was paid for is kept, line by line, and found again by who asks the same.

One file for each model and protocol (both by digest). A kill loses the answers in flight and no other: each line is
one write, and a line that was cut is cut off at the next opening. One process writes at a time; a second one waits, and
then finds what the first one paid for. An error is no answer and is not kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from pipeline.core import layout
from pipeline.core.removal import Removal, of_lines
from pipeline.core.storage import Record, Store, digest_json
from pipeline.core.unfinished import held
from pipeline.serving.inference import Answer, Decoding, Messages


class AnswerProtocol(Record):
    """What decides an answer beside weights, messages and the sample's number; its digest names the journal."""

    decoding: Decoding
    temperature: float
    max_completion_tokens: int
    seed: int

    def digest(self) -> str:
        return digest_json(self)


class AnswerLine(Record):
    """An answer, and the item that it is about: by it the line can be found and erased."""

    protocol: str
    item: str
    answer: Answer


def answer_key(model: str, protocol: str, item: str, messages: Messages, sample: int) -> str:
    """Identity of one answer. `model`, `protocol`: digests. Other items of the suite are no part of it."""
    return digest_json([model, protocol, item, messages, sample])


class AnswerJournal:
    """The answers of one model under one protocol, by key, and the file that keeps them."""

    def __init__(self, path: Path, descriptor: int, protocol: str) -> None:
        self._path, self._descriptor, self._protocol = path, descriptor, protocol
        self.answers = self._read()

    def add(self, item: str, answer: Answer) -> None:
        """Keep an answer. Raises OSError where the disk does not take it whole; it is then asked again."""
        line = AnswerLine(protocol=self._protocol, item=item, answer=answer).model_dump_json() + "\n"
        content = line.encode()
        try:
            written = os.write(self._descriptor, content)
        except OSError as error:
            problem = f"{self._path} cannot be written ({error.strerror})"
            raise OSError(f"{problem}. Make room on its disk, and evaluate again.") from error
        if written != len(content):
            raise OSError(f"{self._path} took a part of a line alone: make room on its disk and evaluate again.")
        self.answers[answer.key] = answer

    def _read(self) -> dict[str, Answer]:
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._descriptor, whole)
        answers: dict[str, Answer] = {}
        for number, text in enumerate(content[:whole].split(b"\n")[:-1], start=1):
            try:
                line = AnswerLine.model_validate_json(text)
            except ValidationError as error:
                raise ValueError(
                    f"Line {number} of {self._path} is no answer of this journal. Move the file away: what it holds is "
                    "then asked again."
                ) from error
            if line.protocol != self._protocol:
                raise ValueError(
                    f"Line {number} of {self._path} was answered under the protocol {line.protocol[:12]}, not "
                    f"{self._protocol[:12]}. Move the file away: what it holds is then asked again."
                )
            answers[line.answer.key] = line.answer
        return answers


@contextmanager
def open_journal(
    store: Store, model: str, protocol: AnswerProtocol, folder: str = layout.ANSWERS
) -> Generator[AnswerJournal]:
    """The journal of a model (by digest) in `folder`, held until the block ends; waits for who holds it now."""
    digest = protocol.digest()
    path = store.path(layout.answers(model, digest, folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    with held(path) as descriptor:
        description = path.with_suffix(".json")
        if not description.exists():  # for people: the file's name alone says nothing
            description.write_text(json.dumps(protocol.model_dump(mode="json"), indent=2) + "\n")
        yield AnswerJournal(path, descriptor, digest)


def removals(store: Store, items: Collection[str], folder: str = layout.ANSWERS) -> Iterator[Removal]:
    """The answers to these items in every journal of `folder`."""

    def goes(line: bytes) -> bool:
        try:
            return AnswerLine.model_validate_json(line).item in items
        except ValidationError:  # a line that a kill cut off
            return any(f'"item":{json.dumps(item)}'.encode() in line for item in items)

    for path in sorted(store.path(folder).glob("*/*.jsonl")):
        yield from of_lines(store, path, goes)
