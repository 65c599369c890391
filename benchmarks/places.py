"""Situations that people report of stores, servers and machines, each by its tests: `python -m benchmarks.places`. The
last line is JSON: of the situations `right`, `refused_before_paid`, `late` and `silently_wrong`, and `preflight_s` of
the embedded recipe. A test says by its mark what its situation comes to; one that fails is silently wrong."""

import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from assets.preflight import check
from assets.resources import Deployment
from benchmarks.parts import options

RECIPE = Path(__file__).parents[1] / "jobs" / "recipes" / "embedded.yaml"
OUTCOMES = ("right", "refused_before_paid", "late", "silently_wrong")


class Situations:
    """A plug-in of pytest: the worst outcome of the tests of each situation."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        for mark in item.iter_markers("situation"):
            name, outcome = mark.args
            if report.failed or report.when == "call":
                came_to = outcome if report.passed else "late" if report.skipped else "silently_wrong"
                self.outcomes[name] = max(self.outcomes.get(name, "right"), came_to, key=OUTCOMES.index)
        return report


def main() -> int:
    is_small = options(__doc__, "the fast tests alone").parse_args().small
    situations = Situations()
    chosen = "situation and not slow" if is_small else "situation"
    code = pytest.main(["-q", "-m", chosen, "--durations=3", "tests"], plugins=[situations])
    for name, outcome in sorted(situations.outcomes.items()):
        print(f"{outcome:<20} {name}")
    with tempfile.TemporaryDirectory() as root:
        begun = time.monotonic()
        lines = list(check(Deployment(recipe_path=str(RECIPE), overrides=[f"data_root={root}"])))
        seconds = time.monotonic() - begun
    counts = Counter(situations.outcomes.values())
    print(json.dumps({**{each: counts[each] for each in OUTCOMES}, "preflight_s": round(seconds, 1)}))
    return int(code) or int(not all(line.fine for line in lines))


if __name__ == "__main__":
    sys.exit(main())
