"""What several of these tests need: a process to fork trainers from."""

from collections.abc import Iterator

import pytest

from benchmarks.kills import Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Has imported the trainer, which takes ten seconds of a core: an attempt costs no more than it trains."""
    with Zygote(tmp_path_factory.mktemp("zygote") / "output.log") as found:
        yield found
