"""Forgets ids that stand in other people's texts, one by one, and again after SIGKILLs: `python -m benchmarks.erasure`.
The last line is JSON: `planted` rows, `found`, `left_after` with their owner, `others_changed`, `kills`,
`proofs_differing`, `bytes_per_s`. Rows are read by plain libraries, which share no code with the erasure."""

import gzip
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.contexts import stage_context
from benchmarks.parts import options
from pipeline.core.mark_keys import MarkKeys
from pipeline.core.storage import ModelRef, Store
from pipeline.governance.erasure import forget
from pipeline.governance.erasure.records import ErasureProof, Person, proofs
from pipeline.recipe.sources import DemoSource
from pipeline.recipe.traces import Traces
from pipeline.rollout.gateway.spans import otlp_attributes
from pipeline.traces.context import StageContext
from pipeline.traces.lake import open_lake
from pipeline.traces.materialize import materialize
from pipeline.traces.scope import Producer
from pipeline.traces.sources.protocol import Address

NOW = datetime(2026, 1, 12, tzinfo=UTC)
EVENTS = frozenset({"open", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate", "sqlite3.connect"})
IDS = (
    *("42", "7", "0", "role", "user", "assistant", "thumb", "ann", "ANN", "Ann", "bob", "martin", "martin2", "the"),
    *("content", "input", "user_id", "trace_id", "null", "true", "[]", "a b", 'quo"te', "caf\u00e9", "Caf\u00e9", "K"),
    *("erased", "score", "text", "chat", "stop", "1", "session:s"),
)
PLACES = (
    "governed table",
    "spans of the gateway",
    "feedback at the gateway",
    "findings of judges and verifiers",
    "the embedded export",
)
"""Where rows are planted, as a proof names it."""
Rows = Counter[tuple[str, str, str]]
"""Place, owner and content of each row."""


def statement(proof: ErasureProof) -> dict[str, Any]:
    """What a proof says of the person: the same after every kill."""
    return proof.model_dump(mode="json", exclude={"id", "nonce", "requested", "finished"})


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def plant(root: Path, count: int, ids: Sequence[str] = IDS) -> None:
    """A deployment with `count` rows in each place, round robin over the users; of a third of the spans an attribute
    alone says whose they are."""
    calls, spans, said, findings = [], [], [], []
    for n in range(count):
        user, other, trace = ids[n % len(ids)], ids[(n + 1) % len(ids)], f"{n:032x}"
        at = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(seconds=n)
        text = f"Question {n}: {other} says x{other}x {json.dumps({'user_id': other})}"
        messages = json.dumps([{"role": "user", "content": text}])
        calls.append({
            "id": f"o{trace}", "trace_id": trace, "type": "GENERATION", "name": "chat", "user_id": user,
            "start_time": f"{at:%Y-%m-%d %H:%M:%S}.000000", "end_time": f"{at:%Y-%m-%d %H:%M:%S}.900000",
            "provided_model_name": "m", "input": messages, "output": other, "session_id": trace,
            "metadata": json.dumps({"user_consent": "true", "region": "us"}),
        })  # fmt: skip
        named = {"recorded_at": at.timestamp(), "trace_id": trace, "timestamp": at.isoformat()}
        marks = otlp_attributes([("user.id", user), ("gen_ai.input.messages", messages)])
        span = {"traceId": trace, "spanId": trace[:16], "startTimeUnixNano": "1", "attributes": marks}
        spans.append(
            {**named, **({"user_id": user} if n % 3 else {}), "resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
        )
        said.append({**named, "resourceLogs": [{"scopeLogs": [{"logRecords": [{"traceId": trace}]}]}]})
        finding = {"key": trace, "owner": user, "source": "judge", "account": "i", "trace_id": trace, "answer": text}
        findings.append(finding)
    lines(root / "production/observations_v2/2026-01-05.jsonl.gz", calls)
    lines(root / "production/served/m/2026-01-05-1.jsonl", spans)
    lines(root / "production/served/m/evaluation_results/2026-01-05-1.jsonl", said)
    lines(root / "rewards/findings/2026-01-05/1.jsonl", findings)
    context = context_of(root)
    address = Address(context.recipe.traces.source, str(root / "production"))
    materialize(context, address, Producer(ModelRef(uri="m", digest="m"), "m"), 0, NOW)


def context_of(root: Path) -> StageContext:
    traces = Traces(source=DemoSource(), min_admitted_share=0.0)
    return stage_context(Store(root, MarkKeys("5e" * 32)), name="m", traces=traces)


def rows_of(root: Path, ids: Sequence[str] = IDS) -> Rows:
    """Every row of every place with its owner, whom the number of its trace tells."""
    rows: Rows = Counter()
    for path in [*root.glob("production/**/*.jsonl*"), *root.glob("rewards/findings/*/*.jsonl")]:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for line in content.splitlines():
            owner = ids[int(json.loads(line)["trace_id"], 16) % len(ids)]
            rows[str(path.relative_to(root)), owner, line.decode()] += 1
    context = context_of(root)
    with open_lake(context.lake) as lake:
        for row in lake.read(sorted(lake.digests()), lake.snapshot).to_pylist():
            rows["table", ids[int(row["trace_id"], 16) % len(ids)], repr(row)] += 1
    return rows


def without(rows: Rows, user: str) -> Rows:
    return Counter({row: n for row, n in rows.items() if row[1] != user})


def erase(root: str, user: str, kill_at: int, events: str) -> None:
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
    forget(context_of(Path(root)), Person.named(user), registry_uri=f"sqlite:///{root}/mlflow.db", now=NOW)
    Path(events).write_text(json.dumps([count, time.perf_counter() - started]), encoding="utf-8")


def run(context: Any, root: Path, user: str, kill_at: int, events: Path) -> int:
    process = context.Process(target=erase, args=(str(root), user, kill_at, str(events)))
    process.start()
    process.join()
    return process.exitcode


def main() -> None:
    parser = options(__doc__, "66 rows, two ids and two kills")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--ids", type=int, default=len(IDS), help="how many of them are forgotten, each on a copy")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.small:
        asked.rows, asked.ids, asked.kills = 66, 2, 2
    spawn = multiprocessing.get_context("forkserver")
    spawn.set_forkserver_preload(["pipeline.governance.erasure"])
    draw = random.Random(asked.seed)
    planted = found = left = changed = total = 0
    seconds, size, statements = 1.0, 0, dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="erasure-") as folder:
        original, copy, events = Path(folder, "planted"), Path(folder, "copy"), Path(folder, "events")
        plant(original, asked.rows)
        before = rows_of(original)
        size = sum(path.stat().st_size for path in original.rglob("*") if path.is_file())
        for user in IDS[: asked.ids]:
            shutil.copytree(original, copy)
            assert run(spawn, copy, user, 0, events) == 0
            total, seconds = json.loads(events.read_text(encoding="utf-8"))
            (proof,) = proofs(context_of(copy).store)
            statements[user] = statement(proof)
            after, others = rows_of(copy), without(before, user)
            kept = without(after, user)
            planted += (before - others).total()
            found += sum(sum(proof.places.get(name, {}).values()) for name in PLACES)
            left += (after - kept).total()
            changed += ((others - kept) + (kept - others)).total()
            shutil.rmtree(copy)
        differing = killed = 0
        for number in range(asked.kills):
            user, kill_at = draw.choice(IDS[: asked.ids]), draw.randint(1, total)
            shutil.copytree(original, copy)
            killed += run(spawn, copy, user, kill_at, events) == -signal.SIGKILL
            assert run(spawn, copy, user, 0, events) == 0
            found_again = [statement(each) for each in proofs(context_of(copy).store) if not each.follows]
            same = found_again == [statements[user]] and without(rows_of(copy), user) == without(before, user)
            differing += not same
            if not same:
                print(f"kill {number} of {user} at event {kill_at}: {found_again}", flush=True)
            shutil.rmtree(copy)
    figures = {"planted": planted, "found": found, "left_after": left, "others_changed": changed, "kills": killed}
    figures |= {"proofs_differing": differing, "bytes_per_s": round(size / seconds)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
