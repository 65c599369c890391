import errno
import fcntl
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import (
    DatasetRef,
    Record,
    Store,
    digest_dir,
    digest_json,
    sweep_unfinished,
    unfinished_name,
    write_atomically,
)


class Fact(Record):
    value: int


def test_create_has_one_winner_among_many(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: store.create("a/fact.json", Fact(value=n)), range(32)))
    assert sum(won) == 1
    assert store.read("a/fact.json", Fact) == Fact(value=won.index(True))
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["fact.json"]


def test_once_makes_a_record_once(tmp_path: Path) -> None:
    store, result = Store(tmp_path), []

    def make() -> Fact:
        result.append(1)
        return Fact(value=len(result))

    assert store.once("f.json", Fact, make) == store.once("f.json", Fact, make) == Fact(value=1)


def test_staged_publishes_all_or_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(RuntimeError), store.staged("out") as staging:
        (staging / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with store.staged("out") as staging:
        (staging / "whole").write_text("x")
    assert (tmp_path / "out" / "whole").read_text() == "x"


def test_staged_leaves_the_first_attempt_standing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for content in ("first", "second"):
        with store.staged("out") as staging:
            (staging / "file").write_text(content)
    assert (tmp_path / "out" / "file").read_text() == "first"


def test_an_unreadable_record_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"value": ')
    with pytest.raises(ValueError, match="Move it away"):
        Store(tmp_path).read("f.json", Fact)


def test_a_remote_root_is_refused() -> None:
    with pytest.raises(ValueError, match="give a path"):
        Store("s3://bucket/root")


def test_digest_follows_content_not_order_or_place(tmp_path: Path) -> None:
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "file").write_text("same")
    assert digest_dir(tmp_path / "one") == digest_dir(tmp_path / "two")
    (tmp_path / "two" / "sub" / "file").write_text("other")
    assert digest_dir(tmp_path / "one") != digest_dir(tmp_path / "two")


@pytest.mark.slow
def test_a_killed_writer_leaves_no_half_record(tmp_path: Path) -> None:
    code = (
        "from pipeline.core.storage import Store, DatasetRef\n"
        f"store = Store({str(tmp_path)!r})\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    store.write('ref.json', DatasetRef(uri='x' * 100_000, rows=n, digest=str(n)))\n"
        "    print(n, flush=True)\n"
    )
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(7):
                writer.stdout.readline()
            writer.kill()
        result = Store(tmp_path).read("ref.json", DatasetRef)
        assert result is not None
        assert result.digest == str(result.rows)
        assert (tmp_path / "ref.json").stat().st_size > 100_000


def test_locks_are_taken_as_a_network_file_system_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flock(2): on NFS a shared lock needs a file opened for reading, an exclusive one a file opened for writing."""
    flock = fcntl.flock

    def strict(descriptor: Any, how: int) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        needed = os.O_WRONLY if how & fcntl.LOCK_EX else os.O_RDONLY
        if stat.S_ISREG(os.fstat(number).st_mode) and mode not in (needed, os.O_RDWR):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", strict)
    write_atomically(tmp_path / "a.json", "{}")
    left = unfinished_name(tmp_path / "b.json")
    left.write_text("{")
    assert sweep_unfinished(tmp_path) == [left]
