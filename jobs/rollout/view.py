"""The picture of a rollout as lines of a terminal: stages as a bar, both arms side by side, what it waits for."""

import textwrap
from collections.abc import Iterator

from jobs.rollout import COMMAND, look_command, next_command
from pipeline.rollout.picture import ArmRow, StageMark, arm_rows, sentences, stage_marks
from pipeline.rollout.record import TERMINAL
from pipeline.rollout.status import RolloutStatus

NAME_WIDTH = 12
BAR_WIDTH = 16
COLOURS = {"done": "32", "now": "36", "held": "33", "undone": "31", "next": "90"}
BAD, WAITS, GOOD, BUSY = "31;1", "33;1", "32;1", "36;1"
PHASES = {
    "held": WAITS,
    "rolling_back": BAD,
    "rolled_back": BAD,
    "aborted": BAD,
    "promoted": GOOD,
    "superseded": COLOURS["next"],
}


def view(report: RolloutStatus, now: float, width: int = 80, colour: bool = False) -> Iterator[str]:
    """The picture, no line wider than `width` but for the commands, which are there to be copied."""
    title = f"{report.model}: {str(report.phase).replace('_', ' ').upper()}"
    yield paint(title, PHASES.get(report.phase, BUSY), colour)
    if report.weights:
        yield from ("", *bars(stage_marks(report), width, colour))
    if rows := arm_rows(report):
        yield from ("", *table(rows, width))
    yield ""
    for name, text in sentences(report, now):
        yield from field(name, text, width)
    over = report.candidate is None or report.phase in TERMINAL
    yield from field("commands", next_command() if over else look_command())
    for action in report.decisions:
        wants = "--by NAME --reason 'WHY'" if action == "approve" else "--reason 'WHY'"
        yield from field("", f"{COMMAND} {action} --rollout {report.rollout} {wants}")


def bars(marks: list[StageMark], width: int, colour: bool) -> Iterator[str]:
    """A bar for each weight, filled by its dwell; as many in a line as fit."""
    cells = [_cell(mark) for mark in marks]
    longest = max(map(len, cells)) + 2
    in_a_line = max(1, width // longest)
    codes = [COLOURS[mark.progress] for mark in marks]
    painted = [paint(cell.ljust(longest), code, colour) for cell, code in zip(cells, codes, strict=True)]
    for first in range(0, len(painted), in_a_line):
        yield "".join(painted[first : first + in_a_line]).rstrip()


def table(rows: list[ArmRow], width: int) -> Iterator[str]:
    """Both arms in columns, and the notes where there is room for all of them."""
    head = ArmRow("", "champion", "canary")
    columns = [max(len(row[n]) for row in (head, *rows)) for n in (1, 2)]
    start = NAME_WIDTH + columns[0] + columns[1] + 6
    noted = start + max(len(row.note) for row in rows) <= width
    for name, champion, canary, note in (head, *rows):
        line = f"{name:<{NAME_WIDTH}}{champion:<{columns[0]}}   {canary:<{columns[1]}}   "
        yield f"{line}{note if noted else ''}".rstrip()


def field(name: str, text: str, width: int = 0) -> Iterator[str]:
    """A named sentence, folded to `width`; 0 leaves it in one line."""
    folded = textwrap.wrap(text, max(20, width - NAME_WIDTH), break_on_hyphens=False) if width else [text]
    for label, line in zip([name, *[""] * len(folded)], folded or [""], strict=False):
        yield f"{label:<{NAME_WIDTH}}{line}".rstrip()


def paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def _cell(mark: StageMark) -> str:
    filled = round(mark.done * BAR_WIDTH)
    sign = {"done": "✔", "now": "▶", "held": "‖", "undone": "✘", "next": " "}[mark.progress]
    return f"{sign} {mark.weight:>3}% {'█' * filled}{'░' * (BAR_WIDTH - filled)}"
