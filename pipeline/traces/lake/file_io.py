"""PyIceberg's file access, by what the table lies in: a folder that may move, or a bucket. Named in the catalogue's
options, never imported."""

import os
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO

from pipeline.core.objects import CHECKSUMS, is_aws
from pipeline.traces.lake_config import FOLDER, located


class FolderIO(PyArrowFileIO):
    """Opens and deletes what the metadata names in the folder where the table lies now, and nowhere else."""

    @staticmethod
    def parse_location(location: str, properties: Any = None) -> tuple[str, str, str]:
        """Every access of PyArrowFileIO goes through here, and the file keeps the name that it was asked for by."""
        assert properties, "PyIceberg passes its own properties"
        return PyArrowFileIO.parse_location(located(location, properties[FOLDER]))


class BucketIO(PyArrowFileIO):
    """Opens a bucket with the region, the authorities and the checksums that every other client of S3 has here: Arrow's
    own knows neither the profile's region nor AWS_CA_BUNDLE."""

    def _initialize_s3_fs(self, netloc: str | None) -> Any:
        from botocore.session import get_session

        session = get_session()
        if not is_aws(self.properties.get("s3.endpoint", "")):
            for name in CHECKSUMS:  # Arrow has no option for them, and reads these variables
                os.environ.setdefault(f"AWS_{name.upper()}", session.get_scoped_config().get(name, "when_required"))
        self.properties.setdefault("s3.region", session.get_config_variable("region") or "us-east-1")
        rebuild, (options,) = super()._initialize_s3_fs(netloc).__reduce__()
        return rebuild({**options, "tls_ca_file_path": session.get_config_variable("ca_bundle") or ""})
