"""What signals without references are worth on the embedded desk: `python -m benchmarks.signals [--small] [PART ...]`.
Utility is hidden from the pipeline and measured here. With `--cells FILE` a cell of the file is not measured again. The
last line is JSON with all figures."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import signals_loop as loop
from benchmarks import signals_methods as methods
from benchmarks import signals_sweet as sweet
from benchmarks.signals_world import Cells


class Size(NamedTuple):
    """How much is measured: seeds, held-out requests for each utility, and whether cells are few and small."""

    seeds: tuple[int, ...]
    items: int
    small: bool


Part = Callable[[Size, Cells], dict[str, float]]
PARTS: dict[str, Part] = {
    "methods": methods.cells,
    "controls": methods.controls,
    "sweet": sweet.over_optimiser,
    "kills": loop.kills,
    "loop": loop.whole_loop,
}


SMALL = ("methods",)
"""What a small run measures where no part is named."""


def main(arguments: list[str] | None = None) -> dict[str, float]:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options.add_argument("--small", action="store_true", help="one seed, one small cell, few held-out requests")
    options.add_argument("--seeds", type=int, default=3, help="from 1 on (default: %(default)s)")
    options.add_argument("--cells", type=Path, metavar="FILE", help="JSON lines of the cells that were measured")
    chosen = options.parse_args(arguments)
    if unknown := set(chosen.parts) - set(PARTS):
        options.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    size = Size((1,), 40, True) if chosen.small else Size(tuple(range(1, chosen.seeds + 1)), 300, False)
    cells = Cells(chosen.cells, "small" if chosen.small else "whole")
    figures: dict[str, float] = {"seeds": len(size.seeds)}
    for name in chosen.parts or (SMALL if chosen.small else PARTS):
        started = time.monotonic()
        figures |= PARTS[name](size, cells)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))
    return figures


if __name__ == "__main__":
    main()
