"""Secrets planted in every variable that may hold one, and where they turn up: files, stores, processes."""

import gzip
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

VARIABLES = (
    "JUDGE_API_KEY", "SERVING_API_KEY", "LANGFUSE_SECRET_KEY", "PGPASSWORD", "LAKE_CATALOGUE_TOKEN",
    "LAKE_CATALOGUE_CREDENTIAL", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN", "HF_TOKEN",
)  # fmt: skip
MARK = "planted0canary"
EVERY_S = 0.05


def planted() -> dict[str, str]:
    """A value of its own for each variable. The webhook's receiver is not there, so the attempt to reach it is told."""
    values = {name: f"{MARK}0{name.lower().replace('_', '0')}" for name in VARIABLES}
    return {**values, "NOTIFY_URL": f"http://127.0.0.1:9/hooks/{MARK}0notify"}


def files_with_a_secret(folder: Path) -> list[str]:
    """Files below that hold a planted value, packed ones and the columns of tables included."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [str(path.relative_to(folder)) for path in files if any(MARK.encode() in text for text in _texts(path))]


def _texts(path: Path) -> Iterator[bytes]:
    yield path.name.encode()
    yield path.read_bytes()
    if path.suffix == ".gz":
        yield gzip.decompress(path.read_bytes())
    elif path.suffix == ".parquet":
        yield json.dumps(pq.read_table(path).to_pylist(), default=str).encode()


@contextmanager
def arguments_with_a_secret() -> Iterator[set[str]]:
    """The command lines with a planted value that any process of this machine has while the block runs."""
    seen: set[str] = set()
    over = threading.Event()

    def sample() -> None:
        while not over.wait(EVERY_S):
            seen.update(line for line in _command_lines() if MARK in line)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield seen
    finally:
        over.set()
        sampler.join()


def _command_lines() -> Iterable[str]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                yield Path(entry.path, "cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
