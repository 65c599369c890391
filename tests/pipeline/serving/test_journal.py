"""The journal of answers: what it keeps over a kill, and what it refuses to take for its own."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.core import layout
from pipeline.core.removal import make
from pipeline.core.storage import Store, write_atomically
from pipeline.serving.inference import Answer
from pipeline.serving.journal import AnswerProtocol, answer_key, open_journal, removals
from tests.answers import answer
from tests.evals.conftest import DECODING

PROTOCOL = AnswerProtocol(decoding=DECODING, temperature=1.0, max_completion_tokens=9, seed=1)


def given(key: str, text: str = "four") -> Answer:
    return answer(text).model_copy(update={"key": key})


def file(store: Store, protocol: AnswerProtocol = PROTOCOL) -> Path:
    return store.path(layout.answers("m", protocol.digest()))


def test_answers_are_there_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(3):
        with open_journal(store, "m", PROTOCOL) as journal:
            assert sorted(journal.answers) == [str(n) for n in range(number)]
            journal.add("item", given(str(number), f"Line\nbreaks, \u2028 and 東京 {number}"))
    with open_journal(store, "m", PROTOCOL) as journal:
        assert journal.answers["1"] == given("1", "Line\nbreaks, \u2028 and 東京 1")
    with open_journal(store, "other", PROTOCOL) as journal:
        assert journal.answers == {}


def test_a_line_that_was_cut_is_cut_off(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with open_journal(store, "m", PROTOCOL) as journal:
        journal.add("item", given("a"))
        journal.add("item", given("b"))
    whole = file(store).read_bytes()
    for cut in (1, 2, 40):
        file(store).write_bytes(whole[:-cut])
        with open_journal(store, "m", PROTOCOL) as journal:
            assert list(journal.answers) == ["a"]
            journal.add("item", given("b"))
        assert file(store).read_bytes() == whole


def test_lines_of_another_protocol_and_foreign_ones_are_refused(tmp_path: Path) -> None:
    store, other = Store(tmp_path), PROTOCOL.model_copy(update={"seed": 2})
    with open_journal(store, "m", other) as journal:
        journal.add("item", given("a"))
    file(store).write_bytes(file(store, other).read_bytes())
    with (
        pytest.raises(ValueError, match=r"Line 1 of .* was answered under the protocol .* Move the file away"),
        open_journal(store, "m", PROTOCOL),
    ):
        pass
    file(store).write_text('{"answer": "four"}\n')
    with (
        pytest.raises(ValueError, match=r"Line 1 of .* is no answer of this journal. Move the file away"),
        open_journal(store, "m", PROTOCOL),
    ):
        pass


def test_a_full_disk_is_an_error_and_loses_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, write = Store(tmp_path), os.write
    with open_journal(store, "m", PROTOCOL) as journal:
        journal.add("item", given("a"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:20]))
            with pytest.raises(OSError, match="make room"):
                journal.add("item", given("b"))
    with open_journal(store, "m", PROTOCOL) as journal:
        assert list(journal.answers) == ["a"]


WRITER = """
import sys, time
from pathlib import Path
sys.path[:0] = [{root!r}]
from tests.pipeline.serving.test_journal import PROTOCOL, given
from pipeline.serving.journal import open_journal
from pipeline.core.storage import Store, write_atomically
with open_journal(Store({store!r}), "m", PROTOCOL) as journal:
    print("open", flush=True)
    for number in range(10**9):
        journal.add("item", given(str(number)))
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_lines_and_no_lock(tmp_path: Path) -> None:
    root, store = Path(__file__).parents[3], Store(tmp_path)
    code = WRITER.format(root=str(root), store=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with file(store).open("rb") as stream, pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        while file(store).stat().st_size < 20_000:
            pass
        writer.send_signal(signal.SIGKILL)
    with open_journal(store, "m", PROTOCOL) as journal:
        assert len(journal.answers) > 50
        assert list(journal.answers) == [str(n) for n in range(len(journal.answers))]


def test_keys_hang_on_what_decides_the_answer_alone() -> None:
    messages = [{"role": "user", "content": "2 + 2?"}]
    key = answer_key("m", "p", "item", messages, 0)
    others = [
        answer_key("n", "p", "item", messages, 0),
        answer_key("m", "q", "item", messages, 0),
        answer_key("m", "p", "other", messages, 0),
        answer_key("m", "p", "item", [{"role": "user", "content": "2 + 3?"}], 0),
        answer_key("m", "p", "item", messages, 1),
    ]
    assert len({key, *others}) == 6
    assert key == answer_key("m", "p", "item", list(messages), 0)


def test_the_answers_to_an_item_are_erased_from_every_journal(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for model in ("m", "other"):
        with open_journal(store, model, PROTOCOL) as journal:
            journal.add("theirs", given("a", "a secret"))
            journal.add("another", given("b"))
    with file(store).open("ab") as torn:
        torn.write(b'{"protocol":"p","item":"theirs","answer":{"text":"a secret')
    assert [change.split(": ")[1] for change in make(removals(store, {"theirs"}))] == ["2 lines", "1 lines"]
    assert not [path for path in tmp_path.rglob("*.jsonl") if b"secret" in path.read_bytes()]
    for model in ("m", "other"):
        with open_journal(store, model, PROTOCOL) as journal:
            assert list(journal.answers) == ["b"]
    assert make(removals(store, {"theirs"})) == []


def test_who_waited_for_an_erasure_writes_into_the_new_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with open_journal(store, "m", PROTOCOL) as journal:
        journal.add("theirs", given("a"))
    writer = threading.Thread(target=add_one, args=(store,))
    descriptor = os.open(file(store), os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    writer.start()  # opens the file of now and waits for it, while it is replaced
    while not blocked(os.fstat(descriptor).st_ino):
        time.sleep(0.01)
    write_atomically(file(store), b"")
    os.close(descriptor)
    writer.join()
    with open_journal(store, "m", PROTOCOL) as journal:
        assert list(journal.answers) == ["late"]


def add_one(store: Store) -> None:
    with open_journal(store, "m", PROTOCOL) as journal:
        journal.add("item", given("late"))


def blocked(inode: int) -> bool:
    """Whether somebody waits for the lock of that file, as the kernel lists it."""
    return any("->" in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())
