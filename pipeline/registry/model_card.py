"""The model card: one markdown page that says what a version is, what it was made from and how far to trust it.

Owns the sections that every card has, and the front matter by which the Hugging Face Hub reads one. Refuses to write
the sections: who knows the facts does. Refuses to name a license: it is that of the base model and of the data, which
only a person knows.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

SECTIONS = ("Data", "Evaluation", "Intended use", "Limits")


def model_card(name: str, lineage: Mapping[str, str], sections: Mapping[str, str]) -> str:
    """The card in markdown: the given sections in the order of `SECTIONS`, then the lineage.

    Raises ValueError when a section is missing, empty or unknown.
    """
    if set(sections) != set(SECTIONS) or not all(text.strip() for text in sections.values()):
        filled = sorted(title for title, text in sections.items() if text.strip())
        raise ValueError(f"The card of {name} has {filled}. Write each of {list(SECTIONS)}, and nothing else.")
    body = [part for title in SECTIONS for part in (f"## {title}", sections[title].strip())]
    rows = [f"| {key} | `{value}` |" for key, value in lineage.items() if value]
    table = "\n".join(["| what | value |", "| --- | --- |", *rows])
    return "\n\n".join([f"# {name}", *body, "## Lineage", table]) + "\n"


def front_matter(lineage: Mapping[str, str]) -> str:
    """What the Hub reads of a card. A base that is a version of a registry has no name there, and is left out."""
    base = lineage["base"]
    fields = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        **({} if base.startswith("models:/") else {"base_model": base}),
        "tags": ["preference-tuning", f"verdict:{lineage['verdict']}"],
    }
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---\n\n"
