"""The recipe's section on traces: where they come from, what may be learned from, where and how long it is kept."""

from __future__ import annotations

from datetime import date
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from pipeline.core.storage import digest_json
from pipeline.recipe.custom import CustomCode
from pipeline.recipe.section import Operational, Section, Share


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


class PostgresTableSource(Section):
    """A PostgreSQL table `traces(id, timestamp, user_id, session_id, input, output, model, latency_ms, token_count,
    metadata, user_consent)`. The connection is in the environment: TRACES_DATABASE_URL."""

    kind: Literal["postgres_table"] = "postgres_table"
    table: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f.]{1,63}(\.[^\x00-\x1f\x7f.]{1,63})?$")] = "traces"
    """The table's name, with its schema where it needs one: `traces` or `schema.traces`."""


class LangfuseApiSource(Section):
    """Generations and scores of a project, by the public API of Langfuse 4. The connection is in the environment:
    LANGFUSE_BASE_URL, LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY."""

    kind: Literal["langfuse_api"] = "langfuse_api"
    since: date
    """The first day (UTC) that is read."""
    until: date | None = None
    """The last day that is read; null: today."""
    settled_after_days: ClassVar[int] = 3
    """Days for which a day is read again on each run. What comes later, or is changed later, is not seen."""
    environments: tuple[str, ...] = ()
    """Langfuse environments that are read; empty: all."""
    whole_metadata: tuple[str, ...] = ("expected_answer",)
    """Keys of metadata whose values are read whole: of others the API gives the first 200 characters."""


class MlflowSource(Section):
    """Traces and assessments of an MLflow tracking server. Its address is in the environment: MLFLOW_TRACES_URI, or
    else MLFLOW_TRACKING_URI."""

    kind: Literal["mlflow"] = "mlflow"
    experiments: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the experiments that are read."""
    since: date
    """The first day (UTC) that is read."""
    until: date | None = None
    """The last day that is read; null: today."""
    settled_after_days: ClassVar[int] = 3
    """Days for which a day is read again on each run. What comes later, or is changed later, is not seen."""


class PromptFields(Section):
    """Which fields of a prompt set hold what. Without names, the first known layout that the set has."""

    prompt: str | None = None
    """Field of the problem, a text."""
    reference: str | None = None
    """Field of its answer or solution."""
    metadata: tuple[str, ...] = ()
    """Fields to keep as metadata."""
    system: str | None = None
    """System message before each problem; null: none."""
    split: str | None = None
    """Split to read of a folder that has several; null: of a folder with several, none is read."""


class PromptsSource(Section):
    """A set of problems with their answers, such as GSM8K, OpenMathInstruct-2, DeepScaleR or MATH as published: JSON
    lines (gzipped or not), one JSON array, Parquet, or a folder of lines and Parquet. The recipe's `samples` answers
    them."""

    kind: Literal["prompts"] = "prompts"
    uri: str
    """Path of the file or folder, on a disk of this machine."""
    licence: Annotated[str, Field(min_length=1)]
    """Licence under which the set may be trained on, such as MIT: it stands in the metadata of every row."""
    consent: Literal[True]
    """`true`: a person declares that licence and authors allow training. The set has no users who could say so."""
    day: date
    """The one day that all of its rows are dated: that of the release is a good one. Retention counts from it."""
    fields: PromptFields = PromptFields()
    """Which fields hold what."""


class RowFields(Section):
    """Which columns hold what. The usual names are those of seed 002."""

    prompt: str = "input"
    """What was asked: a text, or messages in any form that the other sources have."""
    completion: str = "output"
    """What was answered."""
    user: str | None = None
    """Whose row it is: what erasure looks for. null: rows name no user."""
    time: str | None = None
    """When it was answered; null, and where a row has none: `day`."""
    metadata: tuple[str, ...] = ()
    """What is kept as metadata: a reward (`rewards.given_key`), consent (`traces.consent_key`), `expected_answer`."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.prompt, self.completion, self.user, self.time, *self.metadata)))


class RowsSource(Section):
    """Prompts with their answers in Parquet files, several rows for a prompt that was answered several times."""

    kind: Literal["rows"] = "rows"
    uri: str
    """A file, or a folder or bucket prefix above files: a local path, or `s3://bucket/prefix`."""
    licence: Annotated[str, Field(min_length=1)]
    """Licence under which the rows may be trained on: it stands in the metadata of each."""
    consent: Literal[True] | None = None
    """`true`: a person declares that licence and users allow training on every row. null: each row says it itself."""
    day: date
    """The day of rows without a time of their own. Retention counts from it."""
    fields: RowFields = RowFields()
    """Which columns hold what."""

    @property
    def identity(self) -> str:
        """Digest of what decides the rows that files become."""
        return digest_json(self.model_dump(mode="json", exclude={"uri"}))


class CustomSource(CustomCode):
    """Traces in a format of your own, read by a class of your own."""

    kind: Literal["custom"] = "custom"
    uri: str = ""
    """The first argument of the class: where the traces are; no secrets."""


Attribution = Literal["promoted", "model", "none"]
Answers = Literal["each", "last"] | tuple[str, ...]
SourceSection = (
    DemoSource
    | ExportSource
    | PostgresTableSource
    | LangfuseApiSource
    | MlflowSource
    | PromptsSource
    | RowsSource
    | CustomSource
)


class Placeholder(Section):
    """What an application or a gateway writes where a message's text was. The usual ones are known (docs/traces.md)."""

    text: Annotated[str, Field(min_length=1)]
    """The placeholder, letter by letter."""
    makes: Literal["redacted", "cut"] = "redacted"
    """redacted: a message that is this and nothing else was not recorded. cut: neither was one that has it anywhere."""


class ScoreMeaning(Section):
    """What the scores of one name mean. A name without a declaration is no feedback, but for plain thumbs
    (docs/traces.md)."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    name: Annotated[str, Field(min_length=1)]
    """The scores' name, as the source has it."""
    by: Annotated[Literal["user", "expert", "program"], Field(alias="from")]
    """Whose word it is. A program's is never feedback; nor is a score of this name that a judge's model gave."""
    scale: Annotated[tuple[float | str, ...], Field(min_length=2)] = (0.0, 1.0)
    """Lowest and highest number; or all words, in quotes, from the lowest to the highest, evenly apart."""
    good: Literal["high", "low"] = "high"
    """Which end of the scale praises the answer."""
    use: Literal["feedback", "ignore"] = "feedback"
    """Whether rewards go by it. `ignore` keeps the scores in the table without a value."""

    @model_validator(mode="after")
    def _possible(self) -> ScoreMeaning:
        words = [each for each in self.scale if isinstance(each, str)]
        if words and len(words) < len(self.scale):
            raise ValueError(f"scale is {list(self.scale)}. Give two numbers, or words in quotes.")
        if not words and (len(self.scale) != 2 or not float(self.scale[0]) < float(self.scale[1])):
            raise ValueError(f"scale is {list(self.scale)}. Give the lowest and the highest number.")
        if len({word.strip().casefold() for word in words}) < len(words):
            raise ValueError(f"scale is {list(self.scale)}. Give each word once.")
        if self.by == "program" and self.use == "feedback":
            raise ValueError("a program's score is no feedback of people. Write use: ignore.")
        return self


class PersonalData(Section):
    recogniser: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """A function of your own, `package.module:function`: for a text it gives (start, end) of names, addresses and the
    like, which are masked in every row that is admitted. null: none."""


class LakeSection(Section):
    """The Iceberg catalogue and warehouse of the governed table. Endpoints and credentials are in the environment."""

    catalogue: Literal["sqlite", "postgres", "rest", "glue"] = "sqlite"
    """sqlite: a file under the data root. postgres and rest: LAKE_CATALOGUE_URI. glue: the AWS environment."""
    warehouse: str = ""
    """Where the table lies: a path or `s3://bucket/prefix`; empty: `lake/` under the data root."""
    keep_snapshots_days: ClassVar[int] = 30
    """Older snapshots are expired by upkeep, and the files that only they name are swept."""


class Traces(Section):
    source: Annotated[SourceSection, Field(discriminator="kind")]
    """What is read: one of the kinds, each with its own fields."""
    consent_key: str = "user_consent"
    """Metadata key that says whether a user agreed to training. Absent, null, false, 0 and "false" all mean no."""
    region_key: str = "region"
    """Metadata key of the region whose law covers the trace."""
    regions_allowed: tuple[str, ...] = ()
    """Regions whose traces this deployment may read, in any case: `eu` also allows `eu-west-1`. A trace of another
    region stays out, and so does one without a region. Empty: only traces without a region come in (the embedded
    production: `us`)."""
    confidential_key: str = "confidential"
    """Metadata key that keeps a trace out of every training set when it is true."""
    placeholders: tuple[Placeholder, ...] = ()
    """Placeholders of your own for texts that were not recorded: a row with one is rejected as `no_content`."""
    answers: Answers = "each"
    """Which model calls of a trace are answers. `each`: the last call for each message of a user, without helpers,
    which make titles, tags and the like (docs/traces.md). `last`: the trace's last call alone, whatever its name. Names
    of calls: as `each`, of these calls alone."""
    scores: tuple[ScoreMeaning, ...] = ()
    """What the scores of a name mean: which are people's word, on which scale, and which end is good. Without it only
    plain thumbs are feedback (docs/traces.md); the stage's log names those that nothing declares."""
    pii: PersonalData = PersonalData()
    """What is masked in addition to the known formats (docs/pii.md)."""
    max_latency_s: PositiveFloat = 120.0
    """Slower answers are outliers (a hung tool, a retry storm), not samples of the model."""
    window_days: PositiveInt = 30
    """An iteration trains on the newest so many days that have traces which count."""
    attribution: Annotated[Attribution | None, Operational] = None
    """Which traces count for the champion. `promoted`: those newer than its promotion (all, for the base model).
    `model`: those whose model has one of its names (docs/traces.md), where several models serve or deployment takes its
    time. `none`: all; every promotion then trains on the same traces again. null: `model` for the demo source, which
    names its champions, `none` for a prompt set, which each champion answers again, `promoted` for every other. The
    digest of the dataset says what counted."""
    min_admitted_share: Annotated[Share, Operational] = 0.01
    """Admitted share, of the rows that could have been, below which the source is taken for a wrong one: the stage
    fails and publishes nothing. 0: no floor."""
    lake: Annotated[LakeSection, Operational] = LakeSection()
    """Where the governed table lies."""
    governed_days: Annotated[PositiveInt | None, Operational] = None
    """Days of the governed table are dropped so many days after their traces, with every snapshot that holds them; null
    keeps them. Source files are their owner's to delete."""

    @property
    def reader(self) -> str:
        """What reads the source; the embedded production writes a Langfuse export. Of custom code also its digest and
        its options, of rows the section: what was read in another way has to be read again."""
        if isinstance(self.source, CustomSource | RowsSource):
            return f"{self.source.kind} {self.source.identity[:16]}"
        return "langfuse_export" if self.source.kind == "demo" else self.source.kind

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions in force, in lower case."""
        allowed = self.regions_allowed or (("us",) if self.source.kind == "demo" else ())
        return tuple(sorted(region.strip().lower() for region in allowed))

    @property
    def counts(self) -> Attribution:
        """The rule of attribution in force."""
        usual: dict[str, Attribution] = {"demo": "model", "prompts": "none"}
        return self.attribution or usual.get(self.source.kind, "promoted")
