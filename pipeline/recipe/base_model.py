"""Recipe section `base_model`: what is trained first, and how conversations are rendered for it."""

from datetime import date as date_type
from typing import Annotated, Literal

from pydantic import Field

from pipeline.core.locations import Uri
from pipeline.recipe.section import Section

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""Becomes part of paths, of filters and of names elsewhere."""


class ChatSettings(Section):
    """Written into the chat template of a copy of the base under the data root: samples, training, evaluation and
    serving render the same text, and a model that is exported keeps it. A promoted model keeps the settings that it was
    trained with."""

    template: Uri | None = None
    """File with a Jinja chat template instead of the model's own."""
    system: Literal["keep", "merge_into_user", "refuse"] = "keep"
    """keep: the template gets system messages, and rows of one that it drops or refuses stop the run. merge_into_user:
    the system message stands before the first user message, with an empty line between them. refuse: none is taken."""
    thinking: bool | None = None
    """The template's switch for reasoning (`enable_thinking`, `thinking`); null: its default."""
    date: date_type | None = None
    """Day that the template writes where it would write the date, such as 2026-01-31: prompts are the same tomorrow."""


class BaseModelSection(Section):
    name: Name
    """Registered model name in MLflow; also names the rollout. Letters, digits, dot, dash and underscore."""
    uri: Uri
    """Directory with config.json, weights and tokenizer: the first champion. Or `models:/NAME@alias`, `models:/NAME/3`
    in MLflow's registry, `hf://ORG/NAME@revision` on the Hugging Face Hub: those are fetched to below the data root
    when an iteration may begin, which keeps the digest of what it began with."""
    chat: ChatSettings = ChatSettings()
    """How conversations are rendered; pt models check says what a model needs."""
