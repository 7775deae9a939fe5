"""What was sent, by the part of the method that needed it."""

from __future__ import annotations

from collections.abc import Mapping

from fedframe.core.layout import Layout

WHOLE_MODEL = ("model", "update")  # the flat vector of all shared weights, down and up


def bytes_by_part(traffic: Mapping[str, Mapping[str, int]], layout: Layout) -> dict[str, dict[str, int]]:
    """Bytes up and down by part: `backbone`, `head` and what parts add to the model or to messages.

    The model travels as one vector; each tensor counts with the room it takes up there, up to where the next one
    begins. Sums over the parts are exactly the bytes that were counted.
    """
    found: dict[str, dict[str, int]] = {}
    rooms = room_by_part(layout)
    for way, tensors in traffic.items():
        for name, size in tensors.items():
            pieces = {part_of(name): size}
            if name in WHOLE_MODEL:
                # A whole number of models went, so that nothing is rounded; but for updates of a wrong size.
                pieces = {part: size * room // layout.size for part, room in rooms.items()} if layout.size else {}
                if rest := size - sum(pieces.values()):
                    pieces["refused"] = rest
            for part, piece in pieces.items():
                entry = found.setdefault(part, {"up": 0, "down": 0})
                entry[way] += piece
    return found


def room_by_part(layout: Layout) -> dict[str, int]:
    """How many numbers of the flat vector belong to each part."""
    ends = [*(entry.start for entry in layout.entries[1:]), layout.size]
    rooms: dict[str, int] = {}
    for entry, end in zip(layout.entries, ends, strict=False):  # there is an end also where nothing is shared
        part = part_of(f"fixed/{entry.name}")
        rooms[part] = rooms.get(part, 0) + end - entry.start
    return rooms


def part_of(name: str) -> str:
    """The part a tensor belongs to, by its name in a message: `scaffold/c`, `fixed/head.weight`."""
    first, _, rest = name.partition("/")
    if first != "fixed":
        return first
    module, _, inner = rest.partition(".")
    return inner.partition(".")[0] if module == "extras" else module
