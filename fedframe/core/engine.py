"""The interface of all engines: who runs the clients, in this process, in worker processes or behind a network.

The server never asks which engine it has. What differs between them is answered here: the defaults are those of an
engine whose clients are on this machine and always reply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Size, Tensor

from fedframe.core.evaluation import final_scores, score_round
from fedframe.core.message import Message

if TYPE_CHECKING:
    from fedframe.core.evaluation import Scores
    from fedframe.core.job import Job
    from fedframe.core.server import Server


class Evaluation(Protocol):
    """When and how the models of a run are scored."""

    def after_round(self, server: Server) -> Scores:
        """Score the model that a round has left."""

    def late(self, server: Server) -> Scores | None:
        """Scores of the previous round's model that came back with this round's replies, if any were asked for."""

    def before_stage(self, server: Server) -> Scores | None:
        """Late scores of the model as it stands, fetched now because a server stage is about to change it."""

    def final(self, server: Server, progress: Callable[[int, int], None]) -> Scores:
        """Score the final model, and have clients make and score their personal models."""

    def resume(self, server: Server) -> None:
        """The run goes on after a round whose late scores had not come: ask for them again."""


class DirectEvaluation:
    """Scores at once: all test data can be reached at no cost."""

    def after_round(self, server: Server) -> Scores:
        """Score the shared model and, where clients have more than that, their own."""
        return score_round(server)

    def late(self, server: Server) -> Scores | None:
        """Nothing comes late."""
        return None

    def before_stage(self, server: Server) -> Scores | None:
        """Nothing comes late."""
        return None

    def final(self, server: Server, progress: Callable[[int, int], None]) -> Scores:
        """The shared model on everything, and each client's own model on its own test data."""
        return final_scores(server, progress)

    def resume(self, server: Server) -> None:
        """Nothing is missing."""


class Engine(ABC):
    """Runs clients. Subclasses implement `run`; the rest has defaults for clients on this machine."""

    evaluation: Evaluation = DirectEvaluation()

    @abstractmethod
    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """Have a request performed for every unit; replies come in the order of the units.

        A reply's tensors are lent: they may be overwritten as soon as the next reply is asked for. Instead of a
        reply that never came (a client behind a network) stands a message of the kind `lost`, with the reason.
        """

    def server_job(self, job: Job) -> Job:
        """The job as the server's own process has it: without a GPU where workers use them."""
        return job

    def processes(self) -> list[int]:
        """Ids of the processes that work for it on this machine, beside this one."""
        return []

    def close(self) -> None:
        """End what was started."""
        return

    def expect(self, kind: str, shapes: Mapping[str, Size]) -> None:
        """Take note of the names and shapes that replies to a kind of request have."""
        return

    def represented_clients(self, reply: Message) -> list[int]:
        """The clients for which a reply stands: one, or with secure aggregation all whose sum it is."""
        return [reply.unit]

    def sample_limit(self, client: int) -> int | None:
        """The most samples that a client can claim to have trained on; None where replies are trusted."""
        return None

    def mark_merged(self, clients: Sequence[int], round: int) -> None:
        """The update of these clients has become part of the model."""
        return

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs of the engine, by name."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave; a name may be missing."""
        return
