"""What the table's metadata calls its files, and where these lie.

Iceberg's metadata names every file in full, so a moved table is lost and a copied one reads its original. The table of
a SQLite catalogue whose warehouse is in the catalogue's own folder names its files `lake:///governed/traces/...`, which
says nothing of the folder, and `folder_io` opens them where the folder is now. One made by an older version has the
folder's former path in its names; of these too only what follows the table counts.
"""

from __future__ import annotations

TABLE = "/governed/traces"
"""Where a table lies in its warehouse."""
LOCATION = f"lake://{TABLE}"
"""What a table that moves with its folder calls the place where it lies."""
FOLDER = "lake.folder"
"""Property of the catalogue: URI of the folder where the table lies now."""


def located(name: str, folder: str) -> str:
    """URI of the file that the metadata calls `name`, of a table in `folder` (a URI)."""
    _, table, rest = name.rpartition(f"{TABLE}/")
    if not table:
        raise ValueError(f"The governed table names {name!r}, which is none of its files. Restore lake/ from a backup.")
    return f"{folder}/{rest}"


def named(uri: str, folder: str, location: str) -> str:
    """The reverse: what a table at `location`, as it says itself, calls a file in `folder`."""
    assert uri.startswith(f"{folder}/"), f"{uri} is not in {folder}"
    return f"{location.rstrip('/')}{uri.removeprefix(folder)}"
