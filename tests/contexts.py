"""What a stage works with (of `benchmarks/contexts.py`), and users who are forgotten."""

from pathlib import Path

from benchmarks.contexts import context_of, quiet, recipe_of, stage_context
from pipeline.core.mark_keys import MarkKeys
from pipeline.traces.erased import ErasedUser, Forgotten, user_hash

__all__ = ["KEYS", "context_of", "forgetting", "mark_of", "quiet", "recipe_of", "stage_context"]

KEYS = MarkKeys("5e" * 32)
"""As conftest puts them into the environment."""


def mark_of(user_id: str, keys: MarkKeys = KEYS) -> str:
    """As a store with these keys has it."""
    return keys.key(Path("/nowhere")).mark(user_hash(user_id))


def forgetting(*users: str) -> Forgotten:
    entries = [ErasedUser(mark=mark_of(user), proof="p") for user in users]
    return Forgotten(entries, KEYS.key(Path("/nowhere")))
