"""Reader of a Langfuse blob-storage export: `observations_v2/` and `scores/`, JSON lines, gzipped or not.

Owns the export's layout. Refuses to merge rows of one trace: consent and the rest of the metadata are read from the
generation's own row, where Langfuse's propagated trace attributes are; a row that lacks them counts as without consent.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pipeline.traces.files import SourceFile, list_files, named_day
from pipeline.traces.langfuse import Observation, ScoreRow, add
from pipeline.traces.records import UNKNOWN_DAY, FileRows, Reason, Rejection


def read_export(uri: str) -> Iterator[FileRows]:
    """The export's files in name order, observations first.

    A line that is not JSON is a counted rejection. A gzip that breaks off keeps the rows before the break and counts
    one `truncated_file` for the rest: a day is better short by a known file than absent. (In a gzip with flipped bits,
    rows shortly before the break may be damaged and still parse: gzip proves its content only at its end.)
    Raises ValueError when the source is missing or cannot be read.
    """
    observations = list_files(uri, "observations_v2")
    if not observations:
        raise ValueError(
            f"{uri} has no observations_v2/ with JSON lines in it. "
            "Point traces.source.uri to the folder above observations_v2/ of a Langfuse blob-storage export."
        )
    for file in observations:
        yield _read(file, msgspec.json.Decoder(Observation))
    for file in list_files(uri, "scores"):
        yield _read(file, msgspec.json.Decoder(ScoreRow))


def _read(file: SourceFile, decoder: msgspec.json.Decoder[Observation] | msgspec.json.Decoder[ScoreRow]) -> FileRows:
    rows = FileRows(file.name, named_day(file.name))
    for number, line in file.lines():
        if line is None:
            day = rows.named_day or UNKNOWN_DAY
            rows.rejected.append(Rejection(None, Reason.TRUNCATED_FILE, file.name, number, day))
        else:
            add(rows, number, lambda line=line: decoder.decode(line))
    rows.sha256 = file.sha256
    return rows
