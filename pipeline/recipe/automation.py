"""Recipe section `automation`: schedules, triggers and how old a champion may grow; all off until somebody starts
them."""

import re
from typing import Annotated, ClassVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from pipeline.recipe.section import Section

HIGHEST = {"minute": 59, "hour": 23, "day of the month": 31, "month": 12, "day of the week": 7}
"""Fields of a cron, in their order."""
NAMED = re.compile("MON|TUE|WED|THU|FRI|SAT|SUN|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC")


def _checked(cron: str) -> str:
    for (name, highest), text in zip(HIGHEST.items(), cron.split(), strict=True):
        unknown = [word for word in re.findall("[A-Z]+", text.upper()) if not NAMED.fullmatch(word)]
        if unknown or any(int(number) > highest for number in re.findall(r"(?<![/\d])\d+", text)):
            raise ValueError(f"{text!r} is no {name} of a cron. Write five fields such as 0 3 * * 1-5.")
    return cron


Cron = Annotated[
    str, Field(pattern=r"^[0-9A-Za-z*,/-]+( [0-9A-Za-z*,/-]+){4}$", max_length=100), AfterValidator(_checked)
]
"""Five fields: minute, hour, day of the month, month, day of the week."""


class Automation(Section):
    """When the loop starts by itself. Schedules and sensors are stopped until somebody starts them in Dagster."""

    timezone: str = "UTC"
    """Of the crons below, by its IANA name, such as `Europe/Berlin`."""
    iteration_cron: Cron = "0 3 * * *"
    """Schedule `nightly`: a whole iteration."""
    labelling_cron: Cron = "0 * * * *"
    """Schedule `hourly_labels`: traces and reward labels alone, which the sensor `new_labels` counts."""
    upkeep_cron: ClassVar[str] = "0 5 * * 0"
    """Schedule `weekly`: retention and the table's upkeep."""
    review_cron: ClassVar[str] = "0 6 * * 1"
    """Schedule `weekly_review`: a sheet of labels for people."""
    min_new_labels: PositiveInt = 1000
    """Sensor `new_labels`: distinct consented labels that no ended iteration had, before it asks for an iteration."""
    min_drift_labels: ClassVar[int] = 100
    """Sensor `feedback_drift`: answers that users rated, or that the judge scored, of the iteration before and since,
    before it tests whether the champion's became worse by more than `rollout.max_quality_drop`."""
    quiet_s: NonNegativeFloat = 3600.0
    """The sensors `new_labels`, `feedback_drift` and `champion_changed` ask for no iteration within so long of the
    start of another: what triggers twice in an hour makes one iteration."""
    patience: ClassVar[int] = 3
    """Iterations in a row that end without a candidate before `new_labels` and `feedback_drift` back off: the labels
    that they wait for double with this one and with each after it."""
    champion_max_age_days: PositiveFloat | None = 30.0
    """Dagster marks the asset `champion` as overdue when no other model was promoted for so long; null: never."""

    @field_validator("timezone")
    @classmethod
    def _is_a_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, OSError, ValueError) as error:  # not there, a folder, or no path below the zones
            raise ValueError(f"{name!r} is no time zone. Write its IANA name, such as UTC or Europe/Berlin.") from error
        return name
