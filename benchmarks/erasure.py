"""Erasure: a user planted in every format and place of raw data and in the table, forgotten, killed and forgotten.

    python -m benchmarks.erasure [--kills 100] [--rows 20000] [--seed 0]

Each kill is a SIGKILL at an event drawn from those of an undisturbed erasure (a file that is opened, renamed or
removed); the same erasure then runs to its end, and its proof is compared with the undisturbed one's. The last line is
JSON: `planted` places, `found` by the erasure, `left_after` by a search that shares no code with it, `kills`,
`proofs_differing`, `bytes_per_s` of decoded content through the whole erasure.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.demo import MODEL_DIR
from pipeline.erasure import forget
from pipeline.erasure.affected import Person
from pipeline.erasure.proof import proofs
from pipeline.mark_keys import MarkKeys
from pipeline.recipe import BaseModelSection, Compute, Recipe
from pipeline.recipe.traces import LangfuseExportSource, Traces
from pipeline.storage import ModelRef, Store
from pipeline.traces.context import StageContext
from pipeline.traces.lake import local_lake, open_lake
from pipeline.traces.materialize import materialize
from pipeline.traces.scope import Producer
from pipeline.traces.sources.protocol import Address

USER, OTHER = "user-ann-4711", "user-bob-0815"
NOW = datetime(2026, 1, 12, tzinfo=UTC)
EVENTS = frozenset({"open", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate", "sqlite3.connect"})
Row = dict[str, Any]


def row(number: int, user: str, text: str, metadata: str = "{}") -> Row:
    start = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(seconds=number)
    messages = json.dumps([{"role": "user", "content": f"Question {number}: {text}"}])
    return {
        "id": f"observation-{number:09}", "trace_id": f"trace-number-{number:09}", "type": "GENERATION", "name": "chat",
        "start_time": f"{start:%Y-%m-%d %H:%M:%S}.000000", "end_time": f"{start:%Y-%m-%d %H:%M:%S}.900000",
        "provided_model_name": "m", "input": messages, "output": f"An answer, number {number}", "user_id": user,
        "session_id": f"session-{number}", "metadata": metadata,
    }  # fmt: skip


PLACES: dict[str, Callable[[int], Row]] = {
    "owner": lambda n: row(n, USER, "mine"),
    "owner, other case": lambda n: row(n, USER.upper(), "mine"),
    "another's text": lambda n: row(n, OTHER, f"is {USER} there?"),
    "another's text, in a URL": lambda n: row(n, OTHER, f"https://host/u/{USER}?q=1"),
    "another's metadata, JSON in text": lambda n: row(n, OTHER, "no", json.dumps({"note": json.dumps({"by": USER})})),
}


def jsonl(rows: list[Row]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in rows)


def csv_text(rows: list[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet(rows: list[Row]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


FORMATS: dict[str, Callable[[list[Row]], bytes]] = {
    "lines.jsonl": jsonl,
    "lines.jsonl.gz": lambda rows: gzip.compress(jsonl(rows)),
    "lines.jsonl.zst": lambda rows: pa.compress(jsonl(rows), codec="zstd", asbytes=True),
    "array.json": lambda rows: json.dumps(rows, indent=1).encode(),
    "rows.csv": csv_text,
    "rows.csv.gz": lambda rows: gzip.compress(csv_text(rows)),
    "rows.parquet": parquet,
}


def decoded(path: Path) -> Iterator[bytes]:
    """The content as plain libraries read it."""
    content = path.read_bytes()
    yield content
    if path.suffix == ".gz":
        yield gzip.decompress(content)
    elif path.suffix == ".zst":
        yield pa.input_stream(io.BytesIO(content), compression="zstd").read()
    elif path.suffix == ".parquet":
        yield json.dumps(pq.read_table(path).to_pylist(), default=str).encode()


def holding(root: Path) -> list[str]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return [str(p.relative_to(root)) for p in files if any(USER.encode() in each.lower() for each in decoded(p))]


def context_of(root: Path, log: Callable[[str], None] = lambda line: None) -> StageContext:
    store = Store(root, MarkKeys("5e" * 32))
    source = LangfuseExportSource(uri=str(root / "export"))
    base = BaseModelSection(name="m", uri=str(MODEL_DIR))
    traces = Traces(source=source, min_admitted_share=0.0)
    recipe = Recipe(name="bench", base_model=base, traces=traces, compute=Compute(workers=1))
    return StageContext(store, recipe, local_lake(store), log, "")


def plant(root: Path, rows: int) -> int:
    """A table made of an export, and raw files in every format beside it; how many places hold the user."""
    agreed = json.dumps({"user_consent": "true"})
    everybody = [row(n, USER if n % 50 == 0 else OTHER, "hello", agreed) for n in range(rows)]
    export = root / "export" / "observations_v2"
    export.mkdir(parents=True)
    (export / "2026-01-05.jsonl.gz").write_bytes(gzip.compress(jsonl(everybody)))
    context = context_of(root)
    source = context.recipe.traces.source
    materialize(context, Address(source, str(root / "export")), Producer(ModelRef(uri="m", digest="m"), "m"), 0, NOW)
    with open_lake(context.lake) as lake:
        assert lake.rows_of({USER}, None), "the table holds the user"
    for place, make in PLACES.items():
        for name, write in FORMATS.items():
            path = root / "beside" / place.replace(" ", "_").replace("'", "").replace(",", "") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(write([row(10**6 + n, OTHER, "nobody") for n in range(20)] + [make(2 * 10**6)]))
    return len(PLACES) * len(FORMATS) + 2


def erase(root: str, kill_at: int, events: str) -> None:
    """In a process of its own: killed at an event, or at its end the number of events and the seconds are written."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in EVENTS:
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    started = time.perf_counter()
    forget(context_of(Path(root)), Person.named(USER), registry_uri=f"sqlite:///{root}/mlflow.db", now=NOW)
    Path(events).write_text(json.dumps([count, time.perf_counter() - started]))


def run(context: Any, root: Path, kill_at: int, events: Path) -> int:
    process = context.Process(target=erase, args=(str(root), kill_at, str(events)))
    process.start()
    process.join()
    return process.exitcode


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--rows", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    spawn = multiprocessing.get_context("forkserver")
    spawn.set_forkserver_preload(["benchmarks.erasure"])
    draw = random.Random(asked.seed)
    with tempfile.TemporaryDirectory(prefix="erasure-") as folder:
        original, undisturbed, events = Path(folder, "planted"), Path(folder, "undisturbed"), Path(folder, "events")
        planted = plant(original, asked.rows)
        before = holding(original)
        shutil.copytree(original, undisturbed)
        assert run(spawn, undisturbed, 0, events) == 0
        total, seconds = json.loads(events.read_text())
        (proof,) = proofs(context_of(undisturbed).store)
        left = holding(undisturbed)
        erased_names = {name.partition(": ")[0] for name in proof.removed}
        erased_places = sum(name in erased_names for name in before if name.startswith(("beside", "export"))) + bool(
            proof.rows
        )
        print(f"{total} events, {seconds:.1f} s; left: {left}; remains: {proof.remains}", flush=True)
        differing = killed = 0
        for number in range(asked.kills):
            root, kill_at = Path(folder, "killed"), draw.randint(1, total)
            shutil.copytree(original, root)
            killed += run(spawn, root, kill_at, events) == -signal.SIGKILL
            assert run(spawn, root, 0, events) == 0
            (again,) = proofs(context_of(root).store)
            same = again.statement() == proof.statement() and not holding(root)
            differing += not same
            if not same:
                print(f"kill {number} at event {kill_at}: {again.statement()} {holding(root)}", flush=True)
            shutil.rmtree(root)
    figures = {"planted": planted, "found": erased_places, "left_after": len(left), "kills": killed}
    figures |= {"proofs_differing": differing, "bytes_per_s": round(proof.checked_bytes / seconds)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
