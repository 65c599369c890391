"""The log as a whole: its chain, a crash at each write, several processes, and every way to tamper with it."""

import json
import multiprocessing
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core import audit
from pipeline.core.audit import HEAD, LOG, Head, entries, record, verify
from pipeline.core.storage import Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def fill(store: Store, count: int = 5) -> Store:
    for n in range(count):
        record(store, "admission", f"2026-01-{n + 1:02d}", {"admitted": n, "share": 0.1 * n}, NOW)
    return store


def lines(store: Store) -> list[bytes]:
    return store.path(LOG).read_bytes().splitlines(keepends=True)


def write(store: Store, content: list[bytes]) -> None:
    store.path(LOG).write_bytes(b"".join(content))


def test_entries_are_chained_and_verify(tmp_path: Path) -> None:
    store = fill(Store(tmp_path))
    result = list(entries(store))
    assert [e.n for e in result] == [1, 2, 3, 4, 5]
    assert [e.previous for e in result] == [audit.START, *(e.digest for e in result[:-1])]
    assert verify(store) == audit.Verified(entries=5, head=result[-1].digest)
    assert result[0].at == "2026-01-05T12:00:00.000000+00:00"
    assert verify(Store(tmp_path / "empty")) == audit.Verified(entries=0, head=audit.START)


def test_once_is_once_for_a_kind_and_a_subject(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert record(store, "promotion", "r1", {}, NOW, once=True) is not None
    assert record(store, "promotion", "r1", {"other": 1}, NOW, once=True) is None
    assert record(store, "erasure", "r1", {}, NOW, once=True) is not None
    assert record(store, "promotion", "r1", {}, NOW) is not None
    assert [e.kind for e in entries(store)] == ["promotion", "erasure", "promotion"]


def change(content: list[bytes]) -> list[bytes]:
    return [*content[:2], content[2].replace(b'"admitted":2', b'"admitted":3'), *content[3:]]


def change_with_digest(content: list[bytes]) -> list[bytes]:
    """As above, by somebody who knows how a digest is made."""
    entry = audit.Entry.model_validate_json(change(content)[2])
    forged = entry.model_copy(update={"digest": entry.content_digest()})
    return [*content[:2], forged.model_dump_json().encode() + b"\n", *content[3:]]


def forge(content: list[bytes]) -> list[bytes]:
    """A sixth line that follows the fifth in every respect."""
    last = audit.Entry.model_validate_json(content[-1])
    bare = last.model_copy(update={"n": 6, "subject": "forged", "previous": last.digest})
    entry = bare.model_copy(update={"digest": bare.content_digest()})
    return [*content, entry.model_dump_json().encode() + b"\n"]


TAMPERED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "changed": (change, 3),
    "changed, its digest too": (change_with_digest, 4),
    "removed": (lambda c: [*c[:1], *c[2:]], 2),
    "first removed": (lambda c: c[1:], 1),
    "inserted": (lambda c: [*c[:2], c[0], *c[2:]], 3),
    "swapped": (lambda c: [c[0], c[2], c[1], *c[3:]], 2),
    "cut after a line": (lambda c: c[:4], 5),
    "cut to nothing": (lambda c: [], 1),
    "cut within the last line": (lambda c: [*c[:4], c[4][:30]], 5),
    "half a line added": (lambda c: [*c, b'{"n":6'], 6),
    "forged at the end": (forge, 7),
    "blank line": (lambda c: [*c[:3], b"\n", *c[3:]], 4),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_line_is_found(how: str, tmp_path: Path) -> None:
    store = fill(Store(tmp_path))
    tamper, line = TAMPERED[how]
    write(store, tamper(lines(store)))
    result = verify(store)
    assert result.flaw
    assert result.line == line, result


@pytest.mark.parametrize("how", ["cut after a line", "cut to nothing", "cut within the last line", "forged at the end"])
def test_audit_refuses_to_append_to_a_log_unlike_its_head(how: str, tmp_path: Path) -> None:
    store = fill(Store(tmp_path))
    write(store, TAMPERED[how][0](lines(store)))
    before = lines(store)
    with pytest.raises(ValueError, match="verify"):
        record(store, "admission", "x", {}, NOW)
    assert lines(store) == before


def test_a_lost_head_is_found(tmp_path: Path) -> None:
    store = fill(Store(tmp_path))
    store.path(HEAD).unlink()
    assert "head.json is gone" in verify(store).flaw
    with pytest.raises(ValueError, match="verify"):
        record(store, "admission", "x", {}, NOW)


@pytest.mark.parametrize("written", [0, 1, 20, "all but the newline", "all"])
def test_a_crash_while_a_line_is_written_is_healed_and_noted(written: int | str, tmp_path: Path) -> None:
    store = fill(Store(tmp_path), 2)
    head = store.read(HEAD, Head)
    record(store, "admission", "third", {}, NOW)
    *before, third = lines(store)
    following = json.loads(third)["digest"]
    assert head is not None
    store.write(HEAD, head.model_copy(update={"following": following}))  # announced, and then the machine stopped
    cut = {"all": len(third), "all but the newline": len(third) - 1}.get(str(written), written)
    assert isinstance(cut, int)
    write(store, [*before, third[:cut]])
    assert not verify(store).flaw, "a crash is no tampering"
    record(store, "admission", "fourth", {}, NOW)
    assert not verify(store).flaw
    result = [(e.kind, e.subject) for e in entries(store)][2:]
    if written == 0:
        assert result == [("admission", "fourth")]
    elif written == "all":
        assert result == [("admission", "third"), ("admission", "fourth")]
    else:
        (kind, aside), last = result
        assert (kind, last) == ("healed", ("admission", "fourth"))
        assert store.path(aside).read_bytes() == third[:cut]


def append_many(root: Path, worker: int) -> None:
    for n in range(25):
        record(Store(root), "admission", f"{worker}/{n}", {}, NOW)
        record(Store(root), "promotion", f"{n}", {}, NOW, once=True)


@pytest.mark.slow
def test_several_processes_append_to_one_chain(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=append_many, args=(tmp_path, w)) for w in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    store = Store(tmp_path)
    assert verify(store).entries == 4 * 25 + 25
    assert not verify(store).flaw
    assert sorted(e.subject for e in entries(store) if e.kind == "promotion") == sorted(str(n) for n in range(25))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fill(Store(tmp_path_factory.mktemp("log")), 3)


@settings(max_examples=40)
@given(data=st.data())
def test_no_byte_can_be_changed_unseen(three: Store, data: st.DataObject) -> None:
    before, log = [e.model_dump() for e in entries(three)], three.path(LOG)
    raw = log.read_bytes()
    at = data.draw(st.integers(0, len(raw) - 1))
    new = data.draw(st.integers(0, 255).filter(lambda b: b != raw[at]))
    log.write_bytes(raw[:at] + bytes([new]) + raw[at + 1 :])
    try:
        if not verify(three).flaw:  # JSON has many spellings of one value
            assert [e.model_dump() for e in entries(three)] == before
    finally:
        log.write_bytes(raw)
