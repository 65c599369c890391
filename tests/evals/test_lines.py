"""Suites from files: what is read, and every file that is refused, with a word on what to do."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evals.suites import Suite, suite
from pipeline.core.storage import Store
from pipeline.recipe.custom import CustomCode
from pipeline.recipe.suites import ItemsSuite, preset_suite
from pipeline.rewards.verifiers import VerifierTask
from tests.grading import grade

SHARED = Path(__file__).parents[3] / "shared" / "data"
ROWS: list[dict[str, Any]] = [{"prompt": f"What is {n} + {n}?", "reference": str(2 * n)} for n in range(4)]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def read(root: Path, content: bytes, **fields: Any) -> Any:
    """The suite of a file below the data root."""
    store = Store(root)
    path = store.path("own.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return suite(store, ItemsSuite.model_validate({"name": "own", "path": str(path), **fields}), seed=1)


def test_items_are_read_with_defaults_for_what_they_lack(tmp_path: Path) -> None:
    own = read(tmp_path, lines(ROWS))
    assert [item.messages for item in own.items] == [[{"role": "user", "content": row["prompt"]}] for row in ROWS]
    assert [item.reference for item in own.items] == ["0", "2", "4", "6"]
    assert len({item.id for item in own.items}) == 4
    assert all((item.cluster, item.slice, item.check) == (item.id, "", "math") for item in own.items)


def test_any_of_a_list_of_references_is_right(tmp_path: Path) -> None:
    rows = [
        {"input": "Another name for PrEP?", "ideal": ["Truvada", "Descovy"]},
        {"input": "Capital?", "ideal": "Oslo"},
    ]
    own = read(tmp_path, lines(rows), fields={"prompt": "input", "reference": "ideal"}, check="normalised")
    outcomes = grade([VerifierTask(text, own.items[0].reference, "normalised") for text in ("descovy", "Oslo")])
    assert [each.outcome for each in outcomes] == ["correct", "wrong"]
    rows = [
        {"prompt": "Who?", "answer": {"text": ["Ada", "A. Berg"]}},
        {"prompt": "Where?", "answer": {"text": ["Oslo"]}},
    ]
    own = read(tmp_path, lines(rows), fields={"reference": "answer.text"}, check="normalised")
    assert [item.reference for item in own.items] == ['["Ada", "A. Berg"]', '["Oslo"]']


def test_conversations_get_system_prompt_and_instruction(tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": "1."},
        {"role": "user", "content": "2?"},
    ]
    told = [{"role": "system", "content": "Shout."}, {"role": "user", "content": "3?"}]
    rows = [{"messages": talk, "reference": "2"}, {"messages": told, "reference": "3"}]
    own = read(tmp_path, lines(rows), system="Be brief.", instruction=" Give a number.")
    asked = [own.messages(item) for item in own.items]
    assert [message["content"] for message in asked[0]] == ["Be brief.", "1?", "1.", "2? Give a number."]
    assert [message["content"] for message in asked[1]] == ["Shout.", "3? Give a number."]
    assert own.texts() == ("1?\n1.\n2?", "Shout.\n3?"), "training data is searched for the questions themselves"


LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
CALL = {"id": "x1", "type": "function", "function": {"name": "lookup", "arguments": '{"order": "A7"}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RETURNED = {"role": "tool", "tool_call_id": "x1", "content": "sent"}
WANTED = [{"name": "lookup", "arguments": {"order": "A7"}}]


def test_items_with_tools_ask_calls_and_follow_results(tmp_path: Path) -> None:
    where = {"role": "user", "content": "Where is A7?"}
    rows = [
        {"prompt": "Where is A7?", "tools": [LOOKUP], "reference": WANTED},
        {"messages": [where], "reference": "[]"},
        {"messages": [where, CALLING, RETURNED], "tools": [LOOKUP], "reference": "sent", "check": "contains"},
    ]
    own = read(tmp_path, lines(rows), check="calls", system="Be brief.", instruction=" Now.")
    asked = [own.messages(item) for item in own.items]
    assert [[m["role"] for m in each] for each in asked] == [
        ["tools", "system", "user"],
        ["system", "user"],
        ["tools", "system", "user", "assistant", "tool"],
    ]
    assert asked[2][2]["content"] == "Where is A7? Now." and asked[2][4]["content"] == "sent"
    assert json.loads(asked[2][3]["tool_calls"])[0]["id"] == asked[2][4]["tool_call_id"] == "call00000"
    assert [item.check for item in own.items] == ["calls", "calls", "contains"]
    assert json.loads(own.items[0].reference) == WANTED
    assert own.texts()[0] == "Where is A7?", "what every request offers identifies no item"
    renamed = [{"functions" if name == "tools" else name: value for name, value in row.items()} for row in rows]
    assert read(tmp_path, lines(renamed), check="calls", fields={"tools": "functions"}).items == own.items


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "reference": "refund A7"}, "its 'reference' is 'refund A7', and calls are"),
        ({"prompt": "a", "reference": [{"name": "f", "arguments": "{"}]}, "and calls are"),
        ({"prompt": "a", "tools": [], "reference": []}, "its 'tools' is no list of definitions"),
        ({"prompt": "a", "tools": [LOOKUP, {"name": "f"}], "reference": []}, "its 'tools' is no list of definitions"),
        ({"messages": [{"role": "user", "content": "a"}, CALLING], "reference": []}, "or a tool's result"),
        ({"messages": [{"role": "user", "content": "a"}, RETURNED], "reference": []}, "tool_call_id 'x1', and no call"),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}], "reference": []}, "has 'name', which nothing"),
        ({"messages": [{"role": "assistant", "content": None}], "reference": []}, "'assistant' has no text"),
        ({"messages": [{**CALLING, "tool_calls": [{"function": 1}]}], "reference": []}, "tool_calls is a list of"),
    ],
)
def test_a_line_with_tools_that_are_none_is_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refusal:
        read(tmp_path, lines([row]), check="calls")
    assert "line 1: " in str(refusal.value) and words in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty. Write an item on each line"),
        (b'{"prompt": "a", "reference": "1"', "line 1 is no JSON"),
        (b'{"prompt": "a", "reference": NaN}\n', "NaN is no JSON number"),
        (lines([{"prompt": "a", "reference": None}]), "its 'reference' is None"),
        (lines([{"prompt": "a", "reference": True}]), "its 'reference' is True"),
        (lines([{"prompt": "a", "reference": {"value": "b"}}]), "name what is right by its path"),
        (lines([{"prompt": "a", "reference": "!", "check": "normalised"}]), "which check: normalised cannot read"),
        (lines([{"prompt": "a", "reference": '{"type": 1}', "check": "json_schema"}]), "json_schema cannot read"),
        (lines([{"prompt": " ", "reference": "1"}]), "a prompt is a text"),
        (lines([{"reference": "1"}]), "it has neither of 'prompt' or 'messages'"),
        (lines([{"prompt": "a", "messages": [], "reference": "1"}]), "it has both of"),
        (lines([{"messages": [], "reference": "1"}]), "no list of messages"),
        (lines([{"messages": [{"role": "bot", "content": "a"}], "reference": "1"}]), "the role 'bot'"),
        (lines([{"messages": [{"role": "assistant", "content": "a"}], "reference": "1"}]), "last message is the"),
        (lines([{**ROWS[0], "clutser": "x"}]), "nothing reads its field 'clutser'. Name it in ignore"),
        (lines([{**ROWS[0], "check": "vibes"}]), "its 'check' is 'vibes', which is none of math, "),
        (lines([{**ROWS[0], "id": "a"}, {**ROWS[1], "id": "a"}]), "line 1 and line 2 have the id 'a'. Keep one"),
        (lines([{**ROWS[0], "id": "a"}, {**ROWS[0], "id": "b"}]), "line 1 and line 2 ask the same. Keep one"),
        (lines([{**row, "reference": "7"} for row in ROWS]), "every reference is '7': who always says that"),
        (lines([{**ROWS[0], "cluster": "c"}, ROWS[1], ROWS[2]]), "has no cluster, and others have"),
        (lines([{**ROWS[0], "cluster": {}}]), "its 'cluster' is {}, and a text belongs there"),
        (lines([{"prompt": "x" * 1_000_001, "reference": "1"}]), "at most 1,000,000 are read"),
        (b'{"prompt": "\xff", "reference": "1"}\n', "line 1 is no JSON"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_suite_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(ValueError) as refusal:
        read(tmp_path, content)
    assert words in str(refusal.value)
    assert f"The suite own at {tmp_path / 'own.jsonl'}" in str(refusal.value)


def test_a_file_outside_the_data_root_is_pinned_by_its_digest(tmp_path: Path) -> None:
    store, path = Store(tmp_path / "root"), tmp_path / "own.jsonl"
    path.write_bytes(lines(ROWS))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=f"lies outside the data root.*Give its sha256: {digest}"):
        suite(store, ItemsSuite(name="own", path=str(path)), 1)
    pinned = ItemsSuite(name="own", path=str(path), sha256=digest)
    assert len(suite(store, pinned, 1).items) == 4
    path.write_bytes(lines(ROWS[1:]))
    with pytest.raises(ValueError, match=f"and the recipe says {digest}"):
        suite(store, pinned, 1)
    path.unlink()
    with pytest.raises(ValueError, match=r"is not at .* Give its path"):
        suite(store, pinned, 1)


def test_a_part_of_a_file_is_drawn_by_the_seed(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + 1?", "reference": str(n + 1)} for n in range(50)]
    some = read(tmp_path, lines(rows), items=20)
    assert some == read(tmp_path, lines(rows), items=20)
    numbers = [int(item.reference) for item in some.items]
    assert len(numbers) == 20 and numbers == sorted(numbers), "in the file's order"
    with pytest.raises(ValueError, match="it has 4 items, and the recipe asks for 20"):
        read(tmp_path, lines(ROWS), items=20)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="there is no ../shared/data")
def test_gsm8k_is_read_from_the_authors_file(tmp_path: Path) -> None:
    asked = suite(Store(tmp_path), preset_suite("gsm8k", path=str(SHARED / "gsm8k" / "test.jsonl")), 1)
    assert len(asked.items) == 1319
    assert (asked.items[0].reference, asked.items[1].reference) == ("18", "3")
    assert asked.items[0].messages[0]["content"].startswith("Janet")
    assert asked.messages(asked.items[0])[0]["content"].endswith("#### and the number alone.")


def test_items_without_references_are_reports(tmp_path: Path) -> None:
    rows = [{"prompt": row["prompt"]} for row in ROWS]
    own = read(tmp_path, lines(rows), check="none", role="report")
    assert [(item.reference, item.check) for item in own.items] == [("", "none")] * 4
    with pytest.raises(ValidationError, match="so the suite cannot gate: set role: report"):
        read(tmp_path, lines(rows), check="none")


CODE = """
def make(seed, desk="all"):
    for n in range(40):
        yield {"prompt": f"{desk}: {n} + {seed}?", "reference": n + seed, "slice": desk}
"""


def made(folder: Path, source: str = CODE, items: int | None = None, **options: Any) -> Suite:
    (folder / "mine.py").write_text(source)
    custom = CustomCode(code=f"{folder}/mine.py:make", options=options)
    return suite(Store(folder), ItemsSuite(name="tickets", custom=custom, items=items), seed=5)


def test_items_of_code_are_those_of_a_file(tmp_path: Path) -> None:
    own = made(tmp_path, desk="returns")
    assert len(own.items) == 40
    assert (own.items[3].messages, own.items[3].reference) == ([{"role": "user", "content": "returns: 3 + 5?"}], "8")
    assert own.items[3].slice == "returns" and own.items[3].check == "math"
    assert made(tmp_path, desk="returns").digest() == own.digest()
    assert len(made(tmp_path, items=10).items) == 10


@pytest.mark.parametrize("given", [{}, {"path": "x", "custom": {"code": "m:f"}}, {"preset": "desk", "path": "x"}])
def test_items_have_one_source(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="give the suite path or custom, or one of the presets"):
        ItemsSuite.model_validate({"name": "own", **given})
