"""GET /-/metrics: what Prometheus reads of a gateway that runs."""

import re
import shutil
import subprocess

import pytest

from pipeline.rollout.gateway.counters import PREFIX, SlotReport, exposition
from tests.pipeline.rollout.gateway.world import NAME, awaited, user_of

SERIES = re.compile(r'^(\w+)\{model="desk"(?:,slot="([^"]*)")?\} (\d+)$')


def read(gateway) -> dict[tuple[str, str], float]:
    """Values by metric and slot; every line is a comment or a series."""
    answer = gateway.client.get("/-/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    matched = [SERIES.match(line) for line in lines]
    assert all(matched), lines
    return {(m[1].removeprefix(PREFIX), m[2] or ""): float(m[3]) for m in matched if m}


def test_what_is_served_is_counted_over_all_workers(gateway) -> None:
    gateway.split(25)
    before = read(gateway)
    for arm in ("champion", "canary", "champion"):
        assert gateway.post(user=user_of(arm, weight=25)).status_code == 200
    awaited(lambda: gateway.state().counts.served == gateway.state().counts.recorded)
    after = read(gateway)
    assert after["served_total", ""] - before["served_total", ""] == 3
    assert after["recorded_total", ""] == after["served_total", ""]
    assert (after["canary_weight_percent", ""], after["lease_ended", ""]) == (25, 0)
    assert after["workers", ""] == gateway.state().counts.workers > 0
    slots = {slot for name, slot in after if name == "in_flight"}
    assert slots == {slot.name for slot in gateway.state().slots} and len(slots) == 2


def test_a_name_of_a_slot_cannot_break_a_line(gateway) -> None:
    slot = SlotReport(digest="d", url="u", name='a"\n\\b', in_flight=1)
    state = gateway.state().model_copy(update={"slots": (slot,)})
    (line,) = [each for each in exposition(state, NAME).splitlines() if "slot=" in each]
    assert line == f'{PREFIX}in_flight{{model="desk",slot="a\\"\\n\\\\b"}} 1'


def test_promtool_has_nothing_against_the_format(gateway) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (apt-get install prometheus)")
    text = gateway.client.get("/-/metrics").text
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
