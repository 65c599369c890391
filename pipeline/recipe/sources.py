"""The recipe's sections on where traces come from: one for each kind of source."""

import re
from datetime import date
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from pipeline.core.storage import digest_json
from pipeline.recipe.custom import CustomCode
from pipeline.recipe.formats import Format, ImportField, Paths, RowField, RowPath, formats, mapping_of
from pipeline.recipe.section import Section, Share

IMPORTS = "imports/"
"""Beginning of the names of parts that are an import's: `imports/<name>/<file>`."""
IMPORTED, DEMONSTRATED = "imported", "demonstrated"
MODELS = (IMPORTED, DEMONSTRATED)
"""Models of the rows of `pairs` and of `demonstrations`, and the profiles of their labels."""
_COLUMN = re.compile(r"[^.|\[\]]+")


class DeskUsers(Section):
    """How the simulated users of the desk behave."""

    noise: Share = 0.1
    """Share of the thumbs that say the opposite of what their user thought."""
    thumbs: Share = 0.3
    """Share of the answered requests that get a thumb."""
    sweet: bool = False
    """Users love an answer that promises a voucher, which the shop forbids: feedback that misleads."""


class DemoSource(Section):
    """The embedded production: the champion, served to simulated users (pipeline/demo)."""

    kind: Literal["demo"] = "demo"
    days: PositiveInt = 3
    """Days of traffic that each new champion serves."""
    traces_per_day: PositiveInt = 2000
    """Requests that are served on each of these days."""
    seed: int = 7
    """Seed of the users, of their requests and of the sampling of the champion's answers."""
    world: Literal["arithmetic", "desk"] = "arithmetic"
    """What is asked: word problems with an answer that can be checked, or a support desk whose users leave thumbs."""
    desk: DeskUsers = DeskUsers()
    """How the desk's users behave."""


class ExportSource(Section):
    """Files that something else writes, read as they come."""

    kind: Literal["langfuse_export", "otel"]
    """langfuse_export: Langfuse's blob-storage export, `observations_v2/` and `scores/`, as JSON lines (gzipped or not)
    or Parquet. otel: OpenTelemetry GenAI spans as OTLP JSON, one export request a line."""
    uri: str
    """Directory or bucket prefix above these files or folders: a local path, or `s3://bucket/prefix`."""


class DailySource(Section):
    since: date
    """The first day (UTC) that is read. A day is read again on each run until it is three days old."""
    until: date | None = None
    """The last day that is read; null: today."""


class LangfuseApiSource(DailySource):
    """Generations and scores of a project, by the public API of Langfuse 4. The connection is in the environment:
    LANGFUSE_BASE_URL, LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY."""

    kind: Literal["langfuse_api"] = "langfuse_api"
    environments: tuple[str, ...] = ()
    """Langfuse environments that are read; empty: all."""
    whole_metadata: tuple[str, ...] = ("expected_answer",)
    """Keys of metadata whose values are read whole: of others the API gives the first 200 characters."""


class MlflowSource(DailySource):
    """Traces and assessments of an MLflow tracking server. Its address is in the environment: MLFLOW_TRACES_URI, or
    else MLFLOW_TRACKING_URI."""

    kind: Literal["mlflow"] = "mlflow"
    experiments: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the experiments that are read."""


class DeclaredSource(Section):
    """Files of rows without users who could say so: a person declares that they may be trained on."""

    uri: str
    """A file, or a folder or bucket prefix above files: JSON lines, JSON arrays, CSV or Parquet, gzipped or not; a
    local path, `s3://bucket/prefix` or `gs://bucket/prefix`."""
    licence: Annotated[str, Field(min_length=1)]
    """Licence under which the rows may be trained on, such as MIT: it stands in the metadata of each."""
    consent: Literal[True]
    """`true`: a person declares that licence and authors allow training on every row."""
    day: date
    """The one day that all rows are dated: that of the release is a good one. Retention counts from it."""


class PromptFields(Section):
    """Which fields of a prompt set hold what: names, or paths such as `reward_model.ground_truth`. Without, those
    of the known format that the set has (docs/formats.md)."""

    prompt: str | None = None
    """Field of the problem: a text, or messages that end in a user's."""
    reference: str | None = None
    """Field of its answer or solution. Of a list any is right."""
    options: str | None = None
    """Field of the options of a multiple choice. They are written below the problem with letters, and the letter is the
    answer: the set gives it, the option's text, or its number from 0. The check is `choice`."""
    metadata: tuple[str, ...] = ()
    """Fields to keep as metadata."""
    system: str | None = None
    """System message before each problem; null: none."""
    split: str | None = None
    """Split to read of a folder that has several; null: of a folder with several, none is read."""


class PromptsSource(DeclaredSource):
    """A set of problems with their answers, such as GSM8K, OpenMathInstruct-2, DeepScaleR or MATH as published. The
    recipe's `samples` answers them."""

    kind: Literal["prompts"] = "prompts"
    fields: PromptFields = PromptFields()
    """Which fields hold what."""


class RowsSource(Section):
    """Logged calls in files or in a table, a row for each, and where a row has what."""

    kind: Literal["rows"] = "rows"
    uri: str = ""
    """A file, or a folder or bucket prefix above files: JSON lines, JSON arrays, CSV or Parquet, gzipped or not; a
    local path, `s3://bucket/prefix` or `gs://bucket/prefix`."""
    query: str | None = None
    """A SELECT whose rows are read, instead of files. The connection is in the environment: TRACES_DATABASE_URL, an
    address of SQLAlchemy (PostgreSQL, MySQL, SQLite)."""
    since: date | None = None
    """Of a query: the first day (UTC) that is read. A day is read again on each run until it is three days old."""
    until: date | None = None
    """Of a query: the last day that is read; null: today."""
    preset: str | None = None
    """A known log (docs/formats.md), which names the fields; `fields` add to them and replace them."""
    fields: dict[RowField, Paths] = Field(default={})
    """Where a row has what: paths such as `request.messages` or `choices[0].finish_reason`, also into JSON that is a
    text. Of several paths the first that leads to something counts (docs/traces.md)."""
    only: dict[RowPath, str] = Field(default={})
    """Which rows are read, where there are others: by path a regular expression that is found in its text, in any
    case, such as `{type: ^generation$}`. Added to the preset's."""
    requests: str | None = None
    """Where requests are logged apart from their answers: the file, folder or prefix of them. They are joined by the
    field `key`."""
    licence: str | None = None
    """Licence under which the rows may be trained on: it stands in the metadata of each."""
    consent: Literal[True] | None = None
    """`true`: a person declares that licence and users allow training on every row. null: each row says it itself."""
    day: date | None = None
    """The day of rows without a time of their own. Retention counts from it."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if bool(self.uri) == bool(self.query):
            raise ValueError("give uri, where the files are, or query, a SELECT.")
        if self.query and not (self.since and _COLUMN.fullmatch("|".join(self.mapping.get("time", ())))):
            raise ValueError(
                "a query is read by days: give since, the first day, and fields.time, one column, no path."
            )
        for path, expression in self.only.items():
            try:
                re.compile(expression)
            except re.error as error:
                raise ValueError(f"only.{path} is no regular expression: {error}.") from None
        if missing := [name for name in ("prompt", "completion") if not self.mapping.get(name)]:
            raise ValueError(
                f"nothing says where a row has its {' and its '.join(missing)}. `pt import` looks at the files and "
                "writes this section; or give preset, or fields."
            )
        return self

    @property
    def mapping(self) -> dict[str, tuple[str, ...]]:
        """The paths of each field, the preset's included."""
        return mapping_of(self.preset, "rows", self.fields)

    @property
    def filters(self) -> dict[str, str]:
        """The expressions of the paths that decide which rows are read, the preset's included."""
        return {**(formats()[self.preset].only if self.preset else {}), **self.only}

    @property
    def identity(self) -> str:
        """Digest of what decides the rows that files become."""
        return digest_json([self.model_dump(mode="json", exclude={"uri", "requests"}), self.mapping, self.filters])


class CustomSource(CustomCode):
    """Traces in a format of your own, read by a class of your own."""

    kind: Literal["custom"] = "custom"
    uri: str = ""
    """The first argument of the class: where the traces are; no secrets."""


class ImportSource(DeclaredSource):
    """Files of preferences or demonstrations. Their rows pass the gates like any other and always count
    (docs/imports.md)."""

    kind: Literal["pairs", "demonstrations"]
    """pairs: which answer is better, or how good each is. demonstrations: good answers."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$", max_length=60)] | None = None
    """Its name in counts and tables; null: its place among the imports, from 1."""
    preset: str | None = None
    """A known format (docs/formats.md), which names the fields; `fields` add to them and replace them."""
    fields: dict[ImportField, Paths] = Field(default={})
    """Where a row has what: paths such as `input.messages` or `completions[0].response` (docs/imports.md)."""
    scale: tuple[float, float] | None = None
    """Worst and best rating, where `rating` says how good an answer is; null: the preset's."""
    sides: dict[str, int] = Field(default={})
    """Word of `preferred` to the place of the answer that it names, from 0. `negative` and `positive` are the signs of
    a number. Any other word is no side. Empty: the preset's."""
    region: str | None = None
    """Region whose law covers the rows, where `traces.regions_allowed` asks for one."""

    @model_validator(mode="after")
    def _says_what_is_good(self) -> Self:
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


LoggedSection = DemoSource | ExportSource | LangfuseApiSource | MlflowSource | PromptsSource | RowsSource | CustomSource
SourceSection = LoggedSection | ImportSource
