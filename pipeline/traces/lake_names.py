"""Names of files in the table's metadata. Where catalogue and warehouse are one folder, the names (`lake:///...`) omit
the folder and `folder_io` opens them where it lies now, so that it can be moved and copied."""

from __future__ import annotations

TABLE = "/governed/traces"
"""Path of the table in its warehouse."""
LOCATION = f"lake://{TABLE}"
"""Location of a table that moves with its folder."""
FOLDER = "lake.folder"
"""Property of the catalogue: URI of the folder where the table lies now."""


def located(name: str, folder: str) -> str:
    """URI of the file that the metadata calls `name`, of a table in `folder` (a URI)."""
    if not name.startswith(f"{LOCATION}/"):
        raise ValueError(f"The governed table names {name!r}, which is none of its files. Restore lake/ from a backup.")
    return f"{folder}{name.removeprefix(LOCATION)}"


def named(uri: str, folder: str) -> str:
    """The metadata's name of a file in `folder`."""
    assert uri.startswith(f"{folder}/"), f"{uri} is not in {folder}"
    return f"{LOCATION}{uri.removeprefix(folder)}"
