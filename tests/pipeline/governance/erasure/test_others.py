"""Whoever is forgotten: nothing of anybody else's changes, and nothing of theirs is left in what we wrote."""

import csv
import gzip
import io
import json
import tempfile
import unicodedata
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.governance.erasure import forget, preview
from pipeline.governance.erasure.records import Person
from pipeline.rewards import reviews
from pipeline.rewards.feedback import principal
from pipeline.rewards.findings import FindingLine, journal
from pipeline.rollout.gateway.spans import otlp_attributes
from pipeline.serving.inference import AnswerProtocol, open_journal
from pipeline.traces.erased import forgotten, user_hash
from pipeline.traces.lake import local_lake, open_lake
from pipeline.traces.lake.files import write_file
from pipeline.traces.pii import pseudonym
from pipeline.traces.rows import SCHEMA
from tests.answers import answer
from tests.contexts import KEYS, stage_context
from tests.evals.conftest import DECODING

pytestmark = pytest.mark.slow

DAY, START = "2026-01-05", datetime(2026, 1, 5, tzinfo=UTC)
NOW = datetime(2026, 2, 1, tzinfo=UTC)
WORDS = [
    "42", "7", "0", "role", "user", "assistant", "thumb", "ann", "ANN", "Ann", "annabel", "martin", "the", "null",
    "martin@example.com", "MARTIN@example.com", "erased", "trace_id", "user_id", "session:s", "user:ann", "true", "[]",
    "caf\u00e9", "cafe\u0301", "Caf\u00e9", "a b", 'quo"te', "back\\slash", "\u212a", "K", "content", "score", "text",
]  # fmt: skip
IDS = st.one_of(st.sampled_from(WORDS), st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8))
USERS = st.lists(
    IDS.filter(lambda id: id.strip() and "\0" not in id),
    min_size=40,
    max_size=40,
    unique_by=lambda id: unicodedata.normalize("NFC", id),
)


def deploy(root: Path, users: list[str]) -> Store:
    """Two rows of each in everything that we write; each text names another user, as a whole and inside a word."""
    store, table, spans, said, calls, scores, sample = Store(root, KEYS), [], [], [], [], [], []
    protocol = AnswerProtocol(decoding=DECODING, temperature=1.0, max_completion_tokens=9, seed=1)
    findings = journal(store, DAY)
    with open_journal(store, "m", protocol, layout.SAMPLE_ANSWERS) as answers:
        for n, user in enumerate(users * 2):
            other, trace, at = users[(n + 1) % len(users)], f"{n:032x}", START + timedelta(minutes=n)
            text = f"{other} says {json.dumps({'user_id': other})} to x{other}x"
            table.append(governed(str(pseudonym(user)), trace, at, text))
            named: dict[str, Any] = {"recorded_at": at.timestamp(), "trace_id": trace, "timestamp": at.isoformat()}
            marks = [("user.id", user), ("gen_ai.input.messages", json.dumps([{"role": "user", "content": text}]))]
            times = {"startTimeUnixNano": "1"}
            span = {"traceId": trace, "spanId": trace[:16], "attributes": otlp_attributes(marks), **times}
            owner = {} if n % 3 == 0 else {"user_id": user}  # of a caller whom only an attribute names
            spans.append({**named, **owner, "resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
            record = {"traceId": trace, "attributes": otlp_attributes([("gen_ai.evaluation.explanation", text)])}
            said.append({**named, "resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})
            times = {"start_time": f"{at:%Y-%m-%d %H:%M:%S}.000000"}
            calls.append({"id": trace, "trace_id": trace, "user_id": user, **times, "input": text, "output": other})
            scores.append({"id": f"s{n}", "trace_id": trace, "name": other, "value": 1})
            row_id = str(pseudonym(user))
            said_of = {"key": f"k{n}", "trace_id": trace, "owner": row_id, "answer": text}
            findings.add(FindingLine(source="judge", account="i", **said_of))
            given_answer = answer(text).model_copy(update={"key": f"k{n}"})
            answers.add(user_hash(principal(row_id, None, "")), given_answer)
            item = "".join(chr(ord("a") + int(digit)) for digit in f"{n:012d}")
            sample.append({"item": item, "trace_id": trace, "user_id": principal(row_id, None, ""), "day": DAY,
                           "prompt": text, "completion": other, "reference": "", "stratum": "s"})  # fmt: skip
    lines(store.path(layout.served("m"), "2026-01-05-1.jsonl"), spans)
    lines(store.path(layout.feedback("m"), "2026-01-05-1.jsonl"), said)
    lines(store.path("production/observations_v2/2026-01-05.jsonl.gz"), calls)
    lines(store.path("production/scores/2026-01-05.jsonl.gz"), scores)
    lines(store.path(layout.REVIEWS, "2026-W02", "sample.jsonl"), sample)
    store.path(layout.REVIEWS, "2026-W02", "sheet.csv").write_bytes(reviews.render(sample))
    store.path(layout.served("m"), "2026-01-05-1.jsonl").chmod(0o600)
    config = local_lake(store)
    with open_lake(config) as lake:
        lake.replace_day(DAY, write_file(config, DAY, "part", [pa.RecordBatch.from_pylist(table, schema=SCHEMA)]), "d")
    return store


def governed(user: str, trace: str, at: datetime, text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text, "tool_calls": None}]
    return {
        "trace_id": trace, "observation_id": trace, "timestamp": at, "day": START.date(), "model": "m", "consent": True,
        "user_id": user, "session_id": user, "messages": messages, "completion": text, "feedback": [],
        "feedback_count": 0, "metadata": json.dumps({"role": text}), "source_file": "f",
    }  # fmt: skip


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def rows_of(store: Store) -> dict[str, list[tuple[str, bytes]]]:
    """Of each place the rows, byte for byte, each with the trace or key that tells whose it is."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for path in sorted(store.root.rglob("*.jsonl*")):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if path.parts[-2] != "audit":
            rows = [(_number(json.loads(line)), line) for line in content.splitlines(keepends=True)]
            found[str(path.relative_to(store.root))] = rows
    sheet_file = store.path(layout.REVIEWS, "2026-W02", "sheet.csv")
    cells = csv.DictReader(io.StringIO(sheet_file.read_bytes().decode("utf-8-sig"), newline=""))
    found["sheet"] = [(row["trace_id"], json.dumps(row).encode()) for row in cells]
    with open_lake(local_lake(store)) as lake:
        table = lake.read([DAY], lake.snapshot).to_pylist()
    found["table"] = [(row["trace_id"], repr(row).encode()) for row in table]
    return found


def _number(line: dict[str, Any]) -> str:
    """The trace of a line; an answer has the number of its trace in its key."""
    return line.get("trace_id") or f"{int(line['answer']['key'][1:]):032x}"


@settings(
    max_examples=8,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(USERS, st.data())
def test_any_id_is_forgotten_alone(users: list[str], data: st.DataObject) -> None:
    spelled = data.draw(st.sampled_from([*users, "nobody", "User", "4"]))
    id = unicodedata.normalize(data.draw(st.sampled_from(("NFC", "NFD"))), spelled)
    with tempfile.TemporaryDirectory() as folder:
        store = deploy(Path(folder, "data"), users)
        config, uri = local_lake(store), f"sqlite:///{folder}/mlflow.db"
        context, before = stage_context(store, config), rows_of(store)
        shown = preview(context, Person.named(id), uri)
        proof = forget(context, Person.named(id), registry_uri=uri, now=NOW)
        after, entry = rows_of(store), forgotten(store)
        mode = store.path(layout.served("m"), "2026-01-05-1.jsonl").stat().st_mode
    nfc = unicodedata.normalize("NFC", id)
    theirs = {f"{n:032x}" for n, user in enumerate(users * 2) if unicodedata.normalize("NFC", user) == nfc}
    for place, rows in before.items():
        assert after[place] == [row for row in rows if row[0] not in theirs], place
    counted = Counter({place: sum(counts.values()) for place, counts in proof.places.items()})
    assert (shown.places, proof.remains) == (proof.places, ())
    assert counted.total() == len(theirs) * len(before) and len(theirs) in (0, 2)
    assert [user for user in users if entry.entry(user)] == [u for u in users if unicodedata.normalize("NFC", u) == nfc]
    assert mode & 0o777 == 0o600
