"""What a proof says of a source that is the user's own, or somebody else's."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.governance.erasure import forget
from pipeline.governance.erasure.places import Remaining, in_source
from pipeline.governance.erasure.records import Person
from pipeline.recipe.sources import CustomSource, DemoSource, ExportSource, LangfuseApiSource, MlflowSource, RowsSource
from pipeline.traces.sources.protocol import Address
from tests.contexts import KEYS, stage_context
from tests.pipeline.traces.conftest import observation, write

DAY = date(2026, 1, 5)
NOW = datetime(2026, 1, 12, tzinfo=UTC)
QUERY = RowsSource(query="SELECT 1", since=DAY, fields={"prompt": "q", "completion": "a", "time": "at"})
ANN = Person.named("ann")
SOURCE = """
class Acme:
    label = "acme's logs"
    def __init__(self, uri): ...
    def parts(self): return []
    def rows(self, part, digest): return iter(())
    def remains(self): return "write to privacy@acme.example"
"""


@pytest.mark.parametrize(
    ("section", "uri", "text"),
    [
        (LangfuseApiSource(since=DAY), "https://pk:secret@host", "Langfuse at https://host: delete the user's traces"),
        (MlflowSource(since=DAY, experiments=("a",)), "http://me:secret@host", "MLflow at http://host: delete the"),
        (QUERY, "postgresql://u:secret@h/d", "a query to postgresql://h/d: delete the rows with the user"),
    ],
)
def test_a_source_of_others_says_what_to_ask(tmp_path: Path, section: Any, uri: str, text: str) -> None:
    (said,) = in_source(Store(tmp_path), ANN, Address(section, uri)).outside
    assert said.startswith(text) and "secret" not in said
    unknown = Remaining(outside=(f"the source {section.kind}: ask its owner to delete what it has of the user",))
    assert in_source(Store(tmp_path), ANN, Address(section, "")) == unknown


@pytest.mark.parametrize("place", ["data/raw", "elsewhere"])
def test_an_export_that_names_the_user_remains_as_it_is(place: str, tmp_path: Path) -> None:
    """As owner, that is: not in another's text, not in another case, and not as a part of another id."""
    root, store = tmp_path / place, Store(tmp_path / "data", KEYS)
    users = ("ann", "Ann", "ann2", "bob")
    for day in ("2026-01-05", "2026-01-06"):
        rows = [observation(n, user_id=user, output="ann") for n, user in enumerate(users, start=1)]
        write(root, f"observations_v2/{day}.jsonl.gz", rows if day.endswith("5") else rows[1:])
    file = root / "observations_v2/2026-01-05.jsonl.gz"
    file.chmod(0o600)
    before = file.read_bytes()
    source = ExportSource(kind="langfuse_export", uri=str(root))
    context, uri = stage_context(store), f"sqlite:///{tmp_path}/mlflow.db"
    proof = forget(context, ANN, registry_uri=uri, now=NOW, address=Address(source, source.uri))
    assert proof.remains == (f"{root}/observations_v2/2026-01-05.jsonl.gz: 1 rows",) and proof.outside == ()
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (before, 0o600)


def test_the_embedded_export_is_ours(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", KEYS)
    assert in_source(store, ANN, Address(DemoSource(), str(store.path(layout.PRODUCTION)))) == Remaining()


def test_a_source_that_cannot_be_read_is_not_called_clean(tmp_path: Path) -> None:
    source = ExportSource(kind="langfuse_export", uri=str(tmp_path / "gone"))
    (line,) = in_source(Store(tmp_path), ANN, Address(source, source.uri)).remains
    assert "cannot be read, so whom it names is unknown" in line


def test_a_custom_source_may_say_what_to_ask(tmp_path: Path) -> None:
    (tmp_path / "acme.py").write_text(SOURCE)
    address = Address(CustomSource(code=f"{tmp_path}/acme.py:Acme"), "")
    assert in_source(Store(tmp_path), ANN, address).outside == ("acme's logs: write to privacy@acme.example",)
