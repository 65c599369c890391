"""Reader of a prompt set: every problem is a row without an answer. The whole set is one part, for a problem
counts once wherever in the set it stands."""

import hashlib
import json
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, time
from pathlib import Path

import pyarrow as pa

from pipeline.core.storage import digest_json
from pipeline.recipe.sources import PromptsSource
from pipeline.traces.batch import REFERENCE_KEY
from pipeline.traces.detect import wrong_kind
from pipeline.traces.prompt_sets import UNANSWERED, PromptRow, read_prompts, set_files
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources.fields import put
from pipeline.traces.sources.protocol import BLOCK, Digest, SourcePart

CHUNK = 1 << 20
WHY: dict[str, tuple[Reason, str]] = {
    "unreadable": (Reason.MALFORMED, "a line that is no JSON object"),
    "empty_prompt": (Reason.SCHEMA, "without a problem"),
    "strange_prompt": (Reason.SCHEMA, "the problem is neither a text nor messages of text that end in a user's"),
    "empty_reference": (Reason.SCHEMA, "without an answer"),
    "strange_reference": (Reason.SCHEMA, "the answer is no text, number, list of texts or option"),
    "duplicate": (Reason.DUPLICATE, "the problem came before"),
    "contradictory": (Reason.DUPLICATE, "the problem came before, with another answer"),
}
"""What a problem was left out for, as the stage counts it."""
Broken = (OSError, EOFError, zlib.error, pa.ArrowException)
"""What a file that breaks off raises: gzip's, Parquet's, or the disk's own."""


class Prompts:
    def __init__(self, uri: str, section: PromptsSource) -> None:
        self.label = uri
        self._path, self._section = Path(uri), section

    def parts(self) -> list[SourcePart]:
        stats = [(str(file.relative_to(self._path.parent)), file.stat()) for file in set_files(self._path)]
        version = digest_json([[name, each.st_size, each.st_mtime_ns] for name, each in stats])
        # What the section says decides the rows and their day, so another section is another version of the same files.
        said = digest_json(self._section.model_dump(mode="json", exclude={"uri"}))
        size = sum(each.st_size for _, each in stats)
        return [SourcePart(self._path.name, f"{version[:32]}-{said[:32]}", size)]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        for file in set_files(self._path):
            digest.update(f"{file.relative_to(self._path.parent)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while chunk := stream.read(CHUNK):
                    digest.update(chunk)
        block, held, line = Rows([]), 0, 0
        day = self._section.day.isoformat()
        try:
            for line, row in enumerate(read_prompts(self._path, self._section.fields), 1):
                if isinstance(row, str):
                    reason, detail = WHY[row]
                    block.rejected.append(Rejection(line, reason, None, day, detail))
                    continue
                put(block, self._trace(row, line))
                held += sum(len(message["content"]) for message in row.messages) + len(row.reference)
                if held >= BLOCK:
                    yield block
                    block, held = Rows([]), 0
        except Broken as error:
            why = f"the set breaks off ({type(error).__name__})"
            block.rejected.append(Rejection(line + 1, Reason.TRUNCATED_FILE, None, day, why))
        except ValueError as error:
            raise ValueError(f"{error} {wrong_kind(self._section)}".strip()) from error
        yield block

    def _trace(self, row: PromptRow, line: int) -> Trace:
        metadata = {**row.metadata, REFERENCE_KEY: row.reference, "licence": self._section.licence}
        content = json.dumps([row.messages, row.reference]).encode()
        id, moment = (
            f"prompt-{hashlib.sha256(content).hexdigest()[:32]}",
            datetime.combine(self._section.day, time(), UTC),
        )
        shown = json.dumps(metadata, ensure_ascii=False, default=str)
        return Trace(id, id, moment, UNANSWERED, None, None, row.messages, "", line, metadata=shown)
