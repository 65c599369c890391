"""What a source of an installed package is held to, and what is said of one that is missing or wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from pipeline.pinning import differences
from pipeline.recipe import load
from pipeline.recipe.plugin import PluginSource
from pipeline.recipe.traces import Traces
from pipeline.traces.days import rules_digest
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.plugged import PluggedSource
from pipeline.traces.sources.protocol import Address, Source
from tests.pipeline.plugin_packages import Install, install

from .conftest import read, reasons

__all__ = ["install"]
EMBEDDED = Path(__file__).parents[4] / "jobs" / "recipes" / "embedded.yaml"
SOURCE = """
from datetime import datetime, UTC
from pipeline.traces.rows import Rows, Trace
from pipeline.traces.sources.protocol import SourcePart

def trace(line, **changes):
    given = dict(trace_id=f"t{line}", observation_id=f"o{line}", timestamp=datetime(2026, 1, 5, tzinfo=UTC), model="m",
                 user_id=None, session_id=None, messages=[{"role": "user", "content": "a"}], completion="b", line=line)
    return Trace(**{**given, **changes})

class make:
    label = "acme"
    def __init__(self, uri, tenant="x"):
        self.uri, self.tenant = uri, tenant
    def parts(self):
        return [SourcePart("b", "1", 1), SourcePart("a", "1", 1)]
    def rows(self, part, digest):
        digest.update(part.name.encode())
        yield Rows(traces=[trace(1)])
"""


def opened(**changes: object) -> Source:
    section = PluginSource.model_validate({"name": "acme", **changes})
    return open_source(Address(section, section.uri))


def test_a_plug_in_is_read_as_any_source(install: Install) -> None:
    install("sources", "acme", SOURCE)
    source = opened(uri="/logs", options={"tenant": "y"})
    assert isinstance(source, PluggedSource) and source.label == "acme"
    assert [part.name for part in source.parts()] == ["a", "b"]
    digest = hashlib.sha256()
    (rows,) = source.rows(source.parts()[0], digest)
    assert [trace.trace_id for trace in rows.traces] == ["t1"] and not rows.rejected
    assert digest.hexdigest() == hashlib.sha256(b"a").hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("from datetime", "import not_there\nfrom datetime", r"acme 1\.0 cannot be imported .*not_there.*another vers"),
        ("from datetime", "raise SystemExit(3)\nfrom datetime", r"acme 1\.0 cannot be imported \(SystemExit: 3\)"),
        ("class make:", "class other:", r"acme 1\.0 cannot be imported \(AttributeError"),
        ("class make:", "make = 3\nclass other:", r"acme 1\.0: .* is int, which cannot be called"),
        ("tenant=", "tenants=", r"acme 1\.0 does not take these options: .*'tenant'.* Change options in the recipe"),
        ("self.uri, self.tenant = uri, tenant", "1 / 0", r"failed when it was set up \(ZeroDivisionError in acme_"),
        ("self.uri, self.tenant = uri, tenant", "raise ValueError('Give a tenant.')", r"^Give a tenant\.$"),
        ("def parts", "def part", r"acme 1\.0 does not keep the interface of .*sources: make has no parts\. Install"),
        ("label = ", "name = ", r"make has no label"),
    ],
)
def test_one_that_cannot_be_made_is_refused(install: Install, old: str, new: str, message: str) -> None:
    assert old in SOURCE
    install("sources", "acme", SOURCE.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        opened(options={"tenant": "y"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return [SourcePart", "return () and [SourcePart", r"parts\(\) returned tuple, no list"),
        ('SourcePart("b", "1", 1)', "3", r"lists something else than SourcePart"),
        ('"b", "1", 1', '"b", "", 1', r"lists something else than SourcePart"),
        ('"b", "1", 1', '"b", "1", 1, "notes"', r"lists something else than SourcePart"),
        ('SourcePart("b"', 'SourcePart("a"', r"two parts of one name"),
        ("return [SourcePart", "return [] and [SourcePart", r"acme has nothing to read\. Check traces\.source\.uri"),
        ("return [SourcePart", "return 1 / 0, [SourcePart", r"failed when it listed its parts \(ZeroDivisionError"),
        ("yield Rows(traces=[trace(1)])", "yield [trace(1)]", r"rows\(\) yielded list, no Rows"),
        ("digest.update(part.name.encode())", "pass", r"puts nothing into the digest"),
        ("yield Rows", "raise KeyError('my words')\n        yield Rows", r"read a \(KeyError in acme_acme_plugin\.py"),
    ],
)
def test_one_that_breaks_the_protocol_names_its_owner(install: Install, old: str, new: str, message: str) -> None:
    assert old in SOURCE
    install("sources", "acme", SOURCE.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as refusal:
        read(opened())
    assert "my words" not in str(refusal.value) and "acme" in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    ["timestamp='2026-01-05'", "messages=[{'role': 'user'}]", "messages=['a']", "completion=None", "metadata={}",
     "name=[3]", "timestamp=None"],
)  # fmt: skip
def test_a_row_of_other_types_is_rejected_alone(install: Install, changes: str) -> None:
    install("sources", "acme", SOURCE.replace("[trace(1)]", f"[trace(1), trace(2, {changes}), trace(3)]"))
    source = opened()
    rows = read(source, source.parts()[0])
    assert [trace.line for trace in rows.traces] == [1, 3]
    assert reasons(rows) == ["schema:2:None"] and "made no Trace of it" in rows.rejected[0].detail


def recipe_in(folder: Path, **source: object) -> Path:
    tree = yaml.safe_load(EMBEDDED.read_text())
    tree["traces"]["source"] = {"kind": "plugin", "name": "acme", "uri": "/logs", **source}
    (folder / "own.yaml").write_text(yaml.safe_dump(tree))
    return folder / "own.yaml"


def test_a_recipe_keeps_the_version_and_imports_nothing(install: Install, tmp_path: Path) -> None:
    install("sources", "acme", "raise SystemExit", version="1.4")
    source = load(recipe_in(tmp_path)).traces.source
    assert isinstance(source, PluginSource) and source.digest == "acme==1.4"


def test_another_version_or_option_is_another_recipe(install: Install, tmp_path: Path) -> None:
    install("sources", "acme", SOURCE)
    first, optioned = load(recipe_in(tmp_path)), load(recipe_in(tmp_path, options={"tenant": "y"}))
    install("sources", "acme", SOURCE, version="1.1")
    newer = load(recipe_in(tmp_path))
    assert len({recipe.digest() for recipe in (first, optioned, newer)}) == 3
    assert [line.partition(":")[0] for line in differences(first, newer)] == ["traces.source.digest"]


def test_a_source_of_another_version_is_read_anew(install: Install) -> None:
    def keys(**changes: object) -> tuple[str, str]:
        settings = Traces(source=PluginSource.model_validate({"name": "acme", **changes}))
        return settings.reader, rules_digest(settings)

    install("sources", "acme", SOURCE)
    first, optioned, moved = keys(), keys(options={"tenant": "y"}), keys(uri="/elsewhere")
    install("sources", "acme", SOURCE, version="1.1")
    newer = keys()
    assert len({first, optioned, newer}) == 3 and moved == first
    assert all(len({first[n], optioned[n], newer[n]}) == 3 for n in (0, 1))


def test_only_the_version_that_was_agreed_on_is_used(install: Install, tmp_path: Path) -> None:
    install("sources", "acme", SOURCE)
    with pytest.raises(ValueError, match=r"source\.name: acme==0\.9 was agreed on, and acme==1\.0 is installed\. Inst"):
        load(recipe_in(tmp_path, digest="acme==0.9"))
    with pytest.raises(ValueError, match=r"acme==0\.9 was agreed on"):
        opened(digest="acme==0.9")


def test_a_plug_in_that_is_not_there_is_told(install: Install, tmp_path: Path) -> None:
    install("sources", "other", SOURCE)
    with pytest.raises(ValueError, match=r"does not resolve: traces\.source\.name: no installed package .* other\)"):
        load(recipe_in(tmp_path))
    install("sources", "acme", SOURCE, distribution="one")
    install("sources", "acme", SOURCE, distribution="two")
    with pytest.raises(ValueError, match=r"2 entry points are named 'acme' .*one==1\.0, two==1\.0\)\. Uninstall"):
        load(recipe_in(tmp_path))
