"""The bill of materials names what is installed, each once, and only what is there needs anything."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from jobs.bill_of_materials import bill

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_bill_is_cyclonedx_of_this_environment() -> None:
    command = [sys.executable, "-m", "jobs.bill_of_materials"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    components = [document["metadata"]["component"], *document["components"]]
    references = [each["bom-ref"] for each in components]
    assert len(set(references)) == len(references)
    for each in components:
        assert each["type"] in ("application", "library")
        assert re.fullmatch(r"pkg:pypi/[a-z0-9][a-z0-9-]*@[\w.%!-]+", each["purl"])
        assert all(set(licence) in ({"expression"}, {"license"}) for licence in each.get("licenses", []))
    assert {each["ref"] for each in document["dependencies"]} == set(references)
    assert {need for each in document["dependencies"] for need in each["dependsOn"]} <= set(references)
    assert f"pkg:pypi/dagster@{version('dagster')}" in document["dependencies"][0]["dependsOn"]


def test_an_environment_without_the_project_has_no_bill() -> None:
    with pytest.raises(ValueError, match="is not installed in this environment"):
        bill([])
