"""The writes of an upkeep of a governed table, for kills at each of them."""

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile

from pipeline.traces.lake import Lake
from pipeline.traces.lake import files as lake_files

WRITES = (
    (PyArrowFile, "create"),
    (SqlCatalog, "commit_table"),
    (lake_files, "write_file"),
    (Lake, "expire"),
    (Lake, "sweep"),
)
"""What PyArrow and SQLite do by themselves."""
