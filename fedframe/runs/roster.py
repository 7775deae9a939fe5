"""Who has joined a run after its end and who was forgotten, with the times: a file in the run folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedframe.data.federation import Federation
from fedframe.data.leaving import without_clients
from fedframe.util.files import read_json, write_json

ROSTER = "roster.json"


@dataclass(frozen=True)
class Joined:
    """A client that has joined: its number, its name, and where its data are."""

    client: int
    name: str
    data: str
    test_share: float | None = None
    label: str | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Roster:
    """What has changed since the training."""

    forgotten: Mapping[int, str] = field(default_factory=dict)  # clients of the training, and when
    joined: tuple[Joined, ...] = ()
    changes: tuple[Mapping[str, Any], ...] = ()  # what happened, in order
    joined_ever: int = 0  # numbers of clients that have joined are not used twice

    @classmethod
    def read(cls, run: Path) -> Roster:
        """That of a run; of one that was never changed, nothing."""
        if not (run / ROSTER).exists():
            return cls()
        found = read_json(run / ROSTER)
        return cls(
            {int(client): when for client, when in found["forgotten"].items()},
            tuple(Joined(**each) for each in found["joined"]),
            tuple(found["changes"]),
            int(found["joined_ever"]),
        )

    def write(self, folder: Path) -> None:
        """Write the file into a folder."""
        write_json(folder / ROSTER, asdict(self))

    def find(self, name: str) -> Joined | None:
        """The client that has joined under this name, if there is one."""
        return next((each for each in self.joined if each.name == name), None)

    def forgotten_at(self, name: str) -> str | None:
        """When a client of this name was last forgotten; None if it never was, or has joined since."""
        last = next((each for each in reversed(self.changes) if each["client"] == name), None)
        return str(last["at"]) if last is not None and last["what"] == "forget" else None

    def with_joined(self, client: Joined) -> Roster:
        """After a client has joined."""
        return replace(
            self,
            joined=(*self.joined, client),
            joined_ever=self.joined_ever + 1,
            changes=(*self.changes, change("join", client.name)),
        )

    def without(self, client: int, name: str) -> Roster:
        """After a client was forgotten; its number is the training's or the one that it got when it joined."""
        changes = (*self.changes, change("forget", name))
        rest = tuple(each for each in self.joined if each.client != client)
        if len(rest) < len(self.joined):
            return replace(self, joined=rest, changes=changes)
        return replace(self, forgotten={**self.forgotten, client: changes[-1]["at"]}, changes=changes)

    def with_change(self, what: str, name: str) -> Roster:
        """After something that is for the record only: a node of the training came late."""
        return replace(self, changes=(*self.changes, change(what, name)))

    def adjust(self, federation: Federation, seed: int) -> Federation:
        """The training's federation without the clients that were forgotten."""
        return without_clients(federation, self.forgotten, seed)


def change(what: str, name: str) -> dict[str, str]:
    """A change of now, for the record."""
    return {"what": what, "client": name, "at": time.strftime("%Y-%m-%d %H:%M:%S%z")}
