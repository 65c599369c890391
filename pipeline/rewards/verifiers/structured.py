"""Answers in JSON: calls of tools that must be the same, and JSON that must fit a schema (draft 2020-12). No reference
out of a schema is fetched. The time of a `pattern` has no bound: check_json runs in a worker."""

import json
import re
from contextlib import suppress
from typing import Any, NoReturn, cast

from pipeline.core.conversation import split
from pipeline.rewards.verifiers.answers import visible
from pipeline.rewards.verifiers.outcome import Grade, Outcome

_FENCE = "```"


def same_calls(completion: str, reference: str) -> Grade:
    """Names, and arguments as JSON, whatever the order of calls made at once. `reference`: JSON of a list of calls, or
    of one, as `{"name", "arguments"}` or OpenAI's. Numbers are equal by value (1 is 1.0), but true is not 1.

    `no_answer` for an answer without calls where the reference has some; an empty list wants none.
    """
    wanted = wanted_calls(reference)
    if wanted is None:
        return Grade(Outcome.unparsable_gold, "")
    calls = [call["function"] for call in split(completion)[1]]
    answer = json.dumps(calls, ensure_ascii=False) if calls else ""
    if wanted and not calls:
        return Grade(Outcome.no_answer, answer)
    same = sorted(map(_canonical, calls)) == sorted(map(_canonical, wanted))
    return Grade(Outcome.correct if same else Outcome.wrong, answer)


def wanted_calls(reference: str) -> list[dict[str, Any]] | None:
    """The calls of a reference; None where it holds none that can be read."""
    held = _parsed(reference)
    listed = cast(list[Any], held) if isinstance(held, list) else [held]
    calls: list[dict[str, Any]] = []
    for each in listed:
        inner = each.get("function", each) if isinstance(each, dict) else None
        named = cast(dict[str, Any], inner) if isinstance(inner, dict) else {}
        arguments = named.get("arguments", {})
        arguments = _parsed(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(named.get("name"), str) or not isinstance(arguments, dict):
            return None
        calls.append({"name": named["name"], "arguments": arguments})
    return calls


def _canonical(call: dict[str, Any]) -> str:
    return json.dumps([call["name"], _plain(call["arguments"])], sort_keys=True)


def _plain(value: Any) -> Any:
    """Equal numbers as equal JSON."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in cast(dict[str, Any], value).items()}
    return [_plain(each) for each in cast(list[Any], value)] if isinstance(value, list) else value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def check_json(completion: str, reference: str) -> Grade:
    """The completion is JSON as a whole, or its last fenced json block is. `no_answer` without JSON, `wrong` where it
    does not fit, `unparsable_gold` for a schema that is none."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable

    try:
        schema = json.loads(reference)
        Draft202012Validator.check_schema(schema)
    except (ValueError, SchemaError, RecursionError):
        return Grade(Outcome.unparsable_gold, "")
    text, value = json_of(completion) or ("", None)
    if not text:
        return Grade(Outcome.no_answer, "")
    try:
        fits = Draft202012Validator(schema, registry=REGISTRY).is_valid(value)
    except (Unresolvable, re.error):
        return Grade(Outcome.unparsable_gold, text)
    return Grade(Outcome.correct if fits else Outcome.wrong, text)


def json_of(completion: str) -> tuple[str, Any] | None:
    """The JSON that a completion is as a whole, or that its last fenced json block is, and its value."""
    for text in (completion.strip(), _last_block(visible(completion))):
        with suppress(json.JSONDecodeError):
            return text, json.loads(text, parse_constant=_refuse)
    return None


def _last_block(text: str) -> str:
    start = text.rfind(f"{_FENCE}json")
    return text[start:].removeprefix(f"{_FENCE}json").partition(_FENCE)[0].strip() if start >= 0 else ""


def _refuse(constant: str) -> NoReturn:
    raise json.JSONDecodeError(f"{constant} is not JSON", constant, 0)
