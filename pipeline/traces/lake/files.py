"""Parquet files of the governed table: written into the warehouse and read from it in bounded memory, one partition a
file. Workers use it without the catalogue; a file counts once `Lake.replace_day` has committed it."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.traces.lake_config import LakeConfig
from pipeline.traces.rows import SCHEMA

ROW_GROUP_BYTES = 32 << 20
"""Arrow bytes of one row group, about; so much a writer or a reader holds of a file, times a small readahead."""
BATCH_ROWS = 4096


def write_file(config: LakeConfig, day: str, name: str, batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Write rows of one day, model and consent (schema `rows.SCHEMA`); the URI to commit, none where there is no row.
    Every call writes a file of its own. Raises OSError when it cannot be written."""
    import pyarrow.parquet as pq

    tables = _row_groups(batches)
    if (first := next(tables, None)) is None:
        return []
    folder, fs = f"{config.location}/data/{day}", filesystem(config)
    if config.warehouse.startswith("file://"):
        fs.create_dir(path_of(folder), recursive=True)
    uri = f"{folder}/{name}-{uuid.uuid4().hex}.parquet"
    with (
        fs.open_output_stream(path_of(uri)) as stream,
        pq.ParquetWriter(stream, numbered_schema(), compression="zstd", compression_level=1) as writer,
    ):
        for table in chain([first], tables):
            writer.write_table(table.cast(numbered_schema()))
    return [uri]


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def read_files(
    config: LakeConfig, uris: Sequence[str], columns: Sequence[str] | None = None, where: pc.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of `uris` in their order, in batches of at most 4,096; columns as in SCHEMA."""
    import pyarrow.dataset as ds

    names = list(columns) if columns is not None else SCHEMA.names
    schema = pa.schema([SCHEMA.field(name) for name in names])
    if uris:
        # A fragment keeps the bytes it fetched ahead until it ends; so much only pays where a request is slow.
        ahead = ds.ParquetFragmentScanOptions(pre_buffer=config.warehouse.startswith("s3://"))
        scanner = _dataset(config, uris).scanner(
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
    from pipeline.traces.lake.file_io import BucketIO

    scheme, bucket, _ = BucketIO.parse_location(config.warehouse)
    return BucketIO(config.options).fs_by_scheme(scheme, bucket)


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
