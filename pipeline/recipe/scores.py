"""The recipe's section on scores: which of them are people's word on an answer, and which way they go."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from pipeline.recipe.section import Section


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
