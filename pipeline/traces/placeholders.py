"""What loggers and gateways write where a message's text was: the message is then redacted, cut, or a payload.

| who writes it | in place of | makes |
|---|---|---|
| LiteLLM with `turn_off_message_logging` | the text | redacted |
| OpenInference (`__REDACTED__`), applications (`[REDACTED]`), Sentry, Logfire | the text | redacted |
| Langfuse's SDKs, whose mask failed | the text | redacted |
| Langfuse's SDKs and server, for a field over their size limit | the text | cut |
| LiteLLM's spend logs, for a text over their length limit | its middle or its end | cut |
| Langfuse, for an image, audio or file | a part of the text | payload |

A recipe adds its own under `traces.placeholders`. The patterns are read by Python and by RE2 alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

from pipeline.recipe.traces import Placeholder

Makes = Literal["redacted", "cut", "payload"]


class Pattern(NamedTuple):
    """`whole`: it stands for a message only where the message holds nothing else."""

    text: str
    makes: Makes
    whole: bool = False


KNOWN = (
    Pattern("redacted-by-litellm", "redacted", whole=True),
    Pattern(r"[\[<({*_]+(?i:redacted|scrubbed)[\])}>*_]+", "redacted", whole=True),
    Pattern(r"\[Filtered\]", "redacted", whole=True),
    Pattern(r"\[Scrubbed due to [^\]\n]*\]", "redacted", whole=True),
    Pattern("<fully masked due to failed mask function>", "redacted", whole=True),
    Pattern("<truncated due to size exceeding limit>", "cut"),
    Pattern(r"\(litellm_truncated ", "cut"),
    Pattern("@@@langfuseMedia:type=text/", "cut"),
    Pattern("@@@langfuseMedia:", "payload"),
    Pattern("<Upload handling failed for LangfuseMedia", "payload"),
)


class Placeholders:
    """The known placeholders and those of a recipe. `pattern` matches every text that may hold one."""

    def __init__(self, own: Sequence[Placeholder]) -> None:
        rows = (*KNOWN, *(Pattern(re.escape(each.text), each.makes, each.makes == "redacted") for each in own))
        self.pattern = "|".join(rf"^\s*{row.text}\s*$" if row.whole else row.text for row in rows)
        self._rows = [(re.compile(rf"\s*{row.text}\s*\Z" if row.whole else row.text), row) for row in rows]

    def made_of(self, text: str) -> Makes | None:
        """What a text's placeholder makes of the message; None for a text without one."""
        for regex, row in self._rows:
            if regex.match(text) if row.whole else regex.search(text):
                return row.makes
        return None


@cache
def placeholders(own: tuple[Placeholder, ...]) -> Placeholders:
    return Placeholders(own)
