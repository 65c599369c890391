"""What the fields of a section mean: the docstrings below them, read from the source when somebody asks."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema


@cache
def field_texts(kind: type[BaseModel]) -> dict[str, str]:
    """The text of every field that has one, inherited ones too; none for a class whose source is not at hand."""
    texts: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            texts |= _texts_in(each)
    return {name: text for name, text in texts.items() if name in kind.model_fields}


def _texts_in(kind: type[BaseModel]) -> dict[str, str]:
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # made at run time, or installed without its source
        return {}
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


class DescribedJsonSchema(GenerateJsonSchema):
    """pydantic's JSON schema, each property with the text of its field (`model_json_schema(schema_generator=...)`)."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        properties: dict[str, Any] = described.get("properties", {})
        for name, text in field_texts(schema["cls"]).items():
            if written := properties.get(schema["cls"].model_fields[name].alias or name):
                written["description"] = text
        return described
