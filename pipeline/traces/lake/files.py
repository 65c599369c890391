"""Parquet files of the governed table: written into the warehouse and read from it in bounded memory, one partition a
file. Workers use it without the catalogue; a file counts once `Lake.replace_day` has committed it."""

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.traces.lake_config import LakeConfig
from pipeline.traces.rows import SCHEMA

ROW_GROUP_BYTES = 32 << 20
"""Arrow bytes of one row group at most; so much a reader holds of a file, times a small readahead."""
BUFFER_BYTES = 96 << 20
"""Arrow bytes that wait for their row group, all partitions together."""
OPEN_FILES = 8
"""On S3 every open file holds an upload part of some 10 MB."""
FILE_BYTES = 128 << 20
BATCH_ROWS = 4096

Partition = tuple[str, bool]
"""Model and consent; the day is the file's folder."""


def write_files(config: LakeConfig, day: str, name: str, batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Write rows of one day (schema `rows.SCHEMA`); the URIs to commit. Every call writes files of its own.

    Raises OSError when a file cannot be written; what was written is then deleted as far as possible, and else swept.
    """
    files = _DataFiles(config, day, name)
    try:
        for batch in batches:
            assert batch.schema.equals(SCHEMA), f"not the governed table's columns: {batch.schema}"
            for partition, rows in _partitions(batch):
                files.add(partition, rows)
        files.finish()
    except BaseException:
        files.abandon()
        raise
    return files.uris


def read_files(
    config: LakeConfig, uris: Sequence[str], columns: Sequence[str] | None = None, where: pc.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of `uris` in their order, in batches of at most 4,096; columns as in SCHEMA."""
    import pyarrow.dataset as ds

    names = list(columns) if columns is not None else SCHEMA.names
    schema = pa.schema([SCHEMA.field(name) for name in names])
    if uris:
        dataset = _dataset(config, uris)
        # A fragment keeps the bytes it fetched ahead until it ends; so much only pays where a request is slow.
        ahead = ds.ParquetFragmentScanOptions(pre_buffer=config.warehouse.startswith("s3://"))
        scanner = dataset.scanner(
            columns=names,
            filter=where,
            batch_size=BATCH_ROWS,
            batch_readahead=4,
            fragment_readahead=1,
            fragment_scan_options=ahead,
        )
        yield from (batch.cast(schema) for batch in scanner.to_batches() if batch.num_rows)


def row_groups(config: LakeConfig, uri: str) -> int:
    """How many row groups a data file has: the units in which its rows can be worked on apart."""
    import pyarrow.parquet as pq

    return pq.read_metadata(path_of(uri), filesystem=filesystem(config)).num_row_groups


def read_row_group(
    config: LakeConfig, uri: str, number: int, columns: Sequence[str], where: pc.Expression | None = None
) -> pa.Table:
    """The rows of one row group for which `where` holds, columns as in SCHEMA."""
    (fragment,) = _dataset(config, [uri]).get_fragments()
    rows = fragment.subset(row_group_ids=[number]).to_table(schema=SCHEMA, columns=list(columns), filter=where)
    return rows.cast(pa.schema([SCHEMA.field(name) for name in columns]))


def count_rows(config: LakeConfig, uris: Sequence[str], where: pc.Expression) -> dict[str, int]:
    """URI to its number of rows for which `where` holds; files that have none are left out."""
    from concurrent.futures import ThreadPoolExecutor

    def count(uri: str) -> int:
        return _dataset(config, [uri]).count_rows(filter=where, use_threads=False)

    with ThreadPoolExecutor(4) as pool:
        return {uri: rows for uri, rows in zip(uris, pool.map(count, uris), strict=True) if rows}


def filesystem(config: LakeConfig) -> Any:
    """PyArrow's file system of the warehouse, with PyIceberg's settings."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, bucket, _ = PyArrowFileIO.parse_location(config.warehouse)
    return PyArrowFileIO(config.options).fs_by_scheme(scheme, bucket)


def path_of(uri: str) -> str:
    """A URI of the warehouse as its file system takes it: `/directory/file` or `bucket/key`."""
    return uri.partition("://")[2]


def _dataset(config: LakeConfig, uris: Sequence[str]) -> Any:
    import pyarrow.dataset as ds

    paths = [path_of(uri) for uri in uris]
    return ds.dataset(paths, schema=SCHEMA, format="parquet", filesystem=filesystem(config))


@cache
def numbered_schema() -> pa.Schema:
    """SCHEMA with the field ids that Iceberg gives the columns of a new table: workers write them without asking it."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow  # pyright: ignore[reportPrivateUsage]
    from pyiceberg.schema import assign_fresh_schema_ids

    return schema_to_pyarrow(assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(SCHEMA)))


def _partitions(batch: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """The rows of each model and consent in their order, as copies: a slice would keep the whole batch alive."""
    if not batch.num_rows:
        return
    model = batch["model"].dictionary_encode()
    codes = model.indices.to_numpy(zero_copy_only=False) * 2 + batch["consent"].to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    parted = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    for rows in parted:
        partition = batch["model"][int(rows[0])].as_py(), batch["consent"][int(rows[0])].as_py()
        yield partition, batch if len(parted) == 1 else batch.take(pa.array(rows))


class _DataFile:
    def __init__(self, fs: Any, uri: str) -> None:
        import pyarrow.parquet as pq

        self.uri = uri
        self.stream = fs.open_output_stream(path_of(uri))
        self.writer = pq.ParquetWriter(self.stream, numbered_schema(), compression="zstd", compression_level=1)

    def append(self, rows: pa.Table) -> None:
        size = max(1, rows.num_rows * ROW_GROUP_BYTES // max(1, rows.nbytes))
        self.writer.write_table(rows.cast(numbered_schema()), row_group_size=size)

    def finish(self) -> None:
        self.writer.close()
        self.stream.close()


class _DataFiles:
    """Rows wait per partition until they fill a row group, or the buffer is full and theirs are most."""

    def __init__(self, config: LakeConfig, day: str, name: str) -> None:
        label = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60].strip(".-") or "rows"
        self._prefix = f"{config.location}/data/{day}/{label}-{uuid.uuid4().hex}"
        self._fs = filesystem(config)
        folder = path_of(f"{config.location}/data/{day}")
        if config.warehouse.startswith("file://"):
            self._fs.create_dir(folder, recursive=True)
        self._waiting: dict[Partition, list[pa.RecordBatch]] = {}
        self._bytes: dict[Partition, int] = {}
        self._all_bytes = 0
        self._open: dict[Partition, _DataFile] = {}  # the least recently used first
        self.uris: list[str] = []

    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        self._waiting.setdefault(partition, []).append(rows)
        size = rows.nbytes
        self._bytes[partition] = self._bytes.get(partition, 0) + size
        self._all_bytes += size
        if self._bytes[partition] >= ROW_GROUP_BYTES:
            self._flush(partition)
        while self._all_bytes > BUFFER_BYTES:
            self._flush(max(self._bytes, key=self._bytes.__getitem__))

    def _flush(self, partition: Partition) -> None:
        rows = pa.Table.from_batches(self._waiting.pop(partition))
        self._all_bytes -= self._bytes.pop(partition)
        file = self._open.pop(partition, None)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open))).finish()
            uri = f"{self._prefix}-{len(self.uris)}.parquet"
            self.uris.append(uri)
            file = _DataFile(self._fs, uri)
        self._open[partition] = file
        file.append(rows)
        if file.stream.tell() >= FILE_BYTES:
            self._open.pop(partition).finish()

    def finish(self) -> None:
        for partition in list(self._waiting):
            self._flush(partition)
        while self._open:
            self._open.popitem()[1].finish()

    def abandon(self) -> None:
        for file in self._open.values():
            with suppress(OSError, pa.ArrowException):
                file.finish()
        for uri in self.uris:
            with suppress(OSError):
                self._fs.delete_file(path_of(uri))
