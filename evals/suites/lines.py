"""Suites of items with references: from files, from code of the user's own, or as the demo wrote them. What is wrong is
an error that names the line or row."""

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from evals.suites.rows import rows
from evals.suites.suite import Item
from pipeline.core import layout
from pipeline.core.conversation import calls_of, from_request, functions
from pipeline.core.storage import Store, digest_json
from pipeline.recipe.custom import create
from pipeline.recipe.rewards import VerifierKind
from pipeline.recipe.suites import Columns, ItemsSuite
from pipeline.rewards.verifiers import readable, reference_answer
from pipeline.rewards.verifiers.structured import wanted_calls
from pipeline.serving.inference import Messages
from pipeline.traces.sources.shapes import at, steps

ROLES: Mapping[str, frozenset[str]] = {
    "system": frozenset(),
    "user": frozenset(),
    "assistant": frozenset({"tool_calls"}),
    "tool": frozenset({"tool_call_id", "name"}),
}
"""What a message may have beside role and content, by its role."""


def asked(row: Mapping[str, Any], where: Columns) -> Messages:
    """The conversation of a line. Raises ValueError for what is none."""
    prompt, messages, tools = (row.get(name) for name in (where.prompt, where.messages, where.tools))
    if (prompt is None) == (messages is None):
        names = " or ".join(repr(name) for name in (where.prompt, where.messages) if name)
        raise ValueError(f"it has {'neither' if prompt is None else 'both'} of {names}. Give one of them.")
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"its {where.prompt!r} is {str(prompt)[:40]!r}, and a prompt is a text.")
        messages = [{"role": "user", "content": prompt}]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"its {where.messages!r} is no list of messages.")
    listed = cast(list[Any], messages)
    waiting: set[str] = set()
    for message in listed:
        waiting = _checked(message, waiting)
    if listed[-1]["role"] not in ("user", "tool"):
        raise ValueError("the last message is the user's, or a tool's result: it is what the model answers.")
    return from_request(listed, _definitions(tools, where.tools))


def _checked(message: Any, called: set[str]) -> set[str]:
    """Ids of the calls so far, with those of this message."""
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise ValueError("a message is an object with role and content, and nothing else but calls and their results.")
    held = cast(dict[str, Any], message)
    if held["role"] not in ROLES:
        raise ValueError(f"a message has the role {held['role']!r}: one of {', '.join(ROLES)}, with a text.")
    if unknown := sorted(held.keys() - {"role", "content"} - ROLES[held["role"]]):
        raise ValueError(f"a message of the role {held['role']!r} has {unknown[0]!r}, which nothing reads.")
    calls = held.get("tool_calls") or []
    if not isinstance(held["content"], str) and not (held["content"] is None and calls):
        raise ValueError(f"a message of the role {held['role']!r} has no text.")
    if calls and calls_of(json.dumps(calls)) is None:
        raise ValueError(
            'tool_calls is a list of {"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}, and '
            "arguments are a JSON object, as it is or as text."
        )
    if held["role"] == "tool" and held.get("tool_call_id") not in called:
        raise ValueError(
            f"a result has the tool_call_id {held.get('tool_call_id')!r}, and no call before it has that id."
        )
    return called | {call["id"] for call in calls if call.get("id")}


def _definitions(tools: Any, name: str) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    offered = functions(json.dumps(tools))
    named = all(isinstance(each["function"].get("name"), str) for each in offered)
    if not offered or len(offered) != len(tools) or not named:
        raise ValueError(
            f'its {name!r} is no list of definitions: {{"type": "function", "function": {{"name": ..., "parameters": '
            "{...}}}."
        )
    return offered


def items(section: ItemsSuite, store: Store, seed: int) -> tuple[Item, ...]:
    """The items, in their order. Raises ValueError for all that is wrong with the file, the code or one of them."""
    if section.custom is not None:
        made = create(section.custom, seed)
        try:
            content = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in made).encode()
            return drawn(parse(content, section), section.items, seed)
        except (TypeError, ValueError) as error:
            raise ValueError(f"The suite {section.name} of {section.custom.code}: {error}") from error
    if section.embedded:
        return _embedded(section, store, seed)
    content = _pinned(section, store)
    try:
        return drawn(parse(content, section), section.items, seed)
    except ValueError as error:
        raise ValueError(f"The suite {section.name} at {section.path}: {error}") from error


def _pinned(section: ItemsSuite, store: Store) -> bytes:
    """The file's bytes. Raises ValueError where it is not there, is not the one of the recipe's `sha256`, or needs one:
    outside the data root it may change unseen."""
    what, path, sha256 = f"The suite {section.name}", Path(section.path).absolute(), section.sha256
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{what} is not at {path} ({error.strerror}). Give its path.") from error
    digest = hashlib.sha256(content).hexdigest()
    if not sha256 and not path.is_relative_to(store.root):
        raise ValueError(f"{what} lies outside the data root, where it may change unseen. Give its sha256: {digest}")
    if sha256 not in ("", digest):
        raise ValueError(
            f"{what} at {path} has the sha256 {digest}, and the recipe says {sha256}. Fetch the file again, or give "
            "this digest as its sha256."
        )
    return content


WRITE = "The first stage writes it again: dagster job launch -j preference_tuning -o traces"


def _embedded(section: ItemsSuite, store: Store, seed: int) -> tuple[Item, ...]:
    path = store.path(layout.suite(section.name, seed, section.items or 0))
    if not path.is_file():
        raise ValueError(f"The suite {section.name} is not there: {path}. {WRITE}")
    try:
        read = parse_embedded(path.read_bytes())
        if len(read) != section.items:
            raise ValueError(f"it has {len(read)} items, and {section.items} are asked for")
        return read
    except ValueError as error:
        raise ValueError(f"The suite {section.name} cannot be read: {path}: {error}. {WRITE}") from error


def parse_embedded(content: bytes) -> tuple[Item, ...]:
    """The items of a file that the demo wrote. Raises ValueError where a line is no item."""
    return tuple(Item.model_validate(row) for _, row in rows(content, ""))


def drawn(read: tuple[Item, ...], count: int | None, seed: int) -> tuple[Item, ...]:
    """`count` of the items, in their order; the same for a seed. Raises ValueError where there are fewer."""
    if count is None:
        return read
    if count > len(read):
        raise ValueError(f"it has {len(read)} items, and the recipe asks for {count}. Lower items, or leave it out.")
    chosen = sorted(random.Random(seed).sample(range(len(read)), count))
    return tuple(read[place] for place in chosen)


def parse(content: bytes, section: ItemsSuite) -> tuple[Item, ...]:
    """The items of a file's content. Raises ValueError naming the first line or row that is no item."""
    read: list[Item] = []
    places: dict[str, str] = {}
    questions: dict[str, str] = {}
    clustered: set[str] = set()
    for place, row in rows(content, section.path):
        try:
            item = _item(row, section)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        if item.id in places:
            raise ValueError(f"{places[item.id]} and {place} have the id {item.id!r}. Keep one of them.")
        text = json.dumps(item.messages)
        if text in questions:
            raise ValueError(f"{questions[text]} and {place} ask the same. Keep one of them.")
        places[item.id], questions[text] = place, place
        read.append(item)
        if row.get(section.columns().cluster):
            clustered.add(item.id)
    _check_whole(read, clustered)
    return tuple(read)


def _item(row: Mapping[str, Any], section: ItemsSuite) -> Item:
    where = section.columns()
    fields = {*where, *map(str, steps(where.reference)[:1])}
    if not section.preset and (unknown := sorted(row.keys() - fields - set(section.ignore))):
        raise ValueError(
            f"nothing reads its field {unknown[0]!r}. Name it in ignore, or say in fields what it is "
            f"(one of {', '.join(Columns._fields)})."
        )
    row = multiple_choice(row, where) if section.preset == "gpqa" else row
    messages = asked(row, where)
    check = section.check if section.check == "none" else row.get(where.check, section.check)
    if check not in (*get_args(VerifierKind), section.check):
        raise ValueError(f"its {where.check!r} is {check!r}, which is none of {', '.join(get_args(VerifierKind))}.")
    text = "" if check == "none" else _reference(at(row, where.reference), where.reference, check)
    text = reference_answer(text) if section.preset == "gsm8k" else text
    identity = digest_json(messages)[:16]
    id, cluster = (_text(row, name) or identity for name in (where.id, where.cluster))
    slice = _text(row, where.slice)
    return Item(id=id, cluster=cluster, messages=messages, reference=text, slice=slice, check=check)


WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
"""GPQA's fields of the choices that are wrong."""


def multiple_choice(row: Mapping[str, Any], where: Columns) -> dict[str, Any]:
    """The row with its choices below the question, and the letters of those that are right. Digests of question and
    choice order them: no choice has a place of its own, and the other items of the file change nothing."""
    question, right, *wrong = (str(row.get(name) or "").strip() for name in (where.prompt, where.reference, *WRONG))
    if not all((question, right, *wrong)):
        raise ValueError(f"a question has {where.prompt!r}, {where.reference!r}, {', '.join(map(repr, WRONG))}.")
    lettered = list(
        zip("ABCD", sorted((right, *wrong), key=lambda choice: digest_json([question, choice])), strict=True)
    )
    text = "\n".join([question, "", *(f"{letter}) {choice}" for letter, choice in lettered)])
    letters = [letter for letter, choice in lettered if choice == right]
    return {**row, where.prompt: text, where.reference: letters if len(letters) > 1 else letters[0]}


def _reference(value: Any, name: str, check: str) -> str:
    """A reference answer as text; of calls, JSON in text or as it is."""
    if check == "calls":
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if value is None or wanted_calls(text) is None:
            raise ValueError(
                f'its {name!r} is {str(value)[:80]!r}, and calls are [{{"name": ..., "arguments": {{...}}}}]; [] where '
                "none is right."
            )
        return text
    listed = cast(list[Any], value) if isinstance(value, list) and check not in ("code", "json_schema") else [value]
    if not listed or any(
        isinstance(v, bool) or not isinstance(v, str | int | float) or not str(v).strip() for v in listed
    ):
        raise ValueError(
            f"its {name!r} is {value!r}, and a reference answer is a text or a number, or a list of texts of which any "
            f"is right. Of an object name what is right by its path, such as fields: {{reference: {name}.value}}."
        )
    if unread := next((v for v in listed if not readable(str(v), check)), None):
        raise ValueError(
            f"its {name!r} is {unread!r}, which check: {check} cannot read. Write it otherwise, or name another check."
        )
    return str(value) if value is listed[0] else json.dumps([str(v) for v in listed], ensure_ascii=False)


def _text(row: Mapping[str, Any], name: str) -> str:
    """A field that names something: a text or a whole number; "" where there is none."""
    value = row.get(name, "")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"its {name!r} is {value!r}, and a text belongs there.")
    return str(value)


def _check_whole(read: list[Item], clustered: set[str]) -> None:
    if not read:
        raise ValueError("it is empty. Write an item on each line.")
    if len(read) > 1 and read[0].check != "none" and len({(item.reference, item.check) for item in read}) == 1:
        raise ValueError(f"every reference is {read[0].reference[:40]!r}: who always says that is always right.")
    if clustered and (lacking := next((item.id for item in read if item.id not in clustered), None)):
        raise ValueError(f"item {lacking} has no cluster, and others have. Give each one, or none.")
