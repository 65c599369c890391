"""The contract of every journal: what it keeps over a kill, what it refuses, and what forgetting takes from it."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.core.journal import Journal, JournalEntry, forget, latest, open_journal, read
from pipeline.core.removal import make
from pipeline.core.storage import Record, Store, write_atomically
from tests.full_disk import full_disk

ROOT = Path(__file__).parents[3]


class Said(Record):
    text: str


class Line(JournalEntry, kw_only=True):
    said: Said = Said(text="")
    tokens: int = 0


def line(key: str, owner: str | None = None, again: bool = False, text: str = "four") -> Line:
    return Line(key=key, owner=owner, again=again, said=Said(text=text), tokens=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "a.jsonl"


def test_entries_are_there_again_for_every_opening(path: Path) -> None:
    text = "Line\nbreaks, \u2028 and 東京"
    for number in range(3):
        with open_journal(path, Line) as journal:
            assert [each.key for each in journal.read()] == [str(n) for n in range(number)]
            journal.add(line(str(number), text=text))
            assert [each.key for each in read(path, Line)][-1] == str(number), "in the file once it is added"
    Journal(path, Line).add(line("3"), line("4"))
    assert [each.key for each in read(path, Line)] == [str(n) for n in range(5)]
    assert next(read(path, Line)) == line("0", text=text)
    assert list(read(path.with_name("none.jsonl"), Line)) == []


@pytest.mark.parametrize("cut", [1, 2, 40, 20_000])
def test_a_line_that_was_cut_is_nothing_and_is_cut_off(path: Path, cut: int) -> None:
    Journal(path, Line).add(line("a"), line("b", text="four" * 5000))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert [each.key for each in read(path, Line)] == ["a"], "a reader takes no lock"
    Journal(path, Line).add(line("b", text="four" * 5000))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b'{"text": "four"}', b'{"key": "a", "said": 4}', b"\xff", b'{"key": "a",'])
def test_a_whole_line_that_is_no_entry_is_named(path: Path, content: bytes) -> None:
    Journal(path, Line).add(line("a"))
    path.write_bytes(path.read_bytes() + content + b"\n")
    with pytest.raises(ValueError, match=r"Line 2 of .*a\.jsonl is no Line\. Move the file away"):
        Journal(path, Line).read()


def test_lines_of_another_digest_are_refused(path: Path) -> None:
    Journal(path, Line, "one").add(line("a"))
    assert [each.digest for each in Journal(path, Line, "one").read()] == ["one"]
    with pytest.raises(ValueError, match=r"Line 1 of .* has the digest 'one'\. Move the file away"):
        Journal(path, Line, "other").read()


@pytest.mark.parametrize("room", [0, 20, 150])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_full_disk_is_an_error_and_keeps_nothing_half(path: Path, room: int, is_open: bool) -> None:
    entries = [line(key, text="x" * 80) for key in "bc"]
    with ExitStack() as stack:
        journal = stack.enter_context(open_journal(path, Line)) if is_open else Journal(path, Line)
        journal.add(line("a"))
        before = path.read_bytes()
        with full_disk(path, room), pytest.raises(OSError, match=r"a\.jsonl cannot be written .* Make room"):
            journal.add(*entries)
        assert path.read_bytes() == before
        journal.add(*entries)
    assert [each.key for each in read(path, Line)] == ["a", "b", "c"]


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = [{root!r}]
from tests.pipeline.core.test_journal import Line, line, open_journal
with open_journal(Path({path!r}), Line) as journal:
    print("open", flush=True)
    for number in range(10**9):
        journal.add(line(str(number)))
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_lines_and_no_lock(path: Path) -> None:
    code = WRITER.format(root=str(ROOT), path=str(path))
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with path.open("rb") as stream, pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        while path.stat().st_size < 20_000:
            pass
        writer.send_signal(signal.SIGKILL)
    with open_journal(path, Line) as journal:
        keys = [each.key for each in journal.read()]
    assert len(keys) > 50 and keys == [str(n) for n in range(len(keys))]


@pytest.mark.parametrize("order", [(True, False), (False, True), (False, False), (True, True)])
def test_of_one_key_an_entry_that_stands_is_taken(order: tuple[bool, bool]) -> None:
    entries = [line("a", again=again, text=str(place)) for place, again in enumerate(order)]
    taken = latest([*entries, line("b")])
    assert taken.keys() == {"a", "b"}
    assert taken["a"].said.text == {(True, False): "1", (True, True): "1"}.get(order, "0")


def test_forgetting_takes_an_owners_lines_and_no_others(tmp_path: Path) -> None:
    store, paths = Store(tmp_path), [tmp_path / f"{name}.jsonl" for name in "ab"]
    for each in paths:
        Journal(each, Line).add(line("a", "ann", text="a secret"), line("b", "bob", text='"owner":"ann"'), line("c"))
    with paths[0].open("ab") as torn:
        torn.write(b'{"key":"d","owner":"ann","said":{"text":"a secret')
    kept = [each.read_bytes().splitlines(keepends=True)[1:3] for each in paths]
    removals = list(forget(store, paths, {"ann"}))
    assert [(each.name, each.rows) for each in removals] == [("a.jsonl", 2), ("b.jsonl", 1)]
    make(removals)
    assert [each.read_bytes().splitlines(keepends=True) for each in paths] == kept, "every other line to the byte"
    assert list(forget(store, paths, {"ann"})) == []


def test_something_may_stay_of_a_forgotten_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    Journal(path, Line).add(line("a", "ann"), line("b"))
    make(forget(Store(tmp_path), [path], {"ann"}, lambda text: b'{"key":"","tokens":3}\n'))
    assert [(each.key, each.tokens) for each in read(path, Line)] == [("", 3), ("b", 3)]


def test_who_waited_for_an_erasure_writes_into_the_new_file(path: Path) -> None:
    Journal(path, Line).add(line("theirs"))
    writer = threading.Thread(target=Journal(path, Line).add, args=(line("late"),))
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    writer.start()  # opens the file of now and waits for it, while it is replaced
    while not blocked(os.fstat(descriptor).st_ino):
        time.sleep(0.01)
    write_atomically(path, b"")
    os.close(descriptor)
    writer.join()
    assert [each.key for each in read(path, Line)] == ["late"]


def blocked(inode: int) -> bool:
    """Whether somebody waits for the lock of that file, as the kernel lists it."""
    return any(
        "->" in line and f":{inode} " in line for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    )
