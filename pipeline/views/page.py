"""The parts of `report.html`: chapters, figures and tables as HTML, and the chapter of a rollout."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from pipeline.rollout.record import Phase, RolloutEvent
from pipeline.views import Plot
from pipeline.views.rollout import look_points, rollout_over_time


class Chapter(NamedTuple):
    """`lines`: a list of texts. `blocks`: figures and tables."""

    title: str
    lines: Sequence[str] = ()
    blocks: Sequence[Markup] = ()


def rollout_chapters(id: str, events: Sequence[RolloutEvent]) -> Iterator[Chapter]:
    proposals = [event.proposal for event in events if event.proposal is not None]
    proposal = next((each for each in reversed(proposals) if each.version.iteration == id), None)
    if proposal is None:
        return
    own = [event for event in events if event.rollout == proposal.rollout]
    steps: list[tuple[str, ...]] = []
    before: tuple[Phase, int] | None = None
    for event in own:
        if (event.phase, event.stage) != before or event.action is not None:
            why = f"{event.reason}{f' (by {event.by})' if event.by else ''}"
            steps.append((moment(event.at), str(event.phase).replace("_", " "), str(event.stage + 1), why))
        before = (event.phase, event.stage)
    policy, looks = proposal.policy, look_points(own)
    weights = " → ".join(f"{policy.canary_weights[stage]}%" for stage in range(len(policy.weights)))
    plot = rollout_over_time(looks, f"Version {proposal.version.version}")
    blocks = [figure("Both arms and the canary's weight", plot)] if looks else []
    moved = table(("when (UTC)", "phase", "stage", "why"), steps)
    yield Chapter("Rollout", [f"Weights of the canary: {weights}; {len(looks)} looks"], [*blocks, moved])


def figure(text: str, plot: Plot) -> Markup:
    source = f"data:image/svg+xml;base64,{base64.b64encode(plot.svg()).decode()}"
    return Markup('<figure><img alt="{}" src="{}"></figure>').format(text, source)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """Cells are escaped, but for the links among them."""
    lines = [("td", row) for row in rows]
    if not lines:
        return Markup("")
    cells = [
        Markup("<tr>{}</tr>").format(Markup("").join(Markup(f"<{tag}>{{}}</{tag}>").format(cell) for cell in row))
        for tag, row in ([("th", head)] if head else []) + lines
    ]
    return Markup('<div class="scroll"><table>{}</table></div>').format(Markup("\n").join(cells))


def moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


@cache
def template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("report.jinja")
