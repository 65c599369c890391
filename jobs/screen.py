"""Lines for a terminal: a name on the left, a sentence folded on its right, and colours where there is a terminal."""

import shutil
import textwrap
from collections.abc import Iterator

NAME_WIDTH = 18
RED, YELLOW, GREEN, CYAN, GREY, BOLD = "31;1", "33;1", "32;1", "36;1", "90", "1"


def terminal_width() -> int:
    """Columns of the terminal; of a pipe, those that a line of a log may have."""
    return shutil.get_terminal_size((120, 24)).columns


def named(name: str, text: str, width: int = 0) -> Iterator[str]:
    """A named sentence, folded to `width`; 0 leaves it in one line, as a command that is there to be copied."""
    room = max(20, width - NAME_WIDTH)
    folded = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) if width else [text]
    for label, line in zip([name, *[""] * len(folded)], folded or [""], strict=False):
        yield f"{label:<{NAME_WIDTH - 1}} {line}".rstrip()


def paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text
