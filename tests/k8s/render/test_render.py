"""Rendered gangs: as files that a person can read, and as an API server takes them."""

import pytest
import yaml

from k8s.render import render

from .golden import CASES, FOLDER, text


@pytest.mark.parametrize("name", CASES)
def test_file_is_what_is_rendered(name):
    kept = (FOLDER / f"{name}.yaml").read_text()
    assert list(yaml.safe_load_all(kept)) == render(CASES[name])
    assert kept == text(CASES[name]), "stale: python -m tests.k8s.render.golden, and read the diff"


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_the_api_server_takes_it(name, shared_data):
    from ..schemas import problems

    for obj in render(CASES[name]):
        assert problems(obj) == []
        obj["spec"]["foo"] = 1
        assert problems(obj) != []
