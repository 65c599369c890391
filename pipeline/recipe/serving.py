"""Recipe section `evaluation.serving`: what answers the evaluation's questions."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from pipeline.recipe.section import Operational, Section


class TransformersServing(Section):
    """A process of this project, which loads one model and ends with the step (pipeline/serving/__main__.py)."""

    kind: Literal["transformers"] = "transformers"
    batch_size: Annotated[PositiveInt, Operational] = 256
    """Answers that are drawn at once; fewer need less memory. Each answer has a seed of its own, whatever the batch."""
    threads: ClassVar[int] = 1
    """Compute threads on CPU."""


class HttpServing(Section):
    """What an OpenAI-compatible server is asked with."""

    in_flight: Annotated[PositiveInt, Operational] = 64
    """Questions at once, at most."""
    timeout_s: Annotated[PositiveFloat, Operational] = Field(default=600.0, le=1e9)
    """Longest duration of one answer; then it is asked again."""
    attempts: ClassVar[int] = 4
    """Times that a question is asked where there is no connection, or the status is 408, 429 or 5xx."""


class VllmServing(HttpServing):
    """A vLLM server on 127.0.0.1 that the step starts and ends, from the environment that VLLM_PYTHON names."""

    kind: Literal["vllm"] = "vllm"
    tensor_parallel: PositiveInt = 1
    """Devices over which each layer is spread."""
    max_model_len: NonNegativeInt = 0
    """Tokens of prompt and answer together that the server makes room for; 0: the model's own context."""
    memory_share: Annotated[float, Operational] = Field(default=0.9, gt=0, le=1)
    """Share of a device's memory that the server takes."""
    start_timeout_s: Annotated[PositiveFloat, Operational] = Field(default=1800.0, le=1e9)
    """Longest duration from its start to its first answer."""
    tool_call_parser: Annotated[str, Field(pattern=r"^[a-z0-9_-]*$")] = ""
    """vLLM's parser of the calls that the model writes (`--tool-call-parser`), where questions hold tools: such as
    hermes for Qwen; empty: questions with tools are refused."""


class EndpointServing(HttpServing):
    """Servers that others keep, at SERVING_URL with SERVING_API_KEY."""

    kind: Literal["endpoint"] = "endpoint"
    champion: str
    """Name under which the server has the champion."""
    candidate: str
    """Name under which the server has the candidate."""


AnyServing = Annotated[TransformersServing | VllmServing | EndpointServing, Field(discriminator="kind")]
