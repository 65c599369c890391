"""What holds of server-side apply for whatever is sent."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from . import ssa
from .storage import Storage

DATA = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"), max_size=4)
ITEMS = st.dictionaries(st.sampled_from("xyz"), DATA, max_size=3)


def body(data: dict[str, str], items: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Some plain fields, and a list that is merged by name."""
    env = [{"name": name} | fields for name, fields in items.items()]
    return ({"data": data} if data else {}) | ({"env": env} if env else {})


def of(obj: dict[str, Any]) -> ssa.Fields:
    return ssa.fields({k: v for k, v in obj.items() if k != "metadata"})


@settings(max_examples=80)
@given(st.lists(st.tuples(st.sampled_from(["ours", "theirs"]), DATA, ITEMS), min_size=1, max_size=6))
def test_an_object_is_what_its_managers_last_sent(sent: list[tuple[str, dict[str, str], Any]]) -> None:
    storage, last = Storage(), dict[str, dict[str, Any]]()
    for manager, data, items in sent:
        last[manager] = body(data, items)
        result, _ = storage.apply("ConfigMap", "default", "m", last[manager], manager, force=True)
        fields, mine = of(result), ssa.fields(last[manager])
        assert all(fields[path] == value for path, value in mine.items())
        others = {path for other in last.values() for path in ssa.fields(other)}
        assert fields.keys() <= others
        owned = ssa.owners(result)
        assert owned.get((manager, "Apply", ""), set()) == mine.keys()
        again, _ = storage.apply("ConfigMap", "default", "m", last[manager], manager)
        assert again == result


@settings(max_examples=60)
@given(DATA, DATA)
def test_a_conflict_is_another_value_of_a_field_that_is_held(ours: dict[str, str], theirs: dict[str, str]) -> None:
    from .kinds import Refused

    storage = Storage()
    storage.apply("ConfigMap", "default", "m", {"data": ours} if ours else {}, "ours")
    clash = sorted(k for k in ours.keys() & theirs.keys() if ours[k] != theirs[k])
    try:
        result, _ = storage.apply("ConfigMap", "default", "m", {"data": theirs} if theirs else {}, "theirs")
        assert not clash and result.get("data", {}) == ours | theirs
    except Refused as refused:
        assert [cause["field"] for cause in refused.details["causes"]] == [f".data.{k}" for k in clash]
