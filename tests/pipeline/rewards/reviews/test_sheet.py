"""What a sheet shows, and that any text goes through it unharmed and harmless."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.rewards.reviews import sheet

cells = st.text() | st.text(alphabet="=+-@,;\t\r\n\"' a1|\ufeff\x00\u2028\uff1d")


@settings(max_examples=60)
@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=5))
def test_any_text_goes_through_a_sheet_and_is_no_formula_in_it(texts: list[tuple[str, str, str]]) -> None:
    rows = [
        {"item": f"item{chr(97 + at)}", "trace_id": trace, "prompt": prompt, "completion": completion}
        for at, (trace, prompt, completion) in enumerate(texts)
    ]
    content = sheet.render(rows)
    read = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    assert [row["item"] for row in read] == [row["item"] for row in rows]
    for row, back in zip(rows, read, strict=True):
        for name in ("trace_id", "prompt", "completion"):
            # Apostrophes aside, what is read is what was said; line ends are line feeds, tabs are spaces.
            plain = re.sub(r"\r\n?", "\n", row[name]).replace("'", "").replace("\t", "    ")
            value = "".join(chr(0x2400 + ord(c)) if c < " " and c != "\n" else c for c in plain)
            assert back[name].replace("'", "") == value.replace("\x7f", "\u2421")
    for delimiter in ",;\t":  # whatever a spreadsheet takes for the separator
        for line in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter=delimiter):
            assert not [cell for cell in line if re.match(r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]", cell.lstrip(' "'))]
    assert list(sheet.answers(content, json_lines=False)) == []


@given(cells, st.integers(1, 5))
def test_a_score_beside_any_text_is_read(text: str, score: int) -> None:
    blank = sheet.render([{"item": "abc", "trace_id": "t", "completion": text, "prompt": text}])
    given = blank.removesuffix(b'"","",""\r\n') + f'"{score}","","fine"\r\n'.encode()
    assert list(sheet.answers(given, json_lines=False)) == [sheet.ReviewAnswer("abc", "t", (score - 1) / 4)]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+1", "'+1"),
        ("\t=1", "    '=1"),
        ("\r=1", "\n'=1"),
        ('"x";=cmd', '"x";\'=cmd'),
        ("f(3,-4) = a - b", "f(3,-4) = a - b"),
        ("a\n- one\n  - two", "a\n'- one\n  '- two"),
        ("\x00=1\x1b", "\u2400=1\u241b"),
        ("x" * 40_000, f"{'x' * 15_000}… (10,000 characters are cut) …{'x' * 15_000}"),
    ],
)
def test_what_could_begin_a_cell_is_no_formula(text: str, cell: str) -> None:
    assert sheet.shown(text) == cell


@pytest.mark.parametrize("unit", ["\n=", "=-", "\n", " ;'\"", "\t", "\x00"])
def test_a_hostile_cell_fits_a_spreadsheet(unit: str) -> None:
    assert len(sheet.shown(unit * 50_000)) < 32_767
