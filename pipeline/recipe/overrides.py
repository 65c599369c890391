"""A recipe's text: YAML into a tree, and overrides such as `training.seed=3` into the tree. Refuses to check fields."""

import copy
import functools
import re
from collections.abc import Hashable
from typing import Any

import yaml

from pipeline.core.redaction import redacted

NOT_YAML = (yaml.YAMLError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError)
"""What PyYAML raises: beside its own, what its constructors make of scalars such as `2024-99-99`, and deep nesting."""
_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is written twice is refused: the first would be dropped in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set[Any]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    problem = f"the key {key.value!r} is there twice; the first would be dropped"
                    raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
                keys.add(key.value)
        return super().construct_mapping(node, deep)


def parse(text: str) -> Any:
    """The value that a YAML text is. Raises ValueError, in one line, that says where it is none.

    A step asks for its recipe dozens of times, mostly unchanged: what was parsed is kept, and each caller gets a copy.
    """
    return copy.deepcopy(_parsed(text))


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from error
    except NOT_YAML as error:
        raise ValueError(" ".join(str(error).split())) from error


def split(text: str) -> list[str]:
    """Overrides out of one text, parted by white space; what stands in quotes is kept together.

    Quotes within an override stay, for its value is YAML; those around a whole one do not. Raises ValueError for
    a quote without its other half.
    """
    rest = _WORD.sub("", text).split()
    if rest:
        raise ValueError(
            f"PREFERENCE_TUNING_OVERRIDES has a quote without its other half ({redacted(text)!r}). "
            "Write a value with spaces like base_model.uri='/models/my model'."
        )
    return [word[1:-1] if re.fullmatch(r"'[^']*'|\"[^\"]*\"", word) else word for word in _WORD.findall(text)]


def apply(tree: dict[str, Any], override: str) -> None:
    """Put the value of `KEY=VALUE` into the tree; `suites.0.items` leads into the first element of a list.

    Raises ValueError when it is none, or leads through a value.
    """
    key, sign, text = override.partition("=")
    key = key.strip()
    override = redacted(override)  # from here on it is shown
    if not sign or not key:
        raise ValueError(f"Override {override!r} is not KEY=VALUE. Write it like training.seed=3.")
    *parents, leaf = key.split(".")
    node: dict[str, Any] | list[Any] = tree
    for parent in parents:
        node = _below(node, parent, override)
    if isinstance(node, list):
        raise ValueError(f"Override {override!r} ends at an element of a list. Name a field of it.")
    try:
        node[leaf] = parse(text)
    except ValueError as error:
        raise ValueError(f"Override {override!r}: the value is not YAML: {error}. Quote it.") from error


def _below(node: dict[str, Any] | list[Any], name: str, override: str) -> dict[str, Any] | list[Any]:
    """The section or list of that name, or at that place of a list; a section that the file leaves out is begun."""
    if isinstance(node, list):
        if not name.isdecimal() or int(name) >= len(node):
            raise ValueError(f"Override {override!r}: {name} is no element of a list of {len(node)}, counted from 0.")
        child = node[int(name)]
    else:
        child = node.get(name)
        if child is None:  # left out, or empty
            child = node[name] = {}
    if not isinstance(child, dict | list):
        raise ValueError(f"Override {override!r}: {name!r} is a value, not a section. Check the path.")
    return child
