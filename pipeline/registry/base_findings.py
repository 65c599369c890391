"""What the base check found in a model, on record below the data root: its model card shows it."""

from typing import Literal, NamedTuple

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Record, Store

Level = Literal["ok", "warning", "error"]


class BaseFinding(NamedTuple):
    """The answer to one question; of an error and a warning with what to do."""

    level: Level
    question: str
    text: str


class BaseCheck(Record):
    """The findings in a model of that digest, for these adapters by this version of transformers."""

    asked: str
    findings: tuple[BaseFinding, ...]


def check_place(model: ModelRef) -> str:
    return f"{layout.BASE_MODELS}/{model.digest[:16]}.check.json"


def last_check(store: Store, model: ModelRef) -> tuple[BaseFinding, ...]:
    """The findings in a model; nothing where it was not asked."""
    known = store.read(check_place(model), BaseCheck)
    return known.findings if known else ()
