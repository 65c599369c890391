"""The tables and the last line of the benchmark, from few schedules."""

import json

import pytest

from benchmarks.preemption import COUNTS, PROFILES, goodputs, intervals, shares, summary, table, where
from k8s.simulate import Profile, plan_interval


def test_tables_have_a_line_for_each_profile() -> None:
    by_name = {name: goodputs(PROFILES[name], schedules=2) for name in list(PROFILES)[:3]}
    planned = {("calm", 300): plan_interval(Profile(), 300, 360_000, schedules=1)}
    assert by_name == {name: goodputs(PROFILES[name], schedules=2) for name in by_name}
    assert [len(lines) for lines in (table(by_name), where(by_name), intervals(planned))] == [4, 4, 2]
    for by_count in by_name.values():
        assert [len(by_count[count]) for count in COUNTS] == [1, 2, 2, 2]
        for each in by_count.values():
            assert sum(shares(each).values()) == pytest.approx(1.0)
    report = json.loads(json.dumps(summary(by_name, planned)))
    for name, by_count in report["goodput"].items():
        assert list(by_count.values()) == sorted(by_count.values(), reverse=True), "more pre-emptions, less goodput"
        assert all(report["worst"][name][count] <= mean for count, mean in by_count.items())
    assert report["goodput"]["notice, saves at SIGTERM"]["3"] >= 0.93
    assert report["goodput"]["notice, saves at SIGTERM"]["6"] >= 0.88
    assert report["goodput"]["no notice"]["6"] < report["goodput"]["notice, saves at SIGTERM"]["6"]
