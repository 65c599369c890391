"""What `reused` changes ends with its block, also when the block raises."""

import pyarrow as pa
import pytest

from pipeline.traces.memory import reused


def test_arrows_pool_is_back_after_the_block():
    before = pa.default_memory_pool().backend_name
    with reused():
        within = pa.default_memory_pool().backend_name
    assert (within, pa.default_memory_pool().backend_name) == ("system", before)


def test_arrows_pool_is_back_after_an_error():
    before = pa.default_memory_pool().backend_name
    with pytest.raises(ValueError), reused():
        raise ValueError("a part that cannot be read")
    assert pa.default_memory_pool().backend_name == before


def test_arrays_of_the_block_outlive_it():
    with reused():
        column = pa.array(["a text"] * 100_000)
    assert column.to_pylist() == ["a text"] * 100_000
