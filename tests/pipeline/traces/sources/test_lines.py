from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.traces.records import Reason
from pipeline.traces.sources import lines
from pipeline.traces.sources.compression import CHUNK, Broken
from pipeline.traces.sources.lines import blocks


@given(st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"x", b"\n"))), st.integers(1, 30))
def test_lines_keep_their_numbers_across_chunks_and_blocks(chunks: list[bytes], size: int) -> None:
    matches = [line for block in blocks(iter(chunks), size) for line in block.lines()]
    wanted = enumerate(b"".join(chunks).split(b"\n"), 1)
    assert matches == [(n, line) for n, line in wanted if line and not line.isspace()]


def test_a_line_that_is_too_long_is_counted_and_never_held() -> None:
    held = 0

    def endless():
        nonlocal held
        yield b"first\n"
        for _ in range(300):
            yield b"x" * CHUNK
            held = max(held, sum(map(len, reader.gi_frame.f_locals["begun"])))
        yield b"y\nlast\n"
        yield b"z" * CHUNK
        yield b"z" * CHUNK + b"z"

    reader = blocks(endless(), max_line=2 * CHUNK)
    result = list(reader)
    assert held == 2 * CHUNK
    assert [line for block in result for line in block.lines()] == [(1, b"first"), (3, b"last")]
    refused = [(r.line, r.reason) for block in result for r in block.rejected]
    assert refused == [(2, Reason.TOO_LONG), (4, Reason.TOO_LONG)]


def test_a_line_at_the_limit_is_read() -> None:
    for length, read in ((CHUNK, True), (CHUNK + 1, False)):
        text = b"x" * length
        result = list(blocks(iter([text[:10], text[10:], b"\n"]), max_line=CHUNK))
        assert [line for block in result for line in block.lines()] == ([(1, text)] if read else [])
        assert sum(len(block.rejected) for block in result) == (not read)


def test_what_breaks_off_gives_its_whole_lines_and_one_count() -> None:
    def breaks():
        yield b"one\ntw"
        raise Broken("it broke")

    (block,) = blocks(breaks())
    assert list(block.lines()) == [(1, b"one")]
    assert [(r.line, r.reason, r.detail) for r in block.rejected] == [(2, Reason.TRUNCATED_FILE, "it broke")]
    assert lines.refusal(3, RecursionError()).reason == Reason.MALFORMED
