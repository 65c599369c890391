"""What a benchmark has measured so far, a JSON line for each cell: an interrupted run measures only what is missing."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


class Cells:
    """Figures by the name of their cell. Without a file they are forgotten with the process."""

    def __init__(self, path: Path | None, scope: str) -> None:
        """`scope`: what else decides a figure, such as the size of the run; figures of another one do not count."""
        self._path, self._scope = path, scope
        self._figures: dict[str, Figures] = {}
        for line in path.read_text().splitlines() if path is not None and path.is_file() else ():
            cell = json.loads(line)
            if cell["scope"] == scope:
                self._figures[cell["name"]] = cell["figures"]

    def missing(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self._figures]

    def once(self, name: str, measure: Callable[[], Figures]) -> Figures:
        """The cell's figures, measured and written down where nobody did before."""
        if name not in self._figures:
            self._figures[name] = measure()
            cell = {"scope": self._scope, "name": name, "figures": self._figures[name]}
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(f"{json.dumps(cell)}\n")
            print(f"{name}: {_legible(self._figures[name])}", flush=True)
        return self._figures[name]


def _legible(figures: Figures) -> str:
    shown = {name: f"{value:.3f}" if isinstance(value, float) else str(value) for name, value in figures.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
