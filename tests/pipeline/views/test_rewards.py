"""The plots of the reward stage: drawn for what there is, and nothing in them overlaps or is cut off."""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

import pytest

from pipeline.core.estimate import UNKNOWN, Estimate, share
from pipeline.rewards.records import COMPONENTS, Agreement, ComponentSummary
from pipeline.rewards.reward_model.measures import calibration
from pipeline.rewards.reward_model.records import ProbeResult, RewardModelReport
from pipeline.views import Plot, rewards

pytestmark = pytest.mark.slow

SILENT = ComponentSummary(count=0, mean=None, histogram=(0,) * 20, missing={"absent": 10})
LOUD = ComponentSummary(
    count=1_234_567, mean=0.62, histogram=tuple(range(60_000, 80_000, 1_000)), missing={"absent": 1, "timeout": 98_765}
)
FAILED = ComponentSummary(count=0, mean=None, histogram=(0,) * 20, missing={"timeout": 31_234})

EMPTY = RewardModelReport(iteration="it", reason="not trained: 5 thumbs")
ERROR, BINS = calibration([0.05, 0.31, 0.33, 0.72, 1.0], [False, True, False, True, True])
REPORT = RewardModelReport(
    iteration="it",
    calibration_error=ERROR,
    calibration=BINS,
    probes=(
        ProbeResult(name="voucher", kind="append", ordered_right=share(60, 60), passes=True),
        ProbeResult(name="fact", kind="swap", ordered_right=share(24, 60), passes=False),
        ProbeResult(name="none", kind="swap", ordered_right=UNKNOWN, passes=False),
    ),
)


def agreement(names: tuple[str, ...]) -> list[Agreement]:
    rho = Estimate(value=-0.87, low=-0.9, high=-0.8, n=40)
    pairs = list(combinations(names, 2))
    return [
        Agreement(first=a, second=b, agree=share(39, 40), rank_correlation=rho if at % 3 else UNKNOWN)
        for at, (a, b) in enumerate(pairs)
    ]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures that are drawn."""
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    save = Figure.savefig

    def keep(figure: Any, *arguments: Any, **options: Any) -> None:
        drawn.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    yield drawn


def texts(figure: Any) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_visible()]


def check(plot: Plot, figures: list[Any], *words: str) -> None:
    assert plot.png().startswith(b"\x89PNG")
    (figure,) = figures
    output = "\n".join(texts(figure))
    assert [word for word in words if word not in output] == []


@pytest.mark.parametrize("count", [1, 2, 12])
def test_components_are_small_multiples(figures: list[Any], count: int) -> None:
    components: Mapping[str, ComponentSummary] = dict.fromkeys(COMPONENTS[:count], LOUD)
    check(rewards.component_histograms(components), figures, *COMPONENTS[:count], "mean 0.62, n=1.2M, 99k failed")


def test_component_that_failed_is_shown_one_without_use_is_not(figures: list[Any]) -> None:
    check(rewards.component_histograms({"judge": FAILED, "correct": LOUD, "latency": SILENT}), figures, "never speaks")
    assert not [text for text in texts(figures[0]) if "latency" in text]


@pytest.mark.parametrize("count", [2, len(COMPONENTS)])
def test_agreement_is_a_matrix_with_its_numbers(figures: list[Any], count: int) -> None:
    check(rewards.agreement_matrix(agreement(COMPONENTS[:count])), figures, "98%", "?")
    cells = [text for text in texts(figures[0]) if "98%" in text]
    assert len(cells) == count * (count - 1) // 2


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "words"),
    [
        (3, {}, ["3 (100.0%)"]),
        (1_234_567, {"timeout": 12, "budget": 343_434}, ["1,234,567 (78.2%)", "12 (<0.1%)", "343,434 (21.8%)"]),
        (0, {f"a_reason_that_goes_on_for_longer_than_a_line_{n}": n for n in range(1, 20)}, ["7 other reasons"]),
    ],
)
def test_coverage_has_a_bar_for_each_reason(
    figures: list[Any], labelled: int, unlabelled: Mapping[str, int], words: list[str]
) -> None:
    check(rewards.coverage(labelled, unlabelled), figures, *words)


def test_where_there_is_nothing_to_draw_the_picture_says_so(figures: list[Any]) -> None:
    reports = (rewards.calibration(EMPTY), rewards.probes(EMPTY))
    labels = (rewards.component_histograms({"latency": SILENT}), rewards.agreement_matrix([]), rewards.coverage(0, {}))
    for plot in (*labels, *reports):
        plot.png()
    lines = ("No component has", "No two components", "There is no row", "No thumb of a held-out", "No probe has")
    for figure, words in zip(figures, lines, strict=True):
        assert words in "".join(texts(figure))


@pytest.mark.parametrize("plot", [rewards.calibration, rewards.probes])
def test_a_report_of_the_reward_model_is_drawn(figures: list[Any], plot: Callable[[RewardModelReport], Plot]) -> None:
    assert plot(REPORT).png() == plot(REPORT).png()
    assert len(figures[0].axes) == 1, "axes, not a sentence"
