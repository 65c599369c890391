"""Spans and log records as OTLP's JSON has them, and as protobuf."""

from typing import Any

START = 1767607201123456789
IDS = {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}
ASKED = [{"role": "user", "parts": [{"type": "text", "content": "What is 1 + 1?"}]}]
ANSWERED = [{"role": "assistant", "parts": [{"type": "text", "content": "2"}], "finish_reason": "stop"}]
TEXTS = {"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWERED}


def typed(value: Any) -> dict[str, Any]:
    """A value as OTLP writes it."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [typed(item) for item in value]}}
    return {"kvlistValue": {"values": pairs(value)}} if isinstance(value, dict) else {"stringValue": value}


def pairs(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": typed(value)} for key, value in values.items()]


def expanded(value: Any) -> Any:
    """A request of a case: there, `attributes` may be an object of plain values, and a body `{"typed": value}`."""
    if isinstance(value, list):
        return [expanded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"typed"}:
        return typed(value["typed"])
    return {k: pairs(v) if k == "attributes" and isinstance(v, dict) else expanded(v) for k, v in value.items()}


def span(said: dict[str, Any], **changes: Any) -> dict[str, Any]:
    said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **said}
    times = {"startTimeUnixNano": str(START), "endTimeUnixNano": str(START + 1_500_000_000)}
    return {**IDS, "name": "chat m", **times, "attributes": pairs(said), **changes}


def request(*spans: Any, **resource: Any) -> dict[str, Any]:
    scope = {"scope": {"name": "app"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": pairs(resource)}, "scopeSpans": [scope]}]}


def message(name: str, body: Any) -> dict[str, Any]:
    """A record of a log."""
    moments = {"timeUnixNano": str(START), "observedTimeUnixNano": str(START)}
    return {**IDS, **moments, "eventName": name, "attributes": [], "body": typed(body)}


def logs(*records: Any) -> dict[str, Any]:
    scope = {"scope": {"name": "app"}, "logRecords": list(records)}
    return {"resourceLogs": [{"resource": {"attributes": []}, "scopeLogs": [scope]}]}
