"""A client's private state, kept on disk by client and round.

State of round r is a file of its own; a client of round r reads the newest file of an earlier round. So a round that
was cut off leaves nothing that a resumed run would read, and there is no moment at which half of a round is committed.
Only the three newest files of a client are kept: that of a round that was cut off, that of the last finished round, and
that of the round before, to which a run can go back if its newest checkpoint is damaged. Nothing is held in memory.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import Tensor

from fedframe.errors import DamageError
from fedframe.util.files import read_tensors, write_tensors


def remedy(run: Path) -> str:
    """What can be done about a private state that is damaged or missing."""
    again = f"fedframe resume {run}"
    return (
        f"Put the file back, train again from the start ('{again} --from-round 0'), or go on with that client as one "
        f"that was in no round yet, to another result: '{again} --without-private-state'."
    )


class Store:
    """Named tensors per client, as of each round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, client: int, before: int) -> dict[str, Tensor]:
        """The client's state as it was before a round; empty if it has none."""
        rounds = [round for round in self._rounds(client) if round < before]
        if not rounds:
            return {}
        try:
            tensors, _ = read_tensors(self._path(client, max(rounds)))
        except DamageError as error:
            raise DamageError(f"{error} {remedy(self.folder.parent)}", error.path) from error
        return tensors

    def save(self, client: int, round: int, tensors: dict[str, Tensor]) -> None:
        """Keep the client's state after a round."""
        write_tensors(self._path(client, round), tensors, {"client": client, "round": round})
        # The newest state before this round must stay: if this round is cut off, a resumed run starts from it.
        # So must the one before it, for a run that goes back by a round.
        for old in sorted(number for number in self._rounds(client) if number < round)[:-2]:
            self._path(client, old).unlink(missing_ok=True)

    def has(self, client: int, round: int) -> bool:
        """Whether the client's state of this very round is here."""
        return self._path(client, round).is_file()

    def problem(self, client: int, round: int) -> str | None:
        """What is wrong with the client's state of a round, as a sentence; None if it is as it was written."""
        try:
            read_tensors(self._path(client, round))
        except DamageError as error:
            return str(error)
        return None

    def drop(self, client: int) -> None:
        """Forget all states of a client."""
        shutil.rmtree(self._place(client), ignore_errors=True)

    def forget_after(self, client: int, round: int) -> None:
        """Drop states of later rounds: their replies were lost on the way, so the server has not merged them."""
        for later in (number for number in self._rounds(client) if number > round):
            self._path(client, later).unlink(missing_ok=True)

    def _place(self, client: int) -> Path:
        # A hundred thousand clients in one folder would make every look-up slow.
        return self.folder / f"{client // 1000:03d}" / f"{client:06d}"

    def _path(self, client: int, round: int) -> Path:
        return self._place(client) / f"{round:06d}.safetensors"

    def _rounds(self, client: int) -> list[int]:
        names = (path.stem for path in self._place(client).glob("[0-9]*.safetensors"))
        return [int(name) for name in names if name.isdecimal()]
