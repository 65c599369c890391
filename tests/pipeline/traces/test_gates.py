from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from pipeline.recipe.sources import ExportSource, PromptsSource
from pipeline.recipe.traces import Traces
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.erased import NOBODY, user_hash
from pipeline.traces.gates import GATES, GateRules, check
from pipeline.traces.pii import pseudonym
from pipeline.traces.records import Reason
from pipeline.traces.rows import Trace
from tests.contexts import forgetting

SETTINGS = Traces(source=ExportSource(kind="langfuse_export", uri="x"))
NOW = datetime(2026, 1, 10, tzinfo=UTC)
GOOD = Trace(
    trace_id="t",
    observation_id="o",
    timestamp=datetime(2026, 1, 5, tzinfo=UTC),
    model="m",
    user_id="u",
    session_id=None,
    messages=[{"role": "user", "content": "Hi"}],
    completion="Yes",
    line=1,
    metadata='{"user_consent": true}',
)


def batch_of(*traces: Trace, settings: Traces = SETTINGS) -> pa.RecordBatch:
    batch, unfit = BatchBuilder(settings, "f").batch(traces)
    assert not unfit
    return batch


def judged(settings: Traces = SETTINGS, erased: Any = None, **changes: Any) -> dict[str, Any] | Reason:
    """The trace as the table would hold it, or the reason against it."""
    value = changes.get("metadata")
    if isinstance(value, dict):
        changes["metadata"] = msgspec.json.encode(value).decode()
    batch = batch_of(msgspec.structs.replace(GOOD, **changes), settings=settings)
    checked, (reason,) = check(batch, GateRules(settings, NOW, erased or NOBODY))
    return reason or checked.to_pylist()[0]


def test_a_good_trace_is_admitted_as_it_is() -> None:
    assert judged() == {**batch_of(GOOD).to_pylist()[0], "consent": True}
    assert isinstance(judged(timestamp=NOW + timedelta(days=1)), dict), "clocks differ"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": ""}, Reason.SCHEMA),
        ({"messages": []}, Reason.SCHEMA),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, Reason.SCHEMA),
        ({"trace_id": ""}, Reason.SCHEMA),
        ({"timestamp": datetime(2026, 1, 11, 0, 0, 1, tzinfo=UTC)}, Reason.FUTURE),
        ({"has_payload": True}, Reason.PII),
        ({"completion": "data:image/png;base64,AAAA"}, Reason.PII),
        ({"level": "ERROR"}, Reason.ERROR),
        ({"level": "ERROR", "metadata": "{}", "completion": ""}, Reason.CONSENT),
        ({"finish_reason": "MAX_TOKENS"}, Reason.TRUNCATED),
        ({"latency_s": 121.0}, Reason.LATENCY),
        ({"latency_s": float("nan")}, Reason.LATENCY),
        ({"completion": " \n"}, Reason.EMPTY_OUTPUT),
        ({"completion": "", "tool_calls": '[{"name": "f"}]'}, Reason.TOOL_CALL_ONLY),
        ({"messages": [], "completion": "", "unreadable": "input: {a:str}"}, Reason.UNREADABLE),
    ],
)
def test_each_gate_has_its_reason(changes: dict[str, Any], reason: Reason) -> None:
    assert judged(**changes) == reason


@pytest.mark.parametrize(
    ("reason", "admitted"),
    [
        *(
            (good, True)
            for good in ("stop", "STOP", "end_turn", "tool-calls", "eos_token", "COMPLETE", None, "", "null")
        ),
        *((bad, False) for bad in ("length", "max_tokens", "content_filter", "SAFETY", "refusal", "a new one")),
    ],
)
def test_only_a_known_good_end_is_admitted(reason: str | None, admitted: bool) -> None:
    verdict = judged(finish_reason=reason)
    assert isinstance(verdict, dict) if admitted else verdict == Reason.TRUNCATED


def test_a_prompt_set_may_be_silent() -> None:
    asked = PromptsSource(uri="x", licence="MIT", consent=True, day=NOW.date())
    settings = SETTINGS.model_copy(update={"source": asked})
    assert isinstance(judged(settings, completion=""), dict)


@pytest.mark.parametrize("value", [None, False, "false", "False", 0, "0", "", "no", "maybe", [], {}, 2, 1.5])
def test_anything_but_a_yes_is_a_no(value: Any) -> None:
    assert judged(metadata={"user_consent": value}) == Reason.CONSENT


@pytest.mark.parametrize("value", [True, "true", "TRUE", 1, "1", "yes"])
def test_a_yes_is_a_yes(value: Any) -> None:
    assert isinstance(judged(metadata={"user_consent": value}), dict)
    assert judged(SETTINGS.model_copy(update={"consent_key": "other"})) == Reason.CONSENT


@pytest.mark.parametrize(
    ("region", "allowed", "admitted"),
    [
        ("eu", (), False),
        (None, (), True),
        ("us", ("us",), True),
        (" US ", ("Us",), True),
        ("us-east-1", ("eu", "us"), True),
        ("eu-west-1", ("us",), False),
        ("usa", ("us",), False),
        ("us.1", ("u.",), False),
        (None, ("us",), False),
        (["us"], ("us",), False),
    ],
)
def test_regions(region: Any, allowed: tuple[str, ...], admitted: bool) -> None:
    settings = SETTINGS.model_copy(update={"regions_allowed": allowed})
    verdict = judged(settings, metadata={"user_consent": True, "region": region})
    assert verdict == Reason.REGION if not admitted else isinstance(verdict, dict)


@pytest.mark.parametrize(("value", "admitted"), [("true", False), ("secret", False), ("false", True), (0, True)])
def test_confidentiality(value: Any, admitted: bool) -> None:
    verdict = judged(metadata={"user_consent": True, "confidential": value})
    assert verdict == Reason.CONFIDENTIAL if not admitted else isinstance(verdict, dict)


def test_every_text_that_is_kept_is_masked() -> None:
    mail = "a@example.com"
    result = judged(
        messages=[{"role": "user", "content": mail, "tool_calls": f'[{{"to": "{mail}"}}]'}],
        completion=mail,
        tools=f'[{{"function": {{"name": "{mail}"}}}}]',
        error=mail,
        user_id=mail,
        session_id=mail,
        metadata={"user_consent": True, "from": [mail], "expected_answer": mail},
    )
    assert isinstance(result, dict)
    assert mail not in str(result)


@pytest.mark.parametrize(("expected", "kept"), [("a@example.com", None), ("Ask a@example.com", None), ("4", "4")])
def test_a_row_whose_reference_was_masked_is_unverifiable(expected: str, kept: str | None) -> None:
    result = judged(metadata={"user_consent": True, "expected_answer": expected}, completion="[EMAIL]")
    assert isinstance(result, dict) and result["reference"] == kept


@pytest.mark.parametrize("position", [0, 6, len(GATES)])
def test_a_gate_that_raises_rejects_the_rows_that_it_raises_on(position: int) -> None:
    def broken(batch: pa.RecordBatch, rules: GateRules) -> Any:
        return [1 / (trace_id != "t2") and False for trace_id in batch["trace_id"].to_pylist()]

    batch = batch_of(*(msgspec.structs.replace(GOOD, trace_id=f"t{n}") for n in range(6)))
    gates = [*GATES[:position], (Reason.SCHEMA, lambda b, r: pa.array(broken(b, r))), *GATES[position:]]
    checked, reasons = check(batch, GateRules(SETTINGS, NOW), gates)
    assert reasons == [None, None, Reason.GATE_ERROR, None, None, None]
    assert checked["trace_id"].to_pylist() == [f"t{n}" for n in range(6)]


def test_a_gate_that_cannot_decide_rejects() -> None:
    gates = [(Reason.ERROR, lambda b, r: pa.nulls(1, pa.bool_()))]
    assert check(batch_of(GOOD), GateRules(SETTINGS, NOW), gates)[1] == [Reason.ERROR]


def test_gates_keep_forgotten_users_out() -> None:
    assert judged(erased=forgetting("u")) == Reason.ERASED
    assert judged(erased=forgetting("v")) != Reason.ERASED
    assert judged(user_id="a@example.com", erased=forgetting("a@example.com")) == Reason.ERASED
    assert user_hash(str(pseudonym("a@example.com"))) == user_hash("a@example.com")
    batch = batch_of(GOOD, msgspec.structs.replace(GOOD, user_id=None))
    assert check(batch, GateRules(SETTINGS, NOW, forgetting("u")))[1] == [Reason.ERASED, None]


def test_a_row_that_no_table_can_hold_is_rejected_alone() -> None:
    bad = [{"input_tokens": 1 << 70}, {"completion": "\ud800"}, {"metadata": "no JSON"}]
    traces = [msgspec.structs.replace(GOOD, line=n, **c) for n, c in enumerate([{}, bad[0], {}, bad[1], bad[2], {}])]
    batch, unfit = BatchBuilder(SETTINGS, "f").batch(traces)
    assert batch["line"].to_pylist() == [0, 2, 5]
    assert [(r.line, r.reason) for r in unfit] == [(n, Reason.SCHEMA) for n in (1, 3, 4)]


def test_metadata_that_exports_turned_into_text_is_read_back() -> None:
    by_name = {"user_consent": '"yes"', "expected_answer": '"12"', "finish_reason": "stop", "region": '["eu"]'}
    assert judged(metadata=by_name) == Reason.REGION
    result = judged(SETTINGS.model_copy(update={"regions_allowed": ("us",)}), metadata={**by_name, "region": '"us"'})
    assert isinstance(result, dict)
    assert (result["reference"], result["finish_reason"]) == ("12", "stop")


def test_the_content_key_is_of_prompt_and_completion_alone() -> None:
    other = msgspec.structs.replace(GOOD, trace_id="x", user_id="v", timestamp=datetime(2026, 1, 6, tzinfo=UTC))
    apart = msgspec.structs.replace(GOOD, messages=[{"role": "user", "content": "HiY"}], completion="es")
    one, two, three = batch_of(GOOD, other, apart)["content_key"].to_pylist()
    assert one == two != three
