"""How to reach the governed table, and its files' names. Outside `lake`, which imports the table's schema: a trainer,
which imports the stages' context, must not import what reads rows."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import ConfigDict, Field

from pipeline.core.locations import sqlite_file
from pipeline.core.storage import Record

TABLE = "/governed/traces"
"""Path of the table in its warehouse."""
LOCATION = f"lake://{TABLE}"
"""Location of a table whose catalogue and warehouse are one folder: `file_io` opens its files where the folder lies
now, so that it can be moved and copied."""
FOLDER = "lake.folder"
"""Property of the catalogue: URI of the folder where the table lies now."""
FOLDER_IO = "pipeline.traces.lake.file_io.FolderIO"
BUCKET_IO = "pipeline.traces.lake.file_io.BucketIO"


class LakeConfig(Record):
    """How to reach the governed table; plain data that goes to workers. Its repr shows neither keys nor passwords."""

    model_config = ConfigDict(hide_input_in_errors=True)

    catalogue: Literal["sqlite", "postgres", "rest", "glue"]
    uri: str = Field(default="", repr=False)
    """SQLAlchemy URL or the REST endpoint; Glue needs none, and neither does a stage that reads no table."""
    warehouse: str
    """`file:///directory` or `s3://bucket/prefix`."""
    properties: dict[str, str] = Field(default={}, repr=False)
    """PyIceberg's: `s3.endpoint`, `s3.region`, `s3.access-key-id`, `glue.region`, `credential` and the like."""

    def check_address(self) -> None:
        """Raises ValueError where the catalogue's address is not known, or the warehouse's cannot be used."""
        if not self.warehouse.startswith(("file:///", "s3://")):
            raise ValueError(f"the warehouse is {self.warehouse!r}; give file:///directory or s3://bucket/prefix.")
        if set("#?") & set(self.warehouse):  # PyIceberg takes what follows for a part of a URL and drops it
            raise ValueError(f"the warehouse {self.warehouse!r} has a # or ? in it; choose a path without.")
        if self.catalogue != "glue" and not self.uri:
            raise ValueError(f"The lake's catalogue is {self.catalogue}: set LAKE_CATALOGUE_URI to its address.")

    @property
    def location(self) -> str:
        """Where the table lies, its data under `data/`, its metadata under `metadata/`."""
        return f"{self.warehouse.rstrip('/')}{TABLE}"

    @property
    def movable(self) -> bool:
        """Whether catalogue and warehouse are one folder."""
        catalogue, folder = sqlite_file(self.uri), PurePath(self.warehouse.removeprefix("file://"))
        return catalogue is not None and folder.is_relative_to(catalogue.parent)

    @property
    def options(self) -> dict[str, str]:
        """The properties of the catalogue and of every reader and writer of files."""
        return {
            **_proxy(self.properties),
            "py-io-impl": BUCKET_IO,
            **({"py-io-impl": FOLDER_IO, FOLDER: self.location} if self.movable else {}),
            **self.properties,
        }


def _proxy(properties: Mapping[str, str]) -> dict[str, str]:
    """PyArrow alone reads no HTTPS_PROXY."""
    address = urlsplit(properties.get("s3.endpoint") or "https://s3.amazonaws.com")
    proxy = "" if proxy_bypass(address.netloc) else getproxies().get(address.scheme, "")
    return {"s3.proxy-uri": proxy} if proxy else {}


def located(name: str, folder: str) -> str:
    """URI of the file that the metadata calls `name`, of a table in `folder` (a URI)."""
    if not name.startswith(f"{LOCATION}/"):
        raise ValueError(f"The governed table names {name!r}, which is none of its files. Restore lake/ from a backup.")
    return f"{folder}{name.removeprefix(LOCATION)}"


def named(uri: str, folder: str) -> str:
    """The metadata's name of a file in `folder`."""
    assert uri.startswith(f"{folder}/"), f"{uri} is not in {folder}"
    return f"{LOCATION}{uri.removeprefix(folder)}"
