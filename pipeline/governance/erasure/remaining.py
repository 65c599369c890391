"""Where the operator's own source still names a forgotten person as owner. Nothing of it is edited, and a source
outside this deployment is not read: its owner is asked."""

import hashlib
from collections.abc import Iterator
from datetime import UTC
from typing import NamedTuple

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.governance.erasure.records import Person
from pipeline.traces.rows import Rows
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, External, Source, SourcePart
from pipeline.traces.watermark import Watermark


class Remaining(NamedTuple):
    """`remains`: parts of the source that still name the person, or that cannot be read; `outside`: what to ask of the
    owner of a source that is not this deployment's."""

    remains: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


def in_source(store: Store, person: Person, address: Address | None) -> Remaining:
    """The embedded export is ours, and prompts have no owner. A source that cannot be opened is named by what was read
    of it last."""
    if address is None or address.section.kind in ("demo", "prompts"):
        return Remaining()
    try:
        if not address.uri and address.section.kind != "custom":
            raise ValueError("its address is not known")
        source = open_source(address)
    except ValueError:
        label = (store.read(layout.WATERMARK, Watermark) or Watermark()).source or f"the source {address.section.kind}"
        return Remaining(outside=(f"{label}: ask its owner to delete what it has of the user",))
    if isinstance(source, External):
        return Remaining(outside=(f"{source.label}: {source.remains()}",))
    try:
        lines = [f"{source.label}/{line}" for part in source.parts() for line in _of_part(source, part, person)]
    except (ValueError, OSError) as error:
        lines = [f"{source.label} cannot be read, so whom it names is unknown: {error}"]
    return Remaining(remains=tuple(lines))


def _of_part(source: Source, part: SourcePart, person: Person) -> Iterator[str]:
    try:
        rows = sum(_owned(block, person) for block in source.rows(part, hashlib.sha256()))
    except (ValueError, OSError) as error:
        yield f"{part.name}: not read ({error})"
        return
    if rows:
        yield f"{part.name}: {rows} rows"


def _owned(block: Rows, person: Person) -> int:
    moments = [each.timestamp if each.timestamp.tzinfo else each.timestamp.replace(tzinfo=UTC) for each in block.traces]
    traces = sum(person.owns(each.user_id, at) for each, at in zip(block.traces, moments, strict=True))
    return traces + sum(person.owns(each.user_id) for each in block.attributes)
