"""How to reach the governed table.

Outside `lake`, which brings the table's schema along: a stage's context holds this, and a trainer, which imports the
stages, must not import what reads rows.
"""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from pipeline.storage import Record
from pipeline.traces import lake_names as names

FOLDER_IO = "pipeline.traces.lake.folder_io.FolderIO"
URIS = {
    "sqlite": ("sqlite:///",),
    "postgres": ("postgresql://", "postgres://", "postgresql+psycopg://"),
    "rest": ("http://", "https://"),
}


class LakeConfig(Record):
    """How to reach the governed table; plain data that goes to workers. Its repr shows neither keys nor passwords."""

    model_config = ConfigDict(hide_input_in_errors=True)

    catalogue: Literal["sqlite", "postgres", "rest", "glue"]
    uri: str = Field(default="", repr=False)
    """SQLAlchemy URL or the REST endpoint; Glue needs none."""
    warehouse: str
    """`file:///directory` or `s3://bucket/prefix`."""
    properties: dict[str, str] = Field(default={}, repr=False)
    """PyIceberg's: `s3.endpoint`, `s3.region`, `s3.access-key-id`, `glue.region`, `credential` and the like."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if not self.warehouse.startswith(("file:///", "s3://")):
            raise ValueError(f"the warehouse is {self.warehouse!r}; give file:///directory or s3://bucket/prefix.")
        if set("#?") & set(self.warehouse):  # PyIceberg takes what follows for a part of a URL and drops it
            raise ValueError(f"the warehouse {self.warehouse!r} has a # or ? in it; choose a path without.")
        wanted = URIS.get(self.catalogue)
        if wanted and not self.uri.startswith(wanted):
            raise ValueError(f"the uri of a {self.catalogue} catalogue starts with {' or '.join(wanted)}; set it so.")
        return self

    @property
    def location(self) -> str:
        """Where the table lies, its data under `data/`, its metadata under `metadata/`."""
        return f"{self.warehouse.rstrip('/')}{names.TABLE}"

    @property
    def movable(self) -> bool:
        """Whether catalogue and warehouse are one folder, so that whoever moves or copies it has all of the table."""
        if self.catalogue != "sqlite" or not self.warehouse.startswith("file://"):
            return False
        catalogue = PurePath(self.uri.removeprefix("sqlite:///"))
        return PurePath(self.warehouse.removeprefix("file://")).is_relative_to(catalogue.parent)

    @property
    def options(self) -> dict[str, str]:
        """The properties of the catalogue and of every reader and writer of files."""
        # PyArrow takes the keys from the environment but not the endpoint; without a region it asks AWS for one.
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        return {
            **({"s3.endpoint": endpoint} if endpoint else {}),
            "s3.region": region,
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            **({"py-io-impl": FOLDER_IO, names.FOLDER: self.location} if self.movable else {}),
            **self.properties,
        }
