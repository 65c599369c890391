"""CEL as the API server has it: compiled programs, with the functions of Kubernetes' library that our rules use."""

from __future__ import annotations

import functools
import re
import threading

import celpy
from celpy import celtypes
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError

FAILURES = (CELEvalError, CELParseError, NotImplementedError, ValueError)
"""Of an expression: that it cannot be compiled, or not be evaluated for a value."""
_compiling = threading.Lock()  # celpy's parser is one for the process


@functools.cache
def program(rule: str) -> celpy.Runner:
    """Raises CELParseError for what is no CEL."""
    with _compiling:
        environment = celpy.Environment()
        return environment.program(environment.compile(rule), functions={"find": _find, "split": _split})


def _find(text: celtypes.StringType, pattern: celtypes.StringType) -> celtypes.StringType:
    """The first match of an RE2 pattern, or nothing."""
    match = re.search(str(pattern), str(text))
    return celtypes.StringType(match.group() if match else "")


def _split(text: celtypes.StringType, separator: celtypes.StringType) -> celtypes.ListType:
    return celtypes.ListType([celtypes.StringType(part) for part in str(text).split(str(separator))])
