"""An erasure whose lake is in a bucket that is gone from the end of one phase on, typed again when it is back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer

from pipeline.core.storage import Store
from pipeline.governance.erasure import forget
from pipeline.governance.erasure.owner import Person
from pipeline.governance.erasure.proof import ErasureProof
from pipeline.traces.lake import LakeConfig, open_lake
from pipeline.traces.lake.files import write_files
from pipeline.traces.rows import SCHEMA
from tests.contexts import KEYS, quiet, stage_context
from tests.pipeline.governance.erasure.conftest import BOB, CYD, DAYS, NAME, NOW, row, secret
from tests.ports import held_port

pytestmark = pytest.mark.slow
PHASES = ("are swept", "rows and files", "digests are blocked", "gone from")
"""What an erasure says right before S3 is gone."""


class ReturningBucket:
    """S3 at one address, which can go and come back with what it holds."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self.server.start()

    def stop(self) -> None:
        self.server.stop()


def planted(name: str, folder: Path, endpoint: str) -> LakeConfig:
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=name)
    keys = {"s3.access-key-id": "test", "s3.secret-access-key": "test", "s3.endpoint": endpoint}
    uri = f"sqlite:///{folder}/catalog.db"
    config = LakeConfig(catalogue="sqlite", uri=uri, warehouse=f"s3://{name}/lake", properties=keys)
    with open_lake(config) as lake:
        for day in DAYS[:2]:
            batch = pa.RecordBatch.from_pylist([row(u, day, n) for u in (BOB, CYD) for n in range(3)], schema=SCHEMA)
            lake.replace_day(day, write_files(config, day, "part", [batch]), "digest")
    return config


def erased(folder: Path, config: LakeConfig, log: Callable[[str], None]) -> ErasureProof:
    context = stage_context(Store(folder / "data", KEYS), config, log, name=NAME)
    return forget(context, Person.named(BOB), registry_uri=f"sqlite:///{folder}/mlflow.db", now=NOW)


@pytest.fixture(scope="module")
def bucket() -> Iterator[ReturningBucket]:
    with pytest.MonkeyPatch.context() as patch, held_port() as held:
        for key, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1"}.items():
            patch.setenv(f"AWS_{key}", value)
        result = ReturningBucket(held.getsockname()[1])
        yield result
        result.stop()


@pytest.fixture(scope="module")
def whole(bucket: ReturningBucket, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the proof says where S3 stays."""
    folder = tmp_path_factory.mktemp("whole")
    return erased(folder, planted("whole", folder, bucket.endpoint), quiet).statement()


@pytest.mark.parametrize("phase", [*(pytest.param(p, marks=pytest.mark.variant) for p in PHASES[:3]), PHASES[3]])
def test_s3_gone_from_a_phase_on_ends_in_the_same_proof(
    phase: str, tmp_path: Path, bucket: ReturningBucket, whole: dict[str, Any]
) -> None:
    name = f"b-{PHASES.index(phase)}"
    config = planted(name, tmp_path, bucket.endpoint)

    stopped: list[str] = []

    def log(line: str) -> None:
        if phase in line and not stopped:
            stopped.append(line)
            bucket.stop()

    try:
        with pytest.raises(OSError):
            erased(tmp_path, config, log)
    finally:
        bucket.start()
    assert erased(tmp_path, config, quiet).statement() == whole
    client = boto3.client("s3", endpoint_url=bucket.endpoint)
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=name)["Contents"]]
    left = b"".join(client.get_object(Bucket=name, Key=key)["Body"].read() for key in keys)
    assert secret(CYD).encode() in left and secret(BOB).encode() not in left
