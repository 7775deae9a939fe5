"""Numbers for files: short, and never something that JSON does not know."""

from __future__ import annotations

import json
import math
from typing import Any

DIGITS = 6  # significant ones


def significant(value: Any) -> Any:
    """The same with floats rounded to a few significant digits; what is not a finite number becomes None."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: significant(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [significant(each) for each in value]
    return value


def compact(content: dict[str, Any]) -> str:
    """JSON with a line per entry: people find their way, and matrices do not fill screens."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
