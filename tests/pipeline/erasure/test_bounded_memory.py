"""Files that are larger than what may be held: a child process reads, rewrites and searches them in bounded memory."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.variants import one_and_variants

ANN, BOB = "user-ann-0001", "user-bob-0002"
MEBIBYTE = 1 << 20
SIZE, MOST = 160, 120
"""Mebibytes of a file's content, and by how much a process may grow over it."""
GROUP, MOST_OF_GROUP = 480, 360
"""The same of a row group, which is read and written by pages and batches of tens of mebibytes."""

CHILD = """
import hashlib, json, sys
from pathlib import Path
from pipeline.erasure.identifiers import Identifiers
from pipeline.erasure.raw import owned, raw_files, rewrite
from pipeline.erasure.search import search
from pipeline.erasure.units import RecordTest
from pipeline.storage import Store
from pipeline.traces.sources.langfuse_export import LangfuseExport
import pyarrow.parquet, pyarrow.compute, isal.igzip_lib, numpy

def peak():  # of this program alone: ru_maxrss begins with what its parent had
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024

before = peak()
store, person = Store(Path(sys.argv[1])), Identifiers(["user-ann-0001"])
source = LangfuseExport(str(store.path("raw")))
read = [rows for part in source.parts() for rows in source.rows(part, hashlib.sha256())]
rejected = [(each.reason, each.line) for rows in read for each in rows.rejected]
test, files = RecordTest(person, None), raw_files(store)
own = owned(files, test)
changes = [str(change) for path in files for change in rewrite(store, path, test, own.heads)]
print(json.dumps([peak() - before, changes, search(store, person).remains, rejected]))
"""


def own_line(user: str, number: int) -> bytes:
    return json.dumps({"user_id": user, "id": f"observation-{number}", "trace_id": f"trace-{number:08d}"}).encode()


def endless(begin: bytes, end: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        name = "a.json" if begin.startswith(b"[") else "a.csv" if begin.startswith(b"user_id") else "a.jsonl"
        with gzip.open(folder / name, "wb", compresslevel=1) as stream:
            stream.write(begin)
            stream.writelines(b"text " * (MEBIBYTE // 5) for _ in range(SIZE))
            stream.write(end)
        return folder / name

    return write


def parquet(page: int, rows: int, size: int = SIZE) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        users = [ANN if n % 1000 == 0 else f"user-{n}" for n in range(rows)]
        texts = ["q" * (size * MEBIBYTE // rows)] * rows
        table = pa.table({"user_id": users, "id": [f"o-{n}" for n in range(rows)], "input": texts})
        file = folder / "a.parquet"
        pq.write_table(
            table, file, rows, compression="zstd", data_page_size=page, write_batch_size=20, use_dictionary=False
        )
        return file

    return write


LINE = b'{"user_id":"' + ANN.encode() + b'","input":"'
CASES: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "a line without an end": (
        endless(own_line(BOB, 1) + b"\n" + LINE, b'"}\n' + own_line(ANN, 2) + b"\n"), "1 lines", "a.jsonl"),
    "an element without an end": (endless(b"[" + LINE, b'"}]\n'), "", "a.json"),
    "a row of CSV without an end": (endless(b"user_id,input\n" + ANN.encode() + b',"', b'"\n'), "", "a.csv"),
    "a row group": (parquet(MEBIBYTE, 4000, GROUP), "4 lines", ""),
    "a page": (parquet(1 << 30, 4000), "", "a page of column input inflates to"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", one_and_variants(CASES, "a line without an end"))
def test_a_file_larger_than_memory_is_bounded(what: str, tmp_path: Path) -> None:
    write, changed, remains = CASES[what]
    folder = tmp_path / "raw" / "observations_v2"
    folder.mkdir(parents=True)
    write(folder)
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, changes, left, rejected = json.loads(done.stdout)
    assert grown < (MOST_OF_GROUP if what == "a row group" else MOST), f"{grown} MiB"
    assert len(changes) == bool(changed) and all(each.endswith(changed) for each in changes)
    assert len(left) == bool(remains) and all(remains in each for each in left)
    if what != "a row group":
        assert [reason for reason, _ in rejected if reason in ("too_long", "too_large")], rejected
