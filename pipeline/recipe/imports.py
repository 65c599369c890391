"""The recipe's section on data that exist already, as they were published or exported: preferences and
demonstrations."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.core.storage import digest_json
from pipeline.recipe.formats import Format, ImportField, Paths, formats, mapping_of
from pipeline.recipe.section import Section

IMPORTS = "imports/"
"""Beginning of the names of parts that are an import's: `imports/<name>/<file>`."""
IMPORTED, DEMONSTRATED = "imported", "demonstrated"
MODELS = (IMPORTED, DEMONSTRATED)
"""Models of the rows of `pairs` and of `demonstrations`, and the profiles of their labels."""


class ImportSource(Section):
    """Files of preferences or demonstrations. Their rows pass the gates like any other and always count
    (docs/imports.md)."""

    kind: Literal["pairs", "demonstrations"]
    """pairs: which answer is better, or how good each is. demonstrations: good answers."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$", max_length=60)] | None = None
    """Its name in counts and tables; null: its place among the imports, from 1."""
    uri: str
    """A file, or a folder or bucket prefix above files: JSON lines, JSON arrays, CSV or Parquet, gzipped or not; a
    local path, `s3://bucket/prefix` or `gs://bucket/prefix`."""
    preset: str | None = None
    """A known format (docs/formats.md), which names the fields; `fields` add to them and replace them."""
    fields: dict[ImportField, Paths] = Field(default={})
    """Where a row has what: paths such as `input.messages` or `completions[0].response` (docs/imports.md)."""
    scale: tuple[float, float] | None = None
    """Worst and best rating, where `rating` says how good an answer is; null: the preset's."""
    sides: dict[str, int] = Field(default={})
    """Word of `preferred` to the place of the answer that it names, from 0. `negative` and `positive` are the signs of
    a number. Any other word is no side. Empty: the preset's."""
    licence: Annotated[str, Field(min_length=1)]
    """Licence under which the rows may be trained on: it stands in the metadata of each."""
    consent: Literal[True]
    """`true`: a person declares that licence and authors allow training on every row."""
    day: date
    """The day that all rows are dated. Retention counts from it."""
    region: str | None = None
    """Region whose law covers the rows, where `traces.regions_allowed` asks for one."""

    @model_validator(mode="after")
    def _says_what_is_good(self) -> ImportSource:
        given, meaning = self.mapping, self.meaning
        ways = {
            "answer": self.kind == "demonstrations" and "answer" in given,
            "chosen and rejected": {"chosen", "rejected"} <= given.keys(),
            "answers and preferred with its sides": {"answers", "preferred"} <= given.keys() and bool(meaning.sides),
            "answers and rating with its scale": {"answers", "rating"} <= given.keys() and bool(meaning.scale),
        }
        if not any(ways.values()):
            way = "answer" if self.kind == "demonstrations" else ", or ".join(list(ways)[1:])
            raise ValueError(
                f"nothing says which answers are good. `pt import` looks at the files and writes this section; or give "
                f"preset, or fields: {way}."
            )
        if meaning.scale and meaning.scale[0] == meaning.scale[1]:
            raise ValueError(f"scale is {list(meaning.scale)}. Give the worst and the best rating.")
        return self

    @property
    def mapping(self) -> dict[str, tuple[str, ...]]:
        """The paths of each field, the preset's included."""
        return mapping_of(self.preset, self.kind, self.fields)

    @property
    def meaning(self) -> Format:
        """What the paths lead to: the preset, with the section's own words in its place."""
        preset = formats()[self.preset] if self.preset else Format(title="", kind=self.kind)
        return preset.model_copy(update={"scale": self.scale or preset.scale, "sides": self.sides or preset.sides})

    @property
    def identity(self) -> str:
        """Digest of what decides the rows that files become."""
        meaning = self.meaning.model_dump(mode="json", include={"scale", "sides", "speakers"})
        return digest_json([self.model_dump(mode="json", exclude={"uri", "name"}), self.mapping, meaning])

    @property
    def model(self) -> str:
        return IMPORTED if self.kind == "pairs" else DEMONSTRATED
