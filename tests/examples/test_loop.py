"""The loop in a hundred lines: to a verdict, and again with nothing to do."""

from pathlib import Path

import pytest

from evals.gate import Verdict
from examples.loop import main
from tests.loop import SHORT


@pytest.mark.variant
@pytest.mark.slow
def test_the_loop_in_a_hundred_lines_ends_in_a_verdict(tmp_path: Path) -> None:
    first = main(str(tmp_path), *SHORT)
    assert first is not None and first.verdict in set(Verdict)
    result = next(tmp_path.glob("iterations/*/training/result.json")).read_bytes()
    assert main(str(tmp_path), *SHORT) == first
    assert next(tmp_path.glob("iterations/*/training/result.json")).read_bytes() == result
