"""Which private states a run must find when it goes on: noted in the checkpoint, looked for when a run is resumed.

Without that note a client whose file is gone would pass for one that was in no round yet and would start afresh:
another result, and not a word. States behind a network are the nodes', who know what they have sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.private_state import remedy
from fedframe.core.round_record import RoundRecord
from fedframe.core.server import Server
from fedframe.errors import DamageError
from fedframe.settings import REMOTE_DATA

NAME = "private/rounds"  # in a checkpoint


class StateIndex:
    """The newest finished round of every client's private state, 0 for none; an observer of rounds."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.kept_here = job.remembers and job.settings.engine == "local" and job.settings.data != REMOTE_DATA
        self.rounds = torch.zeros(len(job.federation) if self.kept_here else 0, dtype=torch.int32)
        self._clients: Sequence[int] = ()

    def begin(self, server: Server, clients: Sequence[int]) -> None:
        """A round begins with these clients."""
        self._clients = clients

    def on_reply(self, reply: Message) -> None:
        """Replies say nothing about it."""

    def end(self, server: Server, record: RoundRecord) -> None:
        """Note who has written a state; a client whose training went wrong has not, and keeps the one before."""
        if self.kept_here:
            for client in self._clients:
                if self.job.store.has(client, record.round):
                    self.rounds[client] = record.round

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it."""
        return {NAME: self.rounds} if self.kept_here else {}

    def restore(self, tensors: dict[str, Tensor], forget_damaged: bool) -> list[str]:
        """Look for the states that a checkpoint names; a missing one is an error.

        With `forget_damaged` every state is read, and the client of a missing or damaged one starts afresh; gives a
        sentence on them.
        """
        if not self.kept_here or NAME not in tensors or len(tensors[NAME]) != len(self.rounds):
            return []  # a checkpoint of an earlier version
        self.rounds = tensors[NAME].clone()
        store, forgotten = self.job.store, []
        for client, round in enumerate(self.rounds.tolist()):
            if forget_damaged and round and store.problem(client, round) is not None:
                store.drop(client)
                self.rounds[client] = 0
                forgotten.append(self.job.federation.names[client])
            elif round and not store.has(client, round):
                raise DamageError(
                    f"The private state of client {self.job.federation.names[client]} after round {round} is missing "
                    f"in {store.folder}. {remedy(self.job.folder)}",
                    store.folder,
                )
        if not forgotten:
            return []
        some = ", ".join(forgotten[:5]) + (" ..." if len(forgotten) > 5 else "")
        lost = f"The private state of {len(forgotten)} of {len(self.rounds)} clients is lost"
        return [f"{lost}, and they start afresh: {some}."]
