"""What is recorded, as the traces' own source and the governed path read it."""

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.governance.erasure.places import served
from pipeline.governance.erasure.records import Person
from pipeline.recipe.sources import ExportSource
from pipeline.traces.rows import Rows
from pipeline.traces.sources.otel import Otel
from tests.pipeline.rollout.gateway.slot_server import response
from tests.pipeline.rollout.gateway.world import CANARY, NAME, awaited, user_of, world
from tests.pipeline.traces.conftest import govern

pytestmark = pytest.mark.slow

METADATA = {"user_consent": "true", "region": "us", "expected_answer": "4"}


def rows_of(gateway):
    awaited(lambda: gateway.state().served == gateway.state().recorded)
    blocks = read(gateway.store)
    assert [block.rejected for block in blocks if block.rejected] == []
    return [row for block in blocks for row in block.traces]


def read(store: Store) -> list[Rows]:
    """What the traces' source makes of the files."""
    source = Otel(str(store.path(layout.served(NAME))))
    return [block for part in source.parts() for block in source.rows(part, hashlib.sha256())]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_the_otel_source_reads_what_was_served(gateway, streamed):
    user = user_of("canary")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    answer = gateway.post(
        user=user, messages=messages, stream=streamed, metadata=METADATA, headers={"x-session-id": "s-1"}
    )
    (row,) = [row for row in rows_of(gateway) if row.trace_id == answer.headers["x-trace-id"]]
    assert (row.user_id, row.session_id, row.model) == (user, "s-1", gateway.canary.name)
    assert (row.messages, row.completion) == (messages, f"It is {gateway.canary.name}.")
    assert (row.finish_reason, row.level, row.unreadable) == ("stop", "DEFAULT", None)
    assert (row.input_tokens, row.output_tokens) == ((None, None) if streamed else (7, 3))
    metadata = json.loads(row.metadata)
    assert METADATA.items() <= metadata.items()
    assert (metadata["rollout.arm"], metadata["model.digest"]) == ("canary", CANARY.digest)
    assert abs(row.timestamp.replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(minutes=1)


def test_metadata_forges_no_mark(gateway):
    forged = {
        "rollout.arm": "champion",
        "gen_ai.completion": "x",
        "model.digest": "d",
        "user.id": "other",
        "events": "e",
    }
    answer = gateway.post(user=user_of("canary"), metadata={**forged, "input.value": "x"})
    marks = gateway.request(answer).marks
    assert (marks["rollout.arm"], marks["model.digest"]) == ("canary", CANARY.digest)
    assert (marks["user.id"], marks["metadata.user.id"]) == (user_of("canary"), "other")
    (row,) = [row for row in rows_of(gateway) if row.trace_id == answer.headers["x-trace-id"]]
    assert row.completion == f"It is {gateway.canary.name}."


def test_governed_path_takes_what_was_served(tmp_path):
    with world(tmp_path) as gateway:
        gateway.split(50)
        gateway.champion.answer = lambda server, body: None
        for number in range(24):
            if number == 12:  # the champion answers for these: two spans of one trace
                gateway.canary.answer = lambda server, body: response(b"{}", 503)
            gateway.post(
                user=f"user-{number}",
                stream=number % 3 == 0,
                messages=[{"role": "user", "content": f"What is {number} and {number * 7}?"}],
                metadata=METADATA if number % 6 else {},
            )
        rows = rows_of(gateway)
    no_consent = [row for row in rows if "user_consent" not in json.loads(row.metadata)]
    failed = [row for row in rows if row.level == "ERROR" and row not in no_consent]
    source = ExportSource(kind="otel", uri=str(tmp_path / layout.served(NAME)))
    governed = govern(Store(tmp_path), source, source.uri, now=datetime.now(UTC), regions_allowed=("us",))
    assert {reason.value: count for reason, count in governed.rejected.items() if count} == {
        "consent": len(no_consent),
        "intermediate": len(failed),  # the last call of a trace is the one that was served
    }
    assert (governed.seen, governed.admitted) == (len(rows), 20)
    assert len(no_consent) >= 4 and failed


def test_operations_record_no_text(tmp_path):
    with world(tmp_path, record="operations") as gateway:
        gateway.split(50)
        answer = gateway.post(user=user_of("canary"), metadata={"note": "secret"}, headers={"x-session-id": "s-7"})
        row = gateway.request(answer)
        assert row.marks["rollout.arm"] == "canary" and row.marks["gen_ai.usage.output_tokens"] == 3
        text = "".join(json.dumps(line) for line in gateway.lines())
    for secret in ("What is it?", "It is ", user_of("canary") + '"', "s-7", "secret"):
        assert secret not in text


def test_erasure_takes_a_persons_lines(gateway):
    kept, gone = (gateway.post(user=user).headers["x-trace-id"] for user in ("stays", "leaves"))
    rows_of(gateway)
    assert gateway.client.post("/v1/feedback", json={"id": gone, "score": "up"}).is_success
    traces, places = served(gateway.store, Person.named("leaves"), has_export=False)
    assert traces == {gone}
    for place in places:
        place.remove()
    traces = {line["trace_id"] for line in gateway.lines()}
    assert kept in traces and gone not in traces
    thumbs = list(gateway.store.path(layout.feedback(NAME)).glob("*.jsonl"))
    assert thumbs and not any(gone in path.read_text() for path in thumbs), "their thumbs go along"
    after = gateway.post(user="stays").headers["x-trace-id"]  # the recorder writes to the new file
    assert awaited(lambda: after in {line["trace_id"] for line in gateway.lines()})
