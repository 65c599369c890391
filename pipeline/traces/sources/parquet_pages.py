"""Limits of what erasure reads of Parquet and Arrow files."""

MAX_PAGE = 128 << 20
MAX_ROWS = 65_536
