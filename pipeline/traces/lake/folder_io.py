"""PyIceberg's file access for a table that moves with its folder; named in the catalogue's options, never imported."""

from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO

from pipeline.traces.lake_config import FOLDER, located


class FolderIO(PyArrowFileIO):
    """Opens and deletes what the metadata names in the folder where the table lies now, and nowhere else."""

    @staticmethod
    def parse_location(location: str, properties: Any = None) -> tuple[str, str, str]:
        """Every access of PyArrowFileIO goes through here, and the file keeps the name that it was asked for by."""
        assert properties, "PyIceberg passes its own properties"
        return PyArrowFileIO.parse_location(located(location, properties[FOLDER]))
