"""JSON that must fit a schema. Owns finding the JSON in a completion; jsonschema (draft 2020-12) says whether it fits.

The completion is JSON as a whole, or its last fenced json block is. No reference out of the schema is fetched. The
time of a `pattern` has no bound: like every check but plain text it runs in a worker that is killed.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from pipeline.rewards.verifiers.answers import visible
from pipeline.rewards.verifiers.outcome import Grade, Outcome

_FENCE = "```"


def check_json(completion: str, reference: str) -> Grade:
    """`no_answer` without JSON, `wrong` where it does not fit, `unparsable_gold` for a schema that is none."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable

    try:
        schema = json.loads(reference)
        Draft202012Validator.check_schema(schema)
    except (ValueError, SchemaError, RecursionError):
        return Grade(Outcome.unparsable_gold, "")
    for text in (completion.strip(), _last_block(visible(completion))):
        try:
            value = json.loads(text, parse_constant=_refuse)
        except json.JSONDecodeError:
            continue
        try:
            fits = Draft202012Validator(schema, registry=REGISTRY).is_valid(value)
        except (Unresolvable, re.error):
            return Grade(Outcome.unparsable_gold, text)
        return Grade(Outcome.correct if fits else Outcome.wrong, text)
    return Grade(Outcome.no_answer, "")


def _last_block(text: str) -> str:
    start = text.rfind(f"{_FENCE}json")
    return text[start:].removeprefix(f"{_FENCE}json").partition(_FENCE)[0].strip() if start >= 0 else ""


def _refuse(constant: str) -> NoReturn:
    raise json.JSONDecodeError(f"{constant} is not JSON", constant, 0)
