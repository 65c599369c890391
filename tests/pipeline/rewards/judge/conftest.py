"""What the judge's tests need."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vllm: asks a vLLM server; skipped with a word where there is none")
