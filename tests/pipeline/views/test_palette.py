"""One palette and one way to a PNG: a colour or a `savefig` elsewhere is a second one."""

import re
from pathlib import Path

from pipeline.views import Plot, axes_plot, words_plot

ROOT = Path(__file__).parents[3]
SOURCES = [path for folder in ("pipeline", "assets", "evals", "jobs", "k8s") for path in (ROOT / folder).rglob("*.py")]
OWN = re.compile(r"""["']#[0-9A-Fa-f]{6}["']|\.savefig\(""")


def test_colours_and_files_are_made_in_one_place() -> None:
    places = [path.relative_to(ROOT).as_posix() for path in SOURCES if OWN.search(path.read_text())]
    assert places == ["pipeline/views/__init__.py"]


def test_the_same_drawing_is_the_same_file() -> None:
    def size(png: bytes) -> tuple[int, int]:
        assert png.startswith(b"\x89PNG")
        return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])

    plots = [axes_plot(lambda axes: axes.plot([1, 2])) for _ in range(2)]
    assert plots[0].png() == plots[1].png() and plots[0].svg() == plots[1].svg()
    assert size(words_plot("Nothing.").png()) == (550, 110)
    assert size(Plot(lambda figure: None, 8, 3, dpi=90).png()) == (720, 270)
    assert b">Nothing.</text>" in words_plot("Nothing.").svg(), "a text stays a text"
