from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from pipeline.recipe import LangfuseExportSource, Traces
from pipeline.traces.gates import GATES, check
from pipeline.traces.records import Reason, Score, Trace

SETTINGS = Traces(source=LangfuseExportSource(uri="x"))
GOOD = Trace(
    trace_id="t",
    observation_id="o",
    timestamp=datetime(2026, 1, 5, tzinfo=UTC),
    day="2026-01-05",
    model="m",
    user_id="u",
    session_id=None,
    messages=[{"role": "user", "content": "Hi"}],
    completion="Yes",
    file="f",
    line=1,
    metadata={"user_consent": True},
)


def judged(settings: Traces = SETTINGS, **changes: Any) -> Trace | Reason:
    return check(msgspec.structs.replace(GOOD, **changes), settings)


def test_a_good_trace_is_admitted_as_it_is() -> None:
    assert judged() == msgspec.structs.replace(GOOD, consent=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": ""}, Reason.SCHEMA),
        ({"messages": []}, Reason.SCHEMA),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, Reason.SCHEMA),
        ({"has_payload": True}, Reason.PII),
        ({"completion": "data:image/png;base64,AAAA"}, Reason.PII),
        ({"level": "ERROR"}, Reason.ERROR),
        ({"finish_reason": "MAX_TOKENS"}, Reason.TRUNCATED),
        ({"latency_s": 121.0}, Reason.LATENCY),
        ({"latency_s": float("nan")}, Reason.LATENCY),
        ({"completion": " \n"}, Reason.EMPTY_OUTPUT),
    ],
)
def test_each_gate_has_its_reason(changes: dict[str, Any], reason: Reason) -> None:
    assert judged(**changes) == reason


@pytest.mark.parametrize("value", [None, False, "false", "False", 0, "0", "", "no", "maybe", [], {}, 2, 1.5])
def test_anything_but_a_yes_is_a_no(value: Any) -> None:
    assert judged(metadata={"user_consent": value}) == Reason.CONSENT


def test_an_absent_consent_is_a_no() -> None:
    assert judged(metadata={}) == Reason.CONSENT
    assert judged(SETTINGS.model_copy(update={"consent_key": "other"})) == Reason.CONSENT


@pytest.mark.parametrize("value", [True, "true", "TRUE", 1, "1", "yes"])
def test_a_yes_is_a_yes(value: Any) -> None:
    assert isinstance(judged(metadata={"user_consent": value}), Trace)


@pytest.mark.parametrize(
    ("region", "job_region", "admitted"),
    [
        ("eu", "", False),
        (" EU ", "", False),
        ("eu", "eu", True),
        ("eu", "us", False),
        ("us", "", True),
        (None, "", True),
        (["eu"], "", False),
    ],
)
def test_regions(region: Any, job_region: str, admitted: bool) -> None:
    settings = SETTINGS.model_copy(update={"job_region": job_region})
    verdict = judged(settings, metadata={"user_consent": True, "region": region})
    assert verdict == Reason.REGION if not admitted else isinstance(verdict, Trace)


@pytest.mark.parametrize(("value", "admitted"), [("true", False), ("secret", False), ("false", True), (0, True)])
def test_confidentiality(value: Any, admitted: bool) -> None:
    verdict = judged(metadata={"user_consent": True, "confidential": value})
    assert verdict == Reason.CONFIDENTIAL if not admitted else isinstance(verdict, Trace)


def test_every_text_that_is_kept_is_masked() -> None:
    mail = "a@example.com"
    found = judged(
        messages=[{"role": "user", "content": mail, "tool_calls": mail}],
        completion=mail,
        reference=mail,
        error=mail,
        user_id=mail,
        session_id=mail,
        metadata={"user_consent": True, "from": [mail]},
        feedback=[Score("s", "t", None, mail, 1.0, mail, None)],
    )
    assert isinstance(found, Trace)
    assert mail not in msgspec.json.encode(found).decode()


def test_the_first_gate_that_objects_gives_the_reason() -> None:
    assert judged(metadata={}, level="ERROR", completion="") == Reason.CONSENT


@pytest.mark.parametrize("position", range(len(GATES) + 1))
def test_a_gate_that_raises_rejects(position: int) -> None:
    def broken(trace: Trace, settings: Traces) -> Trace | Reason:
        raise ZeroDivisionError

    assert check(GOOD, SETTINGS, [*GATES[:position], broken, *GATES[position:]]) == Reason.GATE_ERROR
