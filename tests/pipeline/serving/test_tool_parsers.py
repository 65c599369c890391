"""vLLM is asked questions with tools where the recipe names the parser of the model's calls."""

import pytest

from pipeline.recipe.serving import VllmServing
from pipeline.serving.vllm_engine import refuse_unparsed
from tests.pipeline.core.tool_templates import OFFERED

USER = {"role": "user", "content": "Where is A7?"}


def test_tools_without_a_parser_are_refused_with_the_field() -> None:
    with pytest.raises(ValueError, match="set tool_call_parser of the section serving, of kind vllm"):
        refuse_unparsed("", [[USER], [OFFERED, USER]])
    refuse_unparsed("", [[USER]])
    refuse_unparsed("hermes", [[OFFERED, USER]])
    with pytest.raises(ValueError, match="tool_call_parser"):
        VllmServing(tool_call_parser="hermes --trust-remote-code")
