"""A client's private state, kept on disk by client and round.

State of round r is a file of its own; a client of round r reads the newest file of an earlier round. So a round that
was cut off leaves nothing that a resumed run would read, and there is no moment at which half of a round is committed.
Only the two newest files of a client are kept, and nothing is held in memory.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from fedframe.util.files import read_tensors, write_tensors


class Store:
    """Named tensors per client, as of each round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, client: int, before: int) -> dict[str, Tensor]:
        """The client's state as it was before a round; empty if it has none."""
        rounds = [round for round in self._rounds(client) if round < before]
        if not rounds:
            return {}
        tensors, _ = read_tensors(self._path(client, max(rounds)))
        return tensors

    def save(self, client: int, round: int, tensors: dict[str, Tensor]) -> None:
        """Keep the client's state after a round."""
        write_tensors(self._path(client, round), tensors, {"client": client, "round": round})
        # The newest state before this round must stay: if this round is cut off, a resumed run starts from it.
        for old in sorted(number for number in self._rounds(client) if number < round)[:-1]:
            self._path(client, old).unlink(missing_ok=True)

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
        return [int(path.stem) for path in self._place(client).glob("[0-9]*.safetensors")]
