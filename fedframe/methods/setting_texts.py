"""What the settings of a part mean: the sentence that stands as a string below each field of its class.

Python throws such strings away, so they are read from the source, as documentation tools do it. A part of your own is
explained the same way.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from functools import cache

from fedframe.core import Part


def setting_text(kind: type[Part], name: str) -> str:
    """The sentence on a setting of a part, its own or one that it inherits; empty if there is none."""
    return next((texts[name] for owner in kind.__mro__ if name in (texts := field_texts(owner))), "")


@cache
def field_texts(owner: type) -> Mapping[str, str]:
    """The strings below the fields of one class, by the fields' names."""
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except (OSError, TypeError):  # a class without a file: typed into a prompt, or built in
        return {}
    body = ast.parse(source).body
    if not body or not isinstance(body[0], ast.ClassDef):
        return {}
    statements = body[0].body
    found = {}
    for field, below in itertools.pairwise(statements):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = inspect.cleandoc(below.value.value)
    return found
