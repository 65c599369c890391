"""The recipe's section names an engine; what it needs and does not have is named too, before anything is started."""

import sys
from pathlib import Path

import pytest

from pipeline.core.storage import ModelRef
from pipeline.recipe.serving import AnyServing, EndpointServing, TransformersServing, VllmServing
from pipeline.serving.chat import EndpointEngine
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.engines import ServingAddresses, open_engine
from pipeline.serving.transformers_engine import TransformersEngine
from pipeline.serving.vllm_engine import VllmEngine, refuse_unparsed
from tests.pipeline.core.tool_templates import OFFERED

ENDPOINT = EndpointServing(champion="a", candidate="b")
BASE = ModelRef(uri="base", digest="1" * 64)
PYTHON = ServingAddresses(vllm_python=sys.executable)


@pytest.mark.parametrize(
    ("section", "addresses", "kind"),
    [
        (TransformersServing(), ServingAddresses(), TransformersEngine),
        (ENDPOINT, ServingAddresses(Endpoint("http://127.0.0.1:1/v1")), EndpointEngine),
        (VllmServing(), PYTHON, VllmEngine),
    ],
)
def test_the_section_names_the_engine(
    tmp_path: Path, section: AnyServing, addresses: ServingAddresses, kind: type
) -> None:
    with open_engine(section, addresses, print, tmp_path) as engine:
        assert isinstance(getattr(engine, "engine", engine), kind)


@pytest.mark.parametrize(
    ("section", "addresses", "words"),
    [
        (ENDPOINT, PYTHON, "SERVING_URL is empty. Set it"),
        (
            VllmServing(),
            ServingAddresses(Endpoint("http://127.0.0.1:1/v1")),
            r"VLLM_PYTHON \(''\) is no Python\. Set it",
        ),
        (VllmServing(), ServingAddresses(vllm_python="/no/python"), r"VLLM_PYTHON \('/no/python'\) is no Python"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, section: AnyServing, addresses: ServingAddresses, words: str) -> None:
    with pytest.raises(ValueError, match=words), open_engine(section, addresses, print, tmp_path):
        pass


@pytest.mark.slow
def test_an_environment_without_vllm_is_refused(tmp_path: Path) -> None:
    with (
        open_engine(VllmServing(), PYTHON, print, tmp_path) as engine,
        pytest.raises(ValueError, match=r"does not have vLLM .* Set VLLM_PYTHON"),
        engine.open("champion", BASE),
    ):
        pass


def test_no_text_form_of_the_addresses_shows_the_key() -> None:
    addresses = ServingAddresses(Endpoint("http://127.0.0.1:1/v1", "sk-secret"), "python")
    assert "secret" not in repr(addresses) + str(addresses) + f"{addresses}"


USER = {"role": "user", "content": "Where is A7?"}


def test_tools_without_a_parser_are_refused_with_the_field() -> None:
    with pytest.raises(ValueError, match="set tool_call_parser of the section serving, of kind vllm"):
        refuse_unparsed("", [[USER], [OFFERED, USER]])
    refuse_unparsed("", [[USER]])
    refuse_unparsed("hermes", [[OFFERED, USER]])
    with pytest.raises(ValueError, match="tool_call_parser"):
        VllmServing(tool_call_parser="hermes --trust-remote-code")
