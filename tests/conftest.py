"""What several rooms need: the reference data beside the checkout, a PostgreSQL, an S3 bucket."""

import os
import signal
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from .servers import postgres, s3

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared" / "data"

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A run of the tests tells of the change, not of luck or of a slow machine: the same examples every time, none of them
# against the clock. `pytest --hypothesis-profile=default` searches at random, for hours if you like.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: of two processes, neither is left with a long one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def _sigterm_is_heard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs that a test starts inherit what its process ignores or blocks: none is to be deaf to SIGTERM."""
    _hear_sigterm(f"before {request.node.nodeid}")
    yield
    _hear_sigterm(f"by {request.node.nodeid}")


def _hear_sigterm(when: str) -> None:
    if sys.platform != "linux":
        return
    lines = Path("/proc/self/status").read_text().splitlines()  # the truth, also where a library did it in C
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
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=name)
    return name
