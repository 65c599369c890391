"""The recipe's section on traces: where they come from, what may be learned from, where and how long it is kept."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from pipeline.recipe.section import Operational, Section, Share
from pipeline.recipe.sources import IMPORTS, CustomSource, ImportSource, RowsSource, SourceSection

Attribution = Literal["promoted", "model", "none"]
Answers = Literal["each", "last"] | tuple[str, ...]


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
    def _possible(self) -> Self:
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
    imports: tuple[ImportSource, ...] = ()
    """Preference and instruction data that exist already, which are trained on beside the source's traces."""
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

    @model_validator(mode="after")
    def _imports_have_names(self) -> Self:
        if len(self.imported) < len(self.imports) + isinstance(self.source, ImportSource):
            raise ValueError("two imports have one name. Give each a name of its own.")
        return self

    @property
    def imported(self) -> dict[str, ImportSource]:
        """The imports, by the beginning of the names of their parts."""
        sections = (self.source, *self.imports) if isinstance(self.source, ImportSource) else self.imports
        return {f"{IMPORTS}{each.name or n}/": each for n, each in enumerate(sections, 1)}

    def import_of(self, part: str) -> str:
        """The beginning of a part's name that says whose it is; "" for a part of the source itself."""
        return next((prefix for prefix in self.imported if part.startswith(prefix)), "")

    def section_of(self, part: str) -> SourceSection:
        return self.imported.get(self.import_of(part), self.source)

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
