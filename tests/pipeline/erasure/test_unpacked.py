"""Arrow and SQLite that unpack to more than may be held: searched a piece at a time, or refused by name."""

import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.erasure import arrow_batches, arrow_texts, formats
from pipeline.erasure.identifiers import Identifiers
from pipeline.erasure.search import search
from pipeline.storage import Store

ANN = "user-1234567"
MEBIBYTE = 1 << 20
MOST = 120
"""Mebibytes by which a process may grow over a file that unpacks to several times as many."""

CHILD = """
import json, sys
from pathlib import Path
from pipeline.erasure.identifiers import Identifiers
from pipeline.erasure.search import search
from pipeline.storage import Store
import pyarrow.compute, numpy

def peak():  # of this program alone: ru_maxrss begins with what its parent had
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024

before = peak()
remains = search(Store(Path(sys.argv[1])), Identifiers(["user-1234567"])).remains
print(json.dumps([peak() - before, remains]))
"""


def searched_apart(root: Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, "-c", CHILD, str(root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, remains = json.loads(done.stdout)
    return grown, remains


def write(path: Path, table: Any, form: str = "file", codec: str | None = "zstd", **options: bool) -> None:
    new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=codec, **options)) as writer:
        writer.write_table(table)


def computed(path: Path, size: int, rest: str = "") -> None:
    """A file of some kilobytes whose columns come to so many bytes each."""
    with closing(sqlite3.connect(path)) as connection:
        columns = "".join(f", c{n} text generated always as (printf('%.*c', {size}, 'x'))" for n in range(8))
        connection.execute(f"create table t (a text{columns}{rest})")
        connection.execute("insert into t (a) values (?)", [ANN])
        connection.commit()


@pytest.mark.slow
def test_what_unpacks_to_more_than_memory_is_bounded(tmp_path: Path) -> None:
    """In one process, whose peak is that of the worst of them."""
    blanks = pa.table({"a": ["b" * MEBIBYTE] * 200})
    for form in ("file", "stream"):
        write(tmp_path / f"{form}.arrow", blanks, form)
    write(tmp_path / "dictionary.arrow", pa.table({"a": pa.chunked_array([blanks["a"].chunk(0).dictionary_encode()])}))
    with closing(sqlite3.connect(tmp_path / "value.db")) as connection:
        connection.execute("create table t (a text, b blob)")
        connection.execute("insert into t values ('', zeroblob(?))", [200 * MEBIBYTE])
        connection.commit()
    computed(tmp_path / "computed.db", 15 * MEBIBYTE)
    grown, remains = searched_apart(tmp_path)
    assert grown < MOST, f"{grown} MiB"
    refused = f"bytes, over {arrow_batches.MAX_PAGE}"
    assert [line.partition(": ")[0] for line in remains if line.endswith(refused)] == ["file.arrow", "stream.arrow"]
    assert f"value.db: not searched, a value inflates to over {formats.MAX_LINE} bytes" in remains
    assert "computed.db" in remains and len(remains) == 4  # a dictionary of one mebibyte is no bomb


TYPES: dict[str, Callable[[], Any]] = {
    "a view": lambda: pa.array(["x" * 40, ANN], pa.string_view()),
    "a view of bytes": lambda: pa.array([None, ANN.encode()], pa.binary_view()),
    "a view of lists": lambda: pa.array([[], [ANN]], pa.list_view(pa.string())),
    "runs": lambda: pa.RunEndEncodedArray.from_arrays([2], pa.array([ANN])),
    "a union": lambda: pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["", ANN])]
    ),
    "a dictionary": lambda: pa.array(["a", ANN]).dictionary_encode(),
    "a text of more than a piece": lambda: pa.array(["z" * 3000, "a " * 900 + ANN + " b" * 900]),
}  # fmt: skip


@pytest.mark.parametrize("form", ["file", "stream"])
@pytest.mark.parametrize("what", TYPES)
def test_texts_of_every_type_of_arrow_are_searched(
    what: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_texts, "PIECE", 1000)
    for codec in ("lz4", None):
        write(tmp_path / f"{codec}.arrow", pa.table({"a": TYPES[what]()}), form, codec)
    assert search(Store(tmp_path), Identifiers([ANN])).remains == ("None.arrow", "lz4.arrow")
    assert search(Store(tmp_path), Identifiers([ANN[:-1]])).remains == ()


def growing(path: Path) -> None:
    """A dictionary that every batch of the stream adds to."""
    texts = [f"{n:04}" * 25 for n in range(60)]
    tables = [pa.table({"a": pa.array(texts[:n]).dictionary_encode()}) for n in (20, 40, 60)]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(str(path), tables[0].schema, options=options) as writer:
        for table in tables:
            writer.write_table(table)


def pointing(path: Path) -> None:
    """A text that many rows point to."""
    view = pa.array(["q" * 100], pa.string_view()).buffers()
    views = [None, pa.py_buffer(view[1].to_pybytes() * 60), view[2]]
    write(path, pa.table({"a": pa.Array.from_buffers(pa.string_view(), 60, views)}), codec=None)


OVER: dict[str, Callable[[Path], None]] = {
    "a file": lambda path: write(path, pa.table({"a": ["b" * 5000]})),
    "a stream": lambda path: write(path, pa.table({"a": ["b" * 5000]}), "stream"),
    "a dictionary": lambda path: write(path, pa.table({"a": pa.array(["b" * 5000]).dictionary_encode()})),
    "a dictionary that grows": growing,
    "views": pointing,
}


@pytest.mark.parametrize("what", OVER)
def test_a_batch_that_inflates_too_far_is_named(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (arrow_batches, arrow_texts):
        monkeypatch.setattr(module, "MAX_PAGE", 4000)
    OVER[what](tmp_path / "a.arrow")
    (line,) = search(Store(tmp_path), Identifiers([ANN])).remains
    assert line.startswith("a.arrow: not searched, a batch inflates to ") and line.endswith(" bytes, over 4000")


def test_a_large_batch_that_is_stored_as_it_is_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batches, "MAX_PAGE", 4000)
    write(tmp_path / "a.arrow", pa.table({"a": ["b" * 5000, ANN]}), codec=None)
    assert search(Store(tmp_path), Identifiers([ANN])).remains == ("a.arrow",)


def test_a_computed_column_is_not_computed(tmp_path: Path) -> None:
    """Its values are nowhere in the file; a stored one is."""
    computed(tmp_path / "a.db", 9, ", s text generated always as ('user-' || a) stored")
    assert search(Store(tmp_path), Identifiers([f"user-{ANN}"])).remains == ("a.db",)
    assert search(Store(tmp_path), Identifiers(["user-7654321"])).remains == ()


def test_damaged_arrow_ends_no_process(tmp_path: Path) -> None:
    """Flipped and cut copies are searched in a process of its own: an offset out of bounds would end it."""
    whole, chance = tmp_path / "whole", random.Random(7)
    table = pa.table({"a": ["b" * 30, "c"], "n": [[1], [2, 3]], "d": pa.array(["x", "y"]).dictionary_encode()})
    (root := tmp_path / "root").mkdir()
    for form in ("file", "stream"):
        write(whole, table, form)
        content = whole.read_bytes()
        for n in range(80):
            copy = bytearray(content[: chance.randrange(8, len(content))] if n % 5 == 0 else content)
            for _ in range(chance.randrange(1, 4)):
                copy[chance.randrange(6, len(copy))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            (root / f"{form}{n:03}.arrow").write_bytes(copy)
    grown, remains = searched_apart(root)
    assert grown < MOST and len(remains) > 20 and all(": not searched, " in line for line in remains)
