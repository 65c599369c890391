"""One id in the ways in which texts and files write it: seen in all of them, and taken out of texts."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from unicodedata import normalize
from urllib.parse import quote, quote_plus

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.erasure.affected import Person
from pipeline.erasure.identifiers import Identifiers
from pipeline.erasure.search import look_into
from pipeline.traces.erased import user_hash

ID = "José O'Neil-<77>"
APART = normalize("NFD", ID)
TEXTS = {
    "as it is": ID,
    "upper case": ID.upper(),
    "accents apart": APART,
    "accents apart, upper case": APART.upper(),
    "JSON": json.dumps(ID),
    "JSON, accents apart": json.dumps(APART),
    "JSON in JSON": json.dumps(json.dumps({"a": ID})),
    "a URL of Python": quote(ID, ""),
    "a URL of a browser": quote(ID, "!'()*"),
    "a URL, accents apart": quote(APART, ""),
    "a form": quote_plus(ID),
    "HTML of Python": "José O&#x27;Neil-&lt;77&gt;",
    "HTML of Jinja": "José O&#39;Neil-&lt;77&gt;",
}
PLAIN = "user-ann-4711"


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_an_id_is_seen_however_a_text_writes_it(text: str) -> None:
    for known in (ID, APART):
        identifiers = Identifiers({known})
        assert identifiers.in_text(f"before {text} after")
        assert not Identifiers({known}).in_text(identifiers.redacted(f"before {text} after"))
        assert not identifiers.in_text(f"before {text.replace('77', '78')} after")


def test_a_user_is_the_same_in_both_normal_forms() -> None:
    for known in (ID, APART):
        assert {ID, APART} <= Person.named(known).ids
        assert Identifiers({known}).is_user(ID) and Identifiers({known}).is_user(APART.upper())
        assert Identifiers({"Zoé"}).in_text(json.dumps({"user": normalize("NFD", "ZOÉ")})), "a short one, as a value"
    assert user_hash(ID) == user_hash(APART)


def column(path: Path, field: pa.Field) -> None:
    pq.write_table(pa.table([pa.array([None], field.type)], schema=pa.schema([field])), path)


def array(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, np.array([PLAIN]))


def gzipped(path: Path) -> None:
    with path.open("wb") as stream, gzip.GzipFile(f"{PLAIN}.jsonl", "wb", fileobj=stream) as inner:
        inner.write(b"{}\n")


def weights(path: Path) -> None:
    header = json.dumps({"__metadata__": {"by": PLAIN}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


PLACES: dict[str, Callable[[Path], object]] = {
    "a.txt": lambda path: path.write_bytes(f"by {PLAIN}".encode("utf-16-le")),
    "b.txt": lambda path: path.write_bytes(f"by {PLAIN}".encode("utf-16-be")),
    "c.txt": lambda path: path.write_bytes(f"by {PLAIN}".encode("utf-32-le")),
    "d.npy": array,
    "e.gz": gzipped,
    "f.parquet": lambda path: column(path, pa.field("a", pa.string(), metadata={"by": PLAIN})),
    "g.parquet": lambda path: column(path, pa.field("a", pa.struct([pa.field(PLAIN, pa.string())]))),
    "h.safetensors": weights,
}


@pytest.mark.parametrize("name", PLACES)
def test_an_id_is_seen_beside_the_texts_of_a_file(tmp_path: Path, name: str) -> None:
    PLACES[name](tmp_path / name)
    result = look_into(tmp_path / name, Identifiers({PLAIN}))
    assert result is not None and result.holds
    other = look_into(tmp_path / name, Identifiers({"user-bob-0815"}))
    assert other is None or not other.holds


@pytest.mark.parametrize("content", [zlib.compress(PLAIN.encode()), zlib.compress(PLAIN.encode(), 9)])
def test_a_bare_stream_of_zlib_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    result = look_into(tmp_path / "a", Identifiers({PLAIN}))
    assert result is not None and result.why == "a format that no source reads"
