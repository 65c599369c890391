"""Where a record's references point: absolute in memory, on disk relative to the record's own file
(`relative:../training/model`), so that a data root can be moved. Only fields of the type `Uri`, below the root."""

from os.path import relpath
from pathlib import Path, PurePath
from typing import Annotated, NamedTuple
from urllib.parse import quote, unquote

from pydantic import AfterValidator, PlainSerializer, ValidationInfo

from pipeline.core import layout

MARK = "relative:"
FILE = "file://"


class Document(NamedTuple):
    """The file that a record is written to or read from: pydantic's `context` of both. Paths are absolute."""

    path: Path
    root: Path | None = None
    """What lies at or below it is written relative; only writing needs it."""


def record_of_iteration(path: Path) -> Document:
    """A file below `<data root>/iterations/`, for callers without a store; elsewhere the file's folder is the root."""
    path = path.absolute()
    above = (folder.parent for folder in path.parents if folder.name == layout.ITERATIONS)
    return Document(path, next(above, path.parent))


def stored(uri: str, document: Document) -> str:
    """`uri` as `document` has it: relative if it is an absolute path or file:// URI at or below the root."""
    scheme = FILE if uri.startswith(FILE) else ""
    path = PurePath(uri.removeprefix(scheme))
    root = document.root
    if root is None or not path.is_relative_to(root):
        return uri
    # Both relative to the root, whose own path may hold `..` and links.
    way = relpath(path.relative_to(root), document.path.parent.relative_to(root))
    return f"{MARK}{scheme}{way}"


def resolved(text: str, document: Document) -> str:
    """The inverse of `stored`, for where the file lies now."""
    if not text.startswith(MARK):
        return text
    way = text.removeprefix(MARK)
    scheme = FILE if way.startswith(FILE) else ""
    folder = document.path.parent
    for part in PurePath(way.removeprefix(scheme)).parts:
        folder = folder.parent if part == ".." else folder / part
    return f"{scheme}{folder}"


def _read(text: str, info: ValidationInfo) -> str:
    if isinstance(info.context, Document):
        return resolved(text, info.context)
    if text.startswith(MARK):
        raise ValueError(f"{text!r} is relative to the file that it was read from; read that with its `Document`.")
    return text


Uri = Annotated[
    str,
    AfterValidator(_read),
    PlainSerializer(
        lambda uri, info: stored(uri, info.context) if isinstance(info.context, Document) else uri, return_type=str
    ),
]
"""An absolute path or a URI, in a record that may be stored in the same tree."""


def sqlite_url(file: Path) -> str:
    """SQLAlchemy's address of a database's file, in which a % or ? of the path is quoted."""
    return f"sqlite:///{quote(str(file), safe=' +/')}"


def sqlite_file(url: str) -> Path | None:
    """The inverse of `sqlite_url`; None for another database."""
    return Path(unquote(url.partition("///")[2].partition("?")[0])) if url.startswith("sqlite:") else None
