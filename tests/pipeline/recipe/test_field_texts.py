"""What the fields of the recipe mean, from the docstrings below them."""

from pydantic import create_model

from pipeline.recipe import Recipe
from pipeline.recipe.field_texts import field_texts
from pipeline.recipe.section import Section


class Plain(Section):
    """A section."""

    first: int = 1
    """The first,
    over two lines."""
    silent: int = 2
    third: int = 3
    "In single quotes."


class Inheriting(Plain):
    silent: int = 4
    """Described by the one that inherits."""


def test_a_field_has_the_docstring_below_it() -> None:
    assert field_texts(Plain) == {"first": "The first,\nover two lines.", "third": "In single quotes."}


def test_a_text_is_inherited() -> None:
    assert field_texts(Inheriting) == field_texts(Plain) | {"silent": "Described by the one that inherits."}


def test_a_class_without_source_has_no_texts() -> None:
    assert field_texts(create_model("Unwritten", first=(int, 1))) == {}


def test_importing_the_recipe_reads_no_source() -> None:
    assert all(field.description is None for field in Recipe.model_fields.values())
    assert field_texts(Recipe)
