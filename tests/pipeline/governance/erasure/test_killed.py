"""An erasure that dies at any write, and is typed again."""

from pathlib import Path

import pytest

from tests.killing import differing
from tests.pipeline.governance.erasure import forget_work
from tests.pipeline.governance.erasure.conftest import World


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.variant), 61])
def test_an_erasure_killed_at_its_writes_ends_the_same(every: int, _made: tuple[World, Path], tmp_path: Path) -> None:
    """At every file that is opened to be written, made, renamed or removed, and around every commit of a database."""
    kills, wrong = differing(forget_work.__name__, _made[1], tmp_path, every)
    assert kills > (300 if every == 1 else 4) and wrong == []
