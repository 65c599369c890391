"""Makes one columnar batch of decoded traces, with what their metadata says (consent, region, confidentiality,
reference) and a content key. A row that Arrow cannot hold (no Unicode, a number beyond 64 bits) is rejected alone."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from pipeline.recipe.sources import MODELS
from pipeline.recipe.traces import Answers, Traces
from pipeline.traces.arrow import pc
from pipeline.traces.records import Reason
from pipeline.traces.rows import FEEDBACK, MESSAGE, SCHEMA, SEEN, Message, Rejection, Trace
from pipeline.traces.sources.shapes import decoded

BATCH = pa.schema([*SCHEMA, *SEEN])
"""The table's columns, and those of the stage alone."""

REFERENCE_KEY = "expected_answer"
"""Metadata key of the expected answer, where the application knows it."""

# Columns that are a trace's attributes as they stand.
_PLAIN = (
    *("trace_id", "observation_id", "timestamp", "model", "user_id", "session_id", "completion", "input_tokens"),
    *("output_tokens", "latency_s", "level", "error", "line", "updated_at", "has_payload", "metadata"),
    *("tool_calls", "tools", "unreadable"),
)


class BatchBuilder:
    def __init__(self, settings: Traces, file: str) -> None:
        section = settings.section_of(file)
        self._file = file
        self._imported = settings.import_of(file)
        self._answers: Answers = "last" if self._imported else settings.answers
        # A set may have no users: the recipe declares once what they would have said of each row.
        self._declared = "true" if getattr(section, "consent", None) else None
        self._region: str | None = getattr(section, "region", None)
        keys = {"consent": settings.consent_key, "region": settings.region_key, "reference": REFERENCE_KEY}
        keys |= {"confidential": settings.confidential_key, "finish": "finish_reason"}
        places = {key: f"f{n}" for n, key in enumerate(dict.fromkeys(keys.values()))}  # a recipe may name a key twice
        kind = [(place, Any, None) for place in places.values()]
        said = msgspec.defstruct("Said", kind, rename={place: key for key, place in places.items()}, gc=False)
        self._decode = msgspec.json.Decoder(said).decode
        self._pick = {field: attrgetter(places[key]) for field, key in keys.items()}

    def batch(self, traces: Sequence[Trace]) -> tuple[pa.RecordBatch, list[Rejection]]:
        """The traces as a batch in their order, and the rows that no batch can hold."""
        try:
            return self._batch(traces), []
        except (ValueError, OverflowError, pa.ArrowException, msgspec.MsgspecError) as error:
            if len(traces) == 1:
                row = traces[0]
                detail = f"no table can hold it: {type(error).__name__}"
                return _batch_of({}), [Rejection(row.line, Reason.SCHEMA, detail=detail)]
        middle = len(traces) // 2
        (left, bad), (right, worse) = self.batch(traces[:middle]), self.batch(traces[middle:])
        both = pa.Table.from_batches([left, right]).combine_chunks().to_batches()
        return (both[0] if both else left), bad + worse

    def _batch(self, traces: Sequence[Trace]) -> pa.RecordBatch:
        if not traces:
            return _batch_of({})
        values = {name: list(map(attrgetter(name), traces)) for name in Trace.__struct_fields__}
        columns: dict[str, Any] = {name: _column(values[name], BATCH.field(name).type) for name in _PLAIN}
        coded = columns["metadata"].dictionary_encode()  # many rows say the same
        said = list(map(self._decode, coded.dictionary.to_pylist()))
        picked = {field: _text(list(map(pick, said))).take(coded.indices) for field, pick in self._pick.items()}
        if not self._imported:  # these models are the imports' own: a row without a model is rejected
            columns["model"] = pc.if_else(pc.is_in(columns["model"], pa.array(MODELS)), "", columns["model"])
        columns |= {
            "day": columns["timestamp"].cast(pa.date32()),
            "consent": pa.repeat(False, len(traces)),
            "messages": (messages := _messages(values["messages"])),
            "helper": helpers(_column(values["name"], pa.string()), self._answers),
            "turn": turns(messages, self._answers),
            # Scores are joined to the rows that are admitted.
            "feedback": pa.ListArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(traces) + 1), _NO_FEEDBACK),
            "feedback_mean": pa.nulls(len(traces), pa.float64()),
            "feedback_count": pa.repeat(pa.scalar(0, pa.int64()), len(traces)),
            "reference": picked["reference"],
            "not_recorded": pa.nulls(len(traces), pa.string()),
            "source_file": pa.repeat(self._file, len(traces)),
            "content_key": pa.array(_content_keys(values, self._imported), pa.binary(16)),
            "finish_reason": pc.coalesce(picked["finish"], _column(values["finish_reason"], pa.string())),
            "consent_said": pa.repeat(self._declared, len(traces)) if self._declared else picked["consent"],
            "region_said": pa.repeat(self._region, len(traces)) if self._region else picked["region"],
            "confidential_said": picked["confidential"],
        }
        return _batch_of(columns)


_NO_FEEDBACK = pa.nulls(0, FEEDBACK)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    empty = values[0] is None and values.count(None) == len(values)  # a text is slow to compare
    return pa.nulls(len(values), kind) if empty else pa.array(values, kind)


def _batch_of(columns: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns.get(f.name, pa.array([], f.type)) for f in BATCH], schema=BATCH)


def _messages(nested: Sequence[Sequence[Message]]) -> pa.ListArray:
    flat = list(chain.from_iterable(nested))
    present = set(chain.from_iterable(flat))
    parts = [
        _column([message.get(field.name) for message in flat], field.type)
        if field.name in present
        else pa.nulls(len(flat), field.type)
        for field in MESSAGE
    ]
    offsets = pa.array(np.cumsum([0, *map(len, nested)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(parts, fields=list(MESSAGE)))


def _content_keys(values: dict[str, list[Any]], imported: str) -> list[bytes]:
    """128 bits of question and answer; of an import's row also of which it is and its reward: another vote is no copy.
    They are compared among rows of one user and moment, so a fast hash is enough: who makes two collide loses a row of
    their own."""
    calls, strange = values["tool_calls"], values["unreadable"]
    if strange.count(None) < len(strange):
        rows = zip(calls, strange, values["observation_id"], strict=True)
        calls = [call if shape is None else own for call, shape, own in rows]
    encode = msgspec.msgpack.Encoder().encode
    said = [values["messages"], values["completion"], calls]
    said += [[f"{imported}{each}" for each in values["metadata"]]] if imported else []
    rows = zip(*said, strict=True)
    return [xxhash.xxh3_128_digest(encode(row)) for row in rows]


def _text(values: Sequence[Any]) -> pa.Array:
    """Metadata values as text. Exports turn every value into text, so JSON in it is read back."""
    texts = _as_they_are(values)
    return pa.array(list(map(_plain, values)), pa.string()) if texts is None else texts


def _as_they_are(values: Sequence[Any]) -> pa.Array | None:
    """The values when all are plain text or absent: the usual case, at the speed of Arrow."""
    try:
        texts = pa.array(values, pa.string())
    except pa.ArrowException:
        return None
    return None if pc.any(pc.match_substring_regex(texts, r'^["{\[]')).as_py() else texts


def _plain(value: Any) -> str | None:
    parsed = decoded(value) if isinstance(value, str) else value
    if parsed is None or isinstance(parsed, str):
        return parsed
    return msgspec.json.encode(parsed).decode()


_WORDS = (
    "titles?|tags?|emojis?|follow[ _-]?ups?|autocomplet(?:e|ion)|quer(?:y|ies)[ _-]generation|"
    "image[ _-]prompt[ _-]generation|guard|guardrails?|moderations?"
)
HELPER = (
    rf"(?i:(?:^|[^a-z])(?:{_WORDS})(?:[^a-z]|$))|[a-z](?:Title|Tags?|FollowUps?|Guardrails?|Moderation)(?:[^a-z]|$)"
)
"""Names of helpers (RE2)."""


def helpers(names: pa.Array, answers: Answers) -> Any:
    """Which calls are no answers, by their names. Chat applications also call a model for titles, tags and guards."""
    if answers == "last":
        return pa.array(np.zeros(len(names), bool))
    if answers == "each":
        return pc.fill_null(pc.match_substring_regex(names, HELPER), False)
    return pc.invert(pc.is_in(names, pa.array(answers, pa.string())))


def turns(messages: pa.ListArray, answers: Answers) -> Any:
    """A hash of the user's last message and of its place among theirs: of calls with the same the last is the
    answer."""
    if answers == "last":
        return pa.repeat(pa.scalar(0, pa.uint64()), len(messages))
    said, parents = messages.flatten(), pc.list_parent_indices(messages).to_numpy()
    asked = np.flatnonzero(pc.equal(said.field("role"), "user").to_numpy(zero_copy_only=False))
    counts = np.bincount(parents[asked], minlength=len(messages)).tolist()
    last = np.full(len(messages), -1)
    last[parents[asked]] = asked  # the later one overwrites
    texts: list[bytes | None] = said.field("content").cast(pa.binary()).take(pa.array(last, mask=last < 0)).to_pylist()
    hashed = [xxhash.xxh3_64_intdigest(text or b"", seed=count) for text, count in zip(texts, counts, strict=True)]
    return pa.array(hashed, pa.uint64())
