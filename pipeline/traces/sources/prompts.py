"""Reader of a prompt set: every problem is a row without an answer. The whole set is one part, for a problem counts
once wherever in the set it stands."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, time
from string import ascii_uppercase
from typing import Any, NamedTuple, cast

import msgspec

from pipeline.core.storage import digest_json
from pipeline.recipe.formats import formats
from pipeline.recipe.rewards import Verifier
from pipeline.recipe.sources import PromptsSource
from pipeline.traces.batch import REFERENCE_KEY
from pipeline.traces.detect import format_of, wrong_kind
from pipeline.traces.records import Reason
from pipeline.traces.rows import UNANSWERED, Message, Rejection, Rows, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.fields import put
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.protocol import Digest, SourcePart
from pipeline.traces.sources.shapes import at, steps
from pipeline.traces.sources.tables import FORMATS, first_records, records

BESIDE = ("choices", "options", "context", "passage", "article", "image", "images")
"""Fields without which a question beside them cannot be answered."""
SPLITS = frozenset({"train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval"})
"""Words by which the names of files and folders tell a split."""


class PromptLayout(NamedTuple):
    """Paths in a row."""

    prompt: str
    reference: str
    options: str | None = None


class Prompts:
    """A row's line is counted on from file to file."""

    def __init__(self, uri: str, section: PromptsSource) -> None:
        self.label = uri
        self._section, self._fields, self._files = section, section.fields, Files(uri)

    def parts(self) -> list[SourcePart]:
        files = self._set_files()
        # What the section says decides the rows and their day, so another section is another version of the same files.
        version = digest_json([[each[:2] for each in files], self._section.model_dump(mode="json", exclude={"uri"})])
        return [SourcePart(self.label.rstrip("/").rpartition("/")[2], version, sum(each.size for each in files))]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        references, last, day = dict[bytes, bytes](), 0, self._section.day.isoformat()
        for file in self._set_files():
            digest.update(f"{file.name}\0".encode())
            layout, before = self._layout(file), last
            paths = [*filter(None, layout), *self._fields.metadata]
            for batch in records(self._files, file, digest, paths):
                rows = Rows()
                for rejection in batch.rejected:
                    rows.rejected.append(msgspec.structs.replace(rejection, line=before + rejection.line, day=day))
                for line, row in batch.records:
                    last = before + line
                    put(rows, self._row(row, layout, last, references))
                yield rows

    def _row(
        self, row: Mapping[str, Any], layout: PromptLayout, line: int, references: dict[bytes, bytes]
    ) -> Trace | Rejection:
        """`references`: digests of the problems so far and of their answers."""

        def left_out(reason: Reason, detail: str) -> Rejection:
            return Rejection(line, reason, None, self._section.day.isoformat(), detail)

        problem, answer = at(row, layout.prompt), at(row, layout.reference)
        messages, reference = _messages(problem, self._fields.system), _reference(answer)
        if layout.options and messages:
            messages, reference = _with_options(messages, at(row, layout.options), answer)
        if not messages:
            odd = "the problem is neither a text nor messages of text that end in a user's"
            return left_out(Reason.SCHEMA, "without a problem" if _is_nothing(problem) else odd)
        if not reference:
            odd = "the answer is no text, number, list of texts or option"
            return left_out(Reason.SCHEMA, "without an answer" if _is_nothing(answer) else odd)
        asked = json.dumps([[each["role"], " ".join(each["content"].split())] for each in messages])
        key, value = _digest(asked), _digest(reference)
        if (known := references.setdefault(key, value)) is not value:
            return left_out(Reason.DUPLICATE, f"the problem came before{', with another answer' * (known != value)}")
        kept = {name: row[name] for name in self._fields.metadata if name in row}
        kept |= {Verifier.kind_key: "choice"} if layout.options else {}
        metadata = {**kept, REFERENCE_KEY: reference, "licence": self._section.licence}
        id = f"prompt-{hashlib.sha256(json.dumps([messages, reference]).encode()).hexdigest()[:32]}"
        moment, shown = datetime.combine(self._section.day, time(), UTC), json.dumps(metadata, default=str)
        return Trace(id, id, moment, UNANSWERED, None, None, messages, "", line, metadata=shown)

    def _layout(self, file: SourcePart) -> PromptLayout:
        """By the file's first row: the recipe's fields, else those of the known format. Raises ValueError where they
        are not there, or leave out what a problem needs."""
        first = next(iter(first_records(self._files, file, 1)), None)
        if first is None:
            return PromptLayout("", "")  # without rows
        given, known = self._fields, formats().get(format_of(first))
        fields = known.fields.items() if known and known.kind == "prompts" else ()
        usual = {name: path for name, path in fields if isinstance(path, str)}
        prompt, reference = given.prompt or usual.get("prompt"), given.reference or usual.get("reference")
        if not (prompt and reference) or any(not {path, steps(path)[0]} & first.keys() for path in (prompt, reference)):
            raise ValueError(
                f"{file.name} in {self.label} has the fields {', '.join(first) or 'none'}. Name those of problem and "
                f"answer: fields.prompt and fields.reference. {wrong_kind(self._section)}".strip()
            )
        options = given.options or usual.get("options")
        options = None if options in given.metadata else options
        if beside := [name for name in BESIDE if first.get(name) and name not in (prompt, options, *given.metadata)]:
            raise ValueError(
                f"{file.name} in {self.label} has the field {beside[0]} beside its problem. Name options in "
                "fields.options, and write a context into the problem; where a problem holds it already, name it in "
                "fields.metadata."
            )
        if isinstance(held := at(first, reference), dict):
            inner = " or ".join(f"{reference}.{key}" for key in cast(Mapping[str, Any], held))
            raise ValueError(f"{file.name} has an object in {reference}. Name the answer: fields.reference: {inner}.")
        return PromptLayout(prompt, reference, options)

    def _set_files(self) -> list[SourcePart]:
        """Of a folder with files of several splits (`train-00000-of-00032.parquet`, `train/1.jsonl`) those of the one.
        Raises ValueError where there is none, or none is named."""
        files, split = self._files.parts(suffixes=FORMATS), self._fields.split
        if not files:
            raise ValueError(f"{self.label} holds no {', '.join(FORMATS)}. Give the file or folder of a prompt set.")
        if len(files) == 1 and self.label.endswith(files[0].name):
            return files
        words = {file: set(re.split(r"[-./]", file.name)) for file in files}
        if split is not None and (named := [file for file in files if split in words[file]]):
            return named
        several = sorted({word for each in words.values() for word in each & SPLITS})
        if several and (split is not None or len(several) > 1):
            none = f"no {split!r}" if split is not None else "the recipe names none"
            raise ValueError(f"{self.label} has the splits {', '.join(several)} and {none}. Name one: fields.split.")
        return files


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


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
