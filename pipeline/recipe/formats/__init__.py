"""Known formats of other people's data, one YAML file each: by which keys a row shows that it is one, and where such a
row has what. A format of kind `rows`, `pairs` or `demonstrations` is a preset of the source of that kind."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from pipeline.recipe.section import Section

RowPath = Annotated[str, Field(pattern=r"^[^.\[]")]
Paths = RowPath | tuple[RowPath, ...]
"""One path, or several of which the first that leads to something counts."""
RowField = Literal[
    "prompt",  # the request: a text, messages, or a whole request body
    "system",  # a system message that is logged beside the prompt
    "completion",  # the answer: a text, a message, or a whole response body
    "tools",  # definitions of the tools that were offered, where the prompt does not hold them
    "id",  # of the row: what the log calls the request
    "trace",  # what several calls have in common; without it, the row's id
    "session",
    "user",
    "model",
    "time",
    "ended",
    "latency_s",
    "latency_ms",
    "name",  # of the call, as the application gave it
    "status",  # a word of success, or an HTTP status below 400; any other is an error
    "error",  # anything but nothing is an error
    "finish_reason",
    "input_tokens",
    "output_tokens",
    "version",
    "scores",  # {name: value}, a list of {name, value}, or one value, whose name is the path's last key
    "metadata",  # objects are merged, and values kept under the path's last key
    "key",  # of a row and of its request in `requests`
]
ImportField = Literal[
    "prompt", "input", "system", "tools", "chosen", "rejected", "answers", "answer", "rating", "preferred", "votes",
    "status", "error", "user", "reference", "metadata",
]  # fmt: skip
"""docs/imports.md says what each is."""
Kind = Literal["rows", "pairs", "demonstrations", "prompts", "langfuse_export", "otel", "none"]


class Format(Section):
    """A format as its file describes it."""

    title: str
    """Who writes it, and what it is called there."""
    kind: Kind
    """The kind of source that reads it; `none`: no source does."""
    keys: tuple[str, ...] = ()
    """Paths that every row of it has."""
    lacks: tuple[str, ...] = ()
    """Paths that no row of it has: what tells it from a format with more. `*`: any other than `keys`."""
    line: str | None = None
    """A regular expression at the beginning of its lines, where they are no JSON."""
    fields: dict[str, Paths] = Field(default={})
    """Where a row has what, by the names of the kind."""
    only: dict[RowPath, str] = Field(default={})
    """Of what a file holds besides: rows are those where each path has a text in which its expression is found."""
    begins: dict[str, str] = Field(default={})
    """Path to how the text there begins, in every row."""
    scale: tuple[float, float] | None = None
    """Worst and best `rating`."""
    sides: dict[str, int] = Field(default={})
    """Word of `preferred` to the place of the answer that it names."""
    speakers: dict[str, Literal["user", "assistant"]] = Field(default={})
    """Of a text that is a conversation: what comes before a turn, and whose turn it is."""
    note: str = ""
    """For people: what it does not hold, or what to do instead."""


@cache
def formats() -> dict[str, Format]:
    """All formats by name, in the order of their names."""
    files = sorted(Path(__file__).parent.glob("*.yaml"))
    return {file.stem: Format.model_validate(yaml.safe_load(file.read_text(encoding="utf-8"))) for file in files}


def mapping_of(preset: str | None, kind: Kind, fields: Mapping[Any, Paths]) -> dict[str, tuple[str, ...]]:
    """The paths by field: those of the preset, with `fields` in their place. Raises ValueError for another preset."""
    presets = {name: each for name, each in formats().items() if each.kind == kind}
    if preset is not None and preset not in presets:
        raise ValueError(f"there is no preset {preset} of kind {kind}. Known: {', '.join(presets)}.")
    given = {**(presets[preset].fields if preset else {}), **fields}
    return {name: (paths,) if isinstance(paths, str) else tuple(paths) for name, paths in given.items()}
