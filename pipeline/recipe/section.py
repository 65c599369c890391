"""What every section of the recipe is made of, and the marks on fields and sections that say what they do not decide:
the recipe's digest and the plan's leave marked fields out (`fields`)."""

from enum import Enum
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Line = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$")]
"""A text for people, on one line: nothing in it moves a cursor, begins a line or turns the direction of reading."""


class Mark(Enum):
    OPERATIONAL = "may differ between the launches of one iteration: it decides nothing of the result"
    OBSERVER = "looks at a training and may end it: it changes no weight on the way"


Operational = Mark.OPERATIONAL
Observer = Mark.OBSERVER


class Section(BaseModel):
    """A part of the recipe: frozen, a wrong key is an error, and a docstring under each field is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


S = TypeVar("S", bound=Section)
EACH = "__all__"
"""pydantic's name for the elements of a list."""


def fields(section: type[Section], *marks: Mark) -> dict[str, Any]:
    """The fields with one of these marks, as pydantic's `exclude` takes them: True, or those of a section below (under
    EACH those of every section of a list)."""
    marked: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if any(mark in field.metadata for mark in marks):
            marked[name] = True
        # A field name means the same in all members of a union.
        elif below := {key: each for s in sections(field.annotation) for key, each in fields(s, *marks).items()}:
            marked[name] = {EACH: below} if get_origin(field.annotation) is tuple else below
    return marked


def settings(section: Section, *without: Mark) -> dict[str, Any]:
    """The section as JSON has it, without the fields that have one of these marks."""
    return section.model_dump(mode="json", exclude=fields(type(section), *without))


def joined(begun_with: S, now: S) -> S:
    """What decides the result from the first, the operational fields from the second."""
    changes: dict[str, Any] = {}
    for name, field in type(now).model_fields.items():
        before, after = getattr(begun_with, name), getattr(now, name)
        if Operational in field.metadata:
            changes[name] = after
        elif isinstance(before, tuple) and len(before) == len(after):
            changes[name] = tuple(map(_joined_sections, before, after))
        else:
            changes[name] = _joined_sections(before, after)
    return begun_with.model_copy(update=changes)


def _joined_sections(before: Any, after: Any) -> Any:
    return joined(before, after) if isinstance(before, Section) and type(before) is type(after) else before


def sections(annotation: Any) -> list[type[Section]]:
    """The sections that a field may hold: itself, the members of a union, or those of a list's elements."""
    if get_origin(annotation) is Annotated:
        return sections(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType, tuple):
        return [section for each in get_args(annotation) for section in sections(each)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Section) else []
