"""An erasure of the small world, and a look into every file that it leaves."""

import gzip
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.governance.erasure import forget
from pipeline.governance.erasure.records import ErasureProof, Person
from pipeline.traces.pii import pseudonym
from tests.contexts import stage_context
from tests.pipeline.governance.erasure.conftest import ANN, NAME, NOW, Place, secret


def erase(place: Place, user: str = ANN) -> ErasureProof:
    return forget(
        stage_context(place.store, place.lake, name=NAME), Person.named(user), registry_uri=place.tracking_uri, now=NOW
    )


def decoded(root: Path) -> Iterator[tuple[str, bytes]]:
    """Every file under the root as a person would look into it."""
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        name, content = str(path.relative_to(root)), path.read_bytes()
        if path.suffix == ".parquet":
            yield name, json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
        elif path.suffix == ".db":
            connection = sqlite3.connect(path)
            yield name, "\n".join(connection.iterdump()).encode()
            connection.close()
        elif path.suffix == ".gz":
            yield name, gzip.decompress(content)
        yield name, content


def holding(root: Path, *words: str) -> set[str]:
    return {name for name, content in decoded(root) if any(word.encode() in content for word in words)}


def words_of(user: str) -> tuple[str, ...]:
    return user, str(pseudonym(user)), secret(user), f"trace-{secret(user)[-3:]}-"


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
