"""What a source keeps of a forgotten user that is not this deployment's to delete.

Owns the sentence for a person. Refuses to delete at a source: its owner does.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.storage import Store, shown_path
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, External


def left_outside(store: Store, address: Address) -> str:
    """Where the user's raw data stays, and what to ask for; "" where the source lies under the data root, whose files
    are written anew. Raises ValueError for a source that cannot be opened."""
    if not address.uri and address.section.kind != "plugin":
        raise ValueError("The address of traces.source is not known. Set the variables of its kind (docs/traces.md).")
    source = open_source(address)
    if isinstance(source, External):
        return f"{source.label}: {source.remains()}"
    if "://" not in address.uri and Path(address.uri).resolve().is_relative_to(store.root.resolve()):
        return ""
    if address.section.kind == "prompts":
        return ""
    return f"{shown_path(source.label)}: delete the user's lines from its files, and from backups of them"
