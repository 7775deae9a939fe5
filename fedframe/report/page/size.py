"""Pages stay small: where details of many methods would be too much, those of the last ones are left out, by name."""

from __future__ import annotations

import json
from typing import Any

MOST = 4_500_000  # bytes of data; style and scripts are half a megabyte, and a page shall have less than six


def fitted(sections: list[dict[str, Any]], most: int = MOST) -> list[dict[str, Any]]:
    """The same, with so few runs in the largest sections that all together fit; the first run always stays."""
    sizes = {section["id"]: size(section) for section in sections}
    left_out: dict[str, list[str]] = {}
    while sum(sizes.values()) > most:
        several = [section for section in sections if len(section.get("data", {}).get("variants", [])) > 1]
        if not several:
            break
        largest = max(several, key=lambda section: sizes[section["id"]])
        variants = largest["data"]["variants"]
        left_out.setdefault(largest["id"], []).insert(0, variants[-1]["name"])
        largest["data"] = {**largest["data"], "variants": variants[:-1]}
        sizes[largest["id"]] = size(largest)
    for section in sections:
        if section["id"] in left_out:
            names = "; ".join(left_out[section["id"]])
            section["read"] += f" (Left out to keep the page small: {names}. Their own pages show them.)"
    return sections


def size(section: dict[str, Any]) -> int:
    """Bytes that a section takes."""
    return len(json.dumps(section, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
