"""Where a record's references point: absolute in memory, relative to the record's own file on disk.

So a data root can be moved and copied: what lies in it names the rest of it by the way there, as the pages of a web
site do. Owns the form on disk (`relative:../training/model`). Refuses to touch any text but fields of the type `Uri`,
and what lies outside the data root: that stays absolute.
"""

from __future__ import annotations

from os.path import relpath
from pathlib import Path, PurePath
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, PlainSerializer, SerializationInfo, ValidationInfo

from pipeline.core import layout

MARK = "relative:"
FILE = "file://"
RECORDS = layout.ITERATIONS
"""The folder under the data root by which a record's path alone tells where the root lies."""


class Document(NamedTuple):
    """The file that a record is written to or read from: pydantic's `context` of both. Paths are absolute.

    Without it a record is dumped as it is in memory, and one that was written with it is refused.
    """

    path: Path
    root: Path | None = None
    """What lies at or below it is written relative; only writing needs it."""


def record_of_iteration(path: Path) -> Document:
    """A file below `<data root>/iterations/`, for who has no store; elsewhere its own folder moves as one."""
    path = path.absolute()
    above = (folder.parent for folder in path.parents if folder.name == RECORDS)
    return Document(path, next(above, path.parent))


def stored(uri: str, document: Document) -> str:
    """`uri` as `document` holds it: relative if it is an absolute path or file:// URI at or below the root."""
    scheme = FILE if uri.startswith(FILE) else ""
    path = PurePath(uri.removeprefix(scheme))
    root = document.root
    if root is None or not path.is_relative_to(root):
        return uri
    # Both from the root on: the root's own path may hold `..` and links, which are nobody's business here.
    way = relpath(path.relative_to(root), document.path.parent.relative_to(root))
    return f"{MARK}{scheme}{way}"


def resolved(text: str, document: Document) -> str:
    """What `stored` was given, or what it would have been given where the file lies now."""
    if not text.startswith(MARK):
        return text
    way = text.removeprefix(MARK)
    scheme = FILE if way.startswith(FILE) else ""
    folder = document.path.parent
    for part in PurePath(way.removeprefix(scheme)).parts:
        folder = folder.parent if part == ".." else folder / part
    return f"{scheme}{folder}"


def _write(uri: str, info: SerializationInfo) -> str:
    return stored(uri, info.context) if isinstance(info.context, Document) else uri


def _read(text: str, info: ValidationInfo) -> str:
    if isinstance(info.context, Document):
        return resolved(text, info.context)
    if text.startswith(MARK):
        raise ValueError(f"{text!r} is relative to the file that it was read from; read that with its `Document`.")
    return text


Uri = Annotated[str, AfterValidator(_read), PlainSerializer(_write, return_type=str)]
"""An absolute path or a URI, of a record that may lie beside what it names."""
