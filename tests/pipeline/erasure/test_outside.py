"""What a proof says of the sources that are not this deployment's."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.erasure import forget
from pipeline.erasure.affected import Person
from pipeline.erasure.proof import ErasureProof
from pipeline.recipe.plugin import PluginSource
from pipeline.recipe.traces import (
    DemoSource,
    LangfuseApiSource,
    LangfuseExportSource,
    MlflowSource,
    OtelSource,
    PostgresTableSource,
)
from pipeline.storage import Store
from pipeline.traces.sources.outside import left_outside
from pipeline.traces.sources.protocol import Address
from pipeline.traces.watermark import Watermark
from tests.contexts import KEYS, stage_context
from tests.pipeline.plugin_packages import Install, install

__all__ = ["install"]
DAY = date(2026, 1, 5)
NOW = datetime(2026, 1, 12, tzinfo=UTC)
PLUGIN = """
class make:
    label = "acme's logs"
    def __init__(self, uri): ...
    def parts(self): return []
    def rows(self, part, digest): return iter(())
    def remains(self): return "write to privacy@acme.example"
"""


@pytest.mark.parametrize(
    ("section", "uri", "text"),
    [
        (
            LangfuseApiSource(since=DAY),
            "https://pk:secret@host",
            "Langfuse at https://host: delete the user's traces in",
        ),
        (
            MlflowSource(since=DAY, experiments=("a",)),
            "http://me:secret@host",
            "MLflow at http://host: delete the",
        ),
        (
            PostgresTableSource(),
            "postgresql://u:secret@h/d",
            "postgresql://h:5432/d, table traces: delete the rows with",
        ),
        (OtelSource(uri="s3://b/p"), "s3://b/p", "s3://b/p: delete the user's lines from its files, and from backups"),
    ],
)
def test_a_source_of_others_says_what_to_ask(tmp_path: Path, section: Any, uri: str, text: str) -> None:
    said = left_outside(Store(tmp_path), Address(section, uri))
    assert said.startswith(text) and "secret" not in said
    with pytest.raises(ValueError, match=r"address of traces\.source is not known\. Set the variables of its kind"):
        left_outside(Store(tmp_path), Address(section, ""))


def test_files_under_the_data_root_are_no_ones_else(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", KEYS)
    inside, beside = str(store.path("raw")), str(tmp_path / "data-of-others")
    assert left_outside(store, Address(LangfuseExportSource(uri=inside), inside)) == ""
    assert left_outside(store, Address(DemoSource(), str(store.path(layout.PRODUCTION)))) == ""
    assert "data-of-others: delete" in left_outside(store, Address(LangfuseExportSource(uri=beside), beside))


def test_a_plug_in_may_say_what_to_ask(install: Install, tmp_path: Path) -> None:
    address = Address(PluginSource.model_validate({"name": "acme"}), "")
    install("sources", "acme", PLUGIN)
    assert left_outside(Store(tmp_path), address) == "acme's logs: write to privacy@acme.example"
    install("sources", "acme", PLUGIN.replace("def remains", "def others"))
    assert left_outside(Store(tmp_path), address) == "acme's logs: ask its owner to delete what it has of the user"
    install("sources", "acme", PLUGIN.replace('return "write', '1 / 0; return "write'))
    with pytest.raises(ValueError, match=r"acme 1\.0 failed when it was asked what remains of a user \(ZeroDivision"):
        left_outside(Store(tmp_path), address)


def test_the_proof_names_every_source_that_there_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", KEYS)

    def proof(address: Address | None) -> ErasureProof:
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        return forget(stage_context(store), Person.named("ann"), registry_uri=uri, now=NOW, address=address)

    first = proof(Address(LangfuseApiSource(since=DAY), "https://pk:secret@host"))
    assert [line.partition(": ")[0] for line in first.outside] == ["Langfuse at https://host"]
    second = proof(Address(OtelSource(uri="s3://b/p"), "s3://b/p"))
    assert len(second.outside) == 2 and second.outside[0] == first.outside[0]
    assert proof(None).outside == second.outside
    assert not second.remains, "it is no file of this deployment"
    store.write(layout.WATERMARK, Watermark(source="Langfuse at https://other"))
    unknown = proof(Address(LangfuseApiSource(since=DAY), ""))
    assert "Langfuse at https://other: ask its owner to delete what it has of the user" in unknown.outside


def test_a_proof_without_such_a_source_is_as_before(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", KEYS)
    source = LangfuseExportSource(uri=str(store.path("raw")))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    proof = forget(
        stage_context(store), Person.named("ann"), registry_uri=uri, now=NOW, address=Address(source, source.uri)
    )
    assert "outside" not in proof.model_dump()
