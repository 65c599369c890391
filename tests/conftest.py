"""What several rooms need: the reference data beside the checkout, a PostgreSQL, an S3 bucket."""

import fcntl
import gc
import io
import logging
import os
import re
import signal
import sqlite3
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certifi
import hypothesis
import pytest

from .servers import postgres, s3

if TYPE_CHECKING:
    from .fork_server import ForkServer
    from .iterations import Iterations

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared" / "data"
STARTED = Path(__file__).parent / "started_python"

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A second thread of torch or BLAS waits for its turn on a busy processor, and takes up to a third more of it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Otherwise a file of the account that runs the tests.
os.environ.setdefault("PREFERENCE_TUNING_MARK_KEYS", "5e" * 32)
# What an MLflow server starts for background jobs is seven processes, and nobody here asks it for one.
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
# As pipeline.registry sets them where it first meets MLflow, which no test is to be blamed for.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
# To collect the tests is to import: until `done_once` that garbage is looked for in vain.
gc.disable()
# What a test starts mostly imports: see the file there.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STARTED), os.environ.get("PYTHONPATH"))))
# A run of the tests tells of the change, not of luck or of a slow machine: the same examples every time, none of them
# against the clock. `pytest --hypothesis-profile=default` searches at random, for hours if you like.
hypothesis.settings.register_profile(
    "repeatable",
    max_examples=50,
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without the slow tests, a file that has no others is not even imported."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return (
        re.search(r"^pytestmark = .*mark\.slow\b", collection_path.read_text(encoding="utf-8"), re.MULTILINE)
        is not None
        or None
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, those of the whole loop before the others: none is left at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path.parent != STARTED.parent))


# A shell starts what it puts into the background with SIGINT ignored, and Dagster lets SIGTERM be what SIGINT is.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_power_cuts() -> Iterator[None]:
    """Nothing here pulls the plug, and syncing thousands of small files takes a disk minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        for module in (sqlite3, sqlite3.dbapi2):
            patch.setattr(module, "connect", _connect_without_sync)
        yield


def _connect_without_sync(*arguments: Any, connect: Any = sqlite3.connect, **options: Any) -> sqlite3.Connection:
    connection = connect(*arguments, **options)
    with suppress(sqlite3.Error):  # no database, or one that is locked: that is the test's business
        connection.execute("PRAGMA synchronous=OFF")
    return connection


@pytest.fixture(scope="session", autouse=True)
def _done_once() -> Iterator[None]:
    from .done_once import done_once

    with done_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def _few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """HTTP clients read every authority of the world before their first word, also to http://127.0.0.1."""
    authorities = tmp_path_factory.mktemp("authorities") / "one.pem"
    end = "-----END CERTIFICATE-----\n"
    authorities.write_text(Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(authorities))
        yield


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What is logged from here on, at every level."""
    text, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(text), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.setLevel(level)
    root.removeHandler(handler)


@pytest.fixture(autouse=True)
def _sigterm_is_heard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs that a test starts inherit what its process ignores or blocks: none is to be deaf to SIGTERM."""
    _hear_sigterm(f"before {request.node.nodeid}")
    yield
    _hear_sigterm(f"by {request.node.nodeid}")


_OWN = ("AWS_", "DAGSTER_", "JUDGE_", "LAKE_", "LANGFUSE_", "MLFLOW_", "NOTIFY_", "PREFERENCE_TUNING_", "TRACES_")


def _own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_OWN)}


@pytest.fixture(autouse=True)
def _environment_is_left_alone() -> Iterator[None]:
    """A variable that a test leaves set, or a library for it, sends every later test of its process elsewhere."""
    before = _own_environment()
    yield
    after = _own_environment()
    for name in before.keys() | after.keys():
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert after == before, "the test left these variables changed"


def _hear_sigterm(when: str) -> None:
    if sys.platform != "linux":
        return
    lines = (
        Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    )  # the truth, also where a library did it in C
    masks = {
        name: int(mask, 16) for name, mask in (line.split(":") for line in lines if line[:6] in ("SigIgn", "SigBlk"))
    }
    bit = 1 << (signal.SIGTERM - 1)
    if masks["SigIgn"] & bit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        warnings.warn(f"SIGTERM was left ignored {when}", stacklevel=1)
    if masks["SigBlk"] & bit:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        warnings.warn(f"SIGTERM was left blocked {when}", stacklevel=1)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ForkServer"]:
    """Has imported the trainer and the sampler, once for all workers: what it forks costs no more than it does."""
    from .fork_server import ForkServer

    output = tmp_path_factory.mktemp("fork_server") / "output.log"
    with ForkServer(output, _for_all_workers(tmp_path_factory) / "fork_server.sock") as server:
        yield server


@pytest.fixture
def forking(fork_server: "ForkServer") -> Iterator[None]:
    """What the test starts of samplers, trainers and reward models is forked by that server."""
    from .loop import forked

    with forked(fork_server):
        yield


def _for_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def iterations(tmp_path_factory: pytest.TempPathFactory, fork_server: "ForkServer") -> "Iterations":
    """Finished iterations to copy, one of each kind for all workers."""
    from .iterations import Iterations

    return Iterations(_for_all_workers(tmp_path_factory) / "iterations", fork_server)


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny model of another family, by its name in benchmarks/base_models.py; built once, for all workers to read.
    Its answers are noise."""

    def built(name: str) -> Path:
        from benchmarks.base_models import build

        folder = _for_all_workers(tmp_path_factory) / "families"
        folder.mkdir(exist_ok=True)
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / name).is_dir():
                build(name, folder / f"{name}.staged", steps=2).rename(folder / name)
        return folder / name

    return built


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference data; a test that needs it is skipped, with a word, where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no reference data at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """An empty database of a real PostgreSQL."""
    # Not below pytest's own folder, which another user than the test's cannot enter.
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder, postgres(Path(folder)) as url:
        yield url


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a new bucket; the AWS environment points to it."""
    import boto3

    environment = {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for key in ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION"):
        monkeypatch.setenv(key, "")  # so that what the pipeline sets ends with the test
        monkeypatch.delenv(key)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=name)
    return name
