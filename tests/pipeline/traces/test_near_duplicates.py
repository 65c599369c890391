from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.traces.near_duplicates import BANDS, KEYS, band_keys, clusters

VOCABULARY = [f"word{n}" for n in range(5000)]


def prose(chance: random.Random, words: int = 150) -> list[str]:
    return chance.choices(VOCABULARY, k=words)


def changed(words: list[str], places: int) -> list[str]:
    """Replaces words at the end: each costs one shingle, so similarity is known."""
    return [*words[: len(words) - places], *(f"new{n}" for n in range(places))]


def written(folder: Path, parts: list[list[str]]) -> list[Path]:
    paths: list[Path] = []
    for number, texts in enumerate(parts):
        columns = [pa.array([number] * len(texts), pa.int32()), pa.array(range(len(texts)), pa.int64())]
        keys = band_keys(texts).cast(pa.list_(pa.uint64()))
        paths.append(folder / f"{number}.parquet")
        pq.write_table(pa.table([*columns, keys], names=["part", "row", "bands"]), paths[-1])
    return paths


def test_planted_near_duplicates_are_found_and_others_are_not(tmp_path: Path) -> None:
    chance = random.Random(0)
    texts = [prose(chance) for _ in range(300)]
    close = [changed(words, 4) for words in texts[:200]]  # 142 of 150 shingles: 0.95
    apart = [changed(words, 40) for words in texts[200:]]  # 106 of 186: 0.57
    parts = [[" ".join(t) for t in some] for some in (texts, close, apart)]
    rows = clusters(written(tmp_path, parts), 0.9, scratch=tmp_path).to_pylist()
    of = {(r["part"], r["row"]): r["cluster"] for r in rows}
    result = sum((0, n) in of and of[0, n] == of.get((1, n)) for n in range(200))
    assert result >= 190  # 0.95 is estimated within 0.02 from 128 slots
    assert all(part != 2 and (part, row) < (1, 200) for part, row in of)
    assert len({(0, n) for n in range(200, 300)} & of.keys()) == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_files_and_rows_does_not_matter(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    texts = [prose(chance, 40) for _ in range(60)]
    texts += [changed(words, places) for words in texts for places in (1, 2, 3)]
    joined = [" ".join(t) for t in texts]
    shuffled = chance.sample(joined, len(joined))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = as_sets([joined], clusters(written(tmp_path / "a", [joined]), 0.9))
    parts = [shuffled[:100], shuffled[100:]]
    assert as_sets(parts, clusters(written(tmp_path / "b", parts)[::-1], 0.9)) == first
    assert len(first) >= 30


def as_sets(parts: list[list[str]], found: pa.Table) -> set[frozenset[str]]:
    members: dict[int, set[str]] = {}
    for row in found.to_pylist():
        members.setdefault(row["cluster"], set()).add(parts[row["part"]][row["row"]])
    return {frozenset(texts) for texts in members.values()}


@pytest.mark.slow
def test_keys_are_the_same_in_another_process() -> None:
    texts = [
        "The quick brown fox jumps over it",
        "short",
        "",
        "오늘 날씨가 참 좋네요",
        "今天天气很好",
    ]
    code = f"from pipeline.traces.near_duplicates import band_keys; print(band_keys({texts!r}).to_pylist())"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": s}, capture_output=True, check=True
        ).stdout
        for s in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].decode().strip() == str(band_keys(texts).to_pylist())


def test_a_text_has_the_same_keys_in_any_batch() -> None:
    texts = ["one two three", "a b c d e f g", "", "one two three"]
    together = band_keys(texts).to_pylist()
    assert together == [band_keys([text]).to_pylist()[0] for text in texts]
    assert together[0] == together[3] != together[1]
    assert {len(keys) for keys in together} == {KEYS}
    assert len(set(together[0][:BANDS])) == BANDS


def test_case_and_spacing_are_no_difference() -> None:
    assert band_keys(["One  two\nTHREE"]).equals(band_keys(["one two three "]))


def test_near_duplicates_are_found_in_text_without_spaces() -> None:
    base = "".join(chr(0x4E00 + 37 * n % 3000) for n in range(120))
    one, other = (set(keys[:BANDS]) for keys in band_keys([base, base[:-1] + "好"]).to_pylist())
    assert one & other


def test_nothing_near_gives_no_rows(tmp_path: Path) -> None:
    paths = written(tmp_path, [["a b c d e f", "g h i j k l"], []])
    assert clusters(paths, 0.9).num_rows == 0


def test_a_texts_keys_do_not_depend_on_its_neighbours() -> None:
    texts = ["one two", "", "one two three four five six", "one", "one two three four five", "last"]
    together = band_keys(texts).to_pylist()
    assert together == [band_keys([text]).to_pylist()[0] for text in texts]
    assert len({tuple(keys) for keys in together}) == len(texts)
