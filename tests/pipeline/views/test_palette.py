"""A plot is the same file each time that it is drawn."""

from pipeline.views import Plot, axes_plot, words_plot


def test_the_same_drawing_is_the_same_file() -> None:
    def size(png: bytes) -> tuple[int, int]:
        assert png.startswith(b"\x89PNG")
        return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])

    plots = [axes_plot(lambda axes: axes.plot([1, 2])) for _ in range(2)]
    assert plots[0].png() == plots[1].png() and plots[0].svg() == plots[1].svg()
    assert size(words_plot("Nothing.").png()) == (550, 110)
    assert size(Plot(lambda figure: None, 8, 3, dpi=90).png()) == (720, 270)
    assert b">Nothing.</text>" in words_plot("Nothing.").svg(), "a text stays a text"
