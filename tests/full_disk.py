"""A disk without room, by this process's limit on the size of files: a write takes what fits, the next one fails."""

import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def full_disk(path: Path, room: int) -> Generator[None]:
    """No file grows beyond the size that `path` has now and `room` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
