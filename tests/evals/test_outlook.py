"""What the next gate can show, said before it is paid for."""

from datetime import timedelta
from pathlib import Path

import pytest

from evals.outlook import MOST_NIGHTS, Outlook, nights_worth, outlook
from pipeline.core import layout
from tests.evals.conftest import Kit
from tests.evals.test_ledger import CHAMPION, NOW, SECTION, Gates


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    return Gates(tmp_path)


def _of(gates: Gates, expected: float) -> Outlook:
    section = SECTION.model_copy(update={"expected_gain": expected})
    return outlook(gates.store, section, "m", CHAMPION.digest, NOW)


def test_a_night_collects_until_its_gate_can_show_the_gain(gates: Gates, kit: Kit) -> None:
    first = _of(gates, 0.03)
    assert first.collects(NOW) == "", "nothing is known before the first gate"
    assert f"a gain of at most {100 * first.gain:.1f} points" in first.line()
    assert 3.5 < first.gain / SECTION.max_standard_error < 4.2
    gates.ask("a")
    section = kit.section()
    suite = kit.suite(section)
    report = kit.report(section, suite, kit.arm("old", section, suite, 0.4), kit.arm("new", section, suite, 0.4))
    gates.store.write(layout.iteration("of-a", layout.EVAL_REPORT), report)
    comparison = report.measurements[0].comparison
    assert comparison is not None
    seen = _of(gates, 0.02)
    assert seen.standard_error == comparison.difference.standard_error
    assert "at most" not in seen.line()
    assert seen.standard_error is not None and 3.5 < seen.gain / seen.standard_error < 4.2
    assert seen.nights == MOST_NIGHTS and "collects" in seen.collects(NOW + timedelta(days=6))
    assert seen.collects(NOW + timedelta(days=7)) == "", "never longer"
    assert _of(gates, 0.2).collects(NOW) == "", "a large gain is seen at once"


def test_more_nights_are_waited_for_the_smaller_the_gain() -> None:
    waits = [nights_worth(0.001, 0.02, gain) for gain in (0.07, 0.04, 0.03, 0.001)]
    assert waits == [1, 3, 5, MOST_NIGHTS]
