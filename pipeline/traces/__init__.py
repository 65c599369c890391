"""Traces: production records read from a source, governed gate by gate, and kept in one Iceberg table."""
