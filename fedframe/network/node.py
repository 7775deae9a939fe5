"""A node's work: it takes an errand, does it with the data that only it has, and gives the answer.

The node keeps its data and its model at hand between letters. What a letter may make it do is this file and nothing
else: kinds of work that it knows, for clients that are its own, with tensors of the right shapes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.job import Job
from fedframe.core.layout import named_tensors
from fedframe.core.message import LAST, Message, Number, all_finite, has_numbers
from fedframe.errors import ProtocolError
from fedframe.network.envelope import decode_envelope
from fedframe.network.node_request import HELLO, UNMASK, NodeRequest, answer_bytes
from fedframe.network.request_numbers import refuse_late
from fedframe.util.version import __version__

if TYPE_CHECKING:
    from fedframe.network.masks import Masker, MaskingGroup

COUNTS = ("client", "own", "personalise")  # kinds of work whose reply is how many predictions were right
Finish = Callable[[Job, Message], None]
MakeJob = Callable[[str], Job]


class NodeRuntime:
    """Some clients' side of a federation, for one run after the other."""

    def __init__(
        self,
        make_job: MakeJob,
        clients: Sequence[int],
        finish: Finish | None = None,
        masker: Callable[[], Masker] | None = None,
    ) -> None:
        self.make_job, self.clients, self.finish, self.make_masker = make_job, frozenset(clients), finish, masker
        self.masker: Masker | None = None
        self.run, self.site = "", None  # type: tuple[str, ClientRuntime | None]
        self.last = (b"", b"")  # a digest of the last letter that was answered, and the answer

    def answer(self, content: bytes) -> tuple[NodeRequest, list[Message], bytes]:
        """Do what a letter asks; the errand, the replies, and the replies as the letter that goes back.

        An order that comes again gets the same answer, without any work: the answer was lost, or came too late.
        """
        torch.set_num_threads(1)  # as everywhere, and in this very thread: results must not depend on the machine
        errand = NodeRequest.from_bytes(content)
        strangers = {client for clients in errand.tasks.values() for client in clients} - self.clients
        if strangers:
            raise ProtocolError(f"The clients {sorted(strangers)[:5]} are not at this node.")
        site = self.site_of(errand.run)
        if set(errand.tasks) - {HELLO, UNMASK}:
            check_order(site.job, errand.request)
        if set(errand.tasks) != {HELLO}:
            refuse_late(site.job.folder, self.clients, errand.number)
        digest = hashlib.blake2b(replace(errand, number=0).to_bytes()).digest()
        if digest != self.last[0]:
            self.last = (b"", b"")  # a large answer is not to lie here while the next one is made
            replies = self.perform(site, errand)
            self.last = (digest, answer_bytes(errand.run, replies))
            return errand, replies, self.last[1]
        return errand, decode_envelope(self.last[1])[0], self.last[1]

    def perform(self, site: ClientRuntime, errand: NodeRequest) -> list[Message]:
        """Do what an errand asks."""
        for client, round in errand.seen.items():
            if client in self.clients and site.job.remembers:
                site.job.store.forget_after(client, round)
        circle = self.circle(site.job, errand)
        replies = [self.reply(site, errand.request, kind, c, circle) for kind, cs in errand.tasks.items() for c in cs]
        if self.finish is not None and errand.request.numbers.get(LAST):
            self.finish(site.job, errand.request)
        return replies

    def site_of(self, run: str) -> ClientRuntime:
        """The place where this run's work is done; another run starts from nothing."""
        if self.site is None or run != self.run:
            if not run.isalnum() or len(run) > 64:
                raise ProtocolError("A run is named by letters and digits.")
            self.run, self.site = run, ClientRuntime(self.make_job(run))
        return self.site

    def circle(self, job: Job, errand: NodeRequest) -> MaskingGroup | None:
        """With whom replies are added up; none if the federation has not agreed on secure aggregation."""
        if not job.settings.secure:
            return None
        from fedframe.network.masks import MaskingGroup, context_of

        if self.masker is None:
            if self.make_masker is None:
                raise ProtocolError("This node cannot add up securely.")
            self.masker = self.make_masker()
        kinds = set(errand.tasks) & {UNMASK, "train", "statistics"}
        if not kinds:
            return None
        circle = MaskingGroup.from_notes(errand.circle)
        names = job.federation.names
        self.masker.check(circle, self.clients, lambda client: str(names[client]))
        if kinds != {UNMASK} and circle.context != context_of(errand.run, errand.request, circle.keys, circle.scale):
            raise ProtocolError("Masks would not be bound to this order.")
        return circle

    def reply(
        self, site: ClientRuntime, request: Message, kind: str, client: int, circle: MaskingGroup | None
    ) -> Message:
        """One task for one client; counts leave the node as totals, not class by class."""
        if kind == HELLO:
            return hello(site.job, client, self.masker.public if self.masker is not None else None)
        if kind == UNMASK:
            if circle is None or self.masker is None:
                raise ProtocolError("This federation has not agreed on secure aggregation.")
            from fedframe.network.secure_sums import revealed_reply

            together = max(len(circle.keys), site.job.clients_per_round)
            return revealed_reply(request, client, circle, self.masker, site.job.fewest(together))
        if kind != request.kind:  # what is asked beside the order is no part of a round: it has the plain learning rate
            request = replace(request, kind=kind, numbers={**request.numbers, "lr": site.job.settings.lr})
        reply = site.perform(request, client)
        if kind in COUNTS:
            reply = replace(reply, tensors={name: tensor.sum() for name, tensor in reply.tensors.items()})
        reply = replace(reply, numbers={name: told(value) for name, value in reply.numbers.items()})
        if circle is not None and self.masker is not None and kind in ("train", "statistics"):
            if not has_numbers(reply):  # that is all that is told of it
                return Message(kind, reply.round, client, numbers={"loss": "nan"})
            from fedframe.network.secure_sums import masked_reply

            reply = masked_reply(site.job, self.run, reply, circle, self.masker)
        return reply


def told(value: Number) -> Number:
    """A number as letters hold it: training that has diverged is to be seen as that, not as a letter that is none."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def hello(job: Job, client: int, key: str | None = None) -> Message:
    """Who a client is: how many samples it has, and whether its program and initial model are the federation's."""
    sizes: dict[str, Number] = {
        "train": len(job.federation.train[client]),
        "test": len(job.federation.local_test[client]),
        **versions(),
        "template": template_digest(job),
    }
    if key is not None:
        sizes["key"] = key
    return Message(HELLO, 0, client, numbers=sizes)


def versions() -> dict[str, str]:
    """What must be the same everywhere; which processors torch was built for may differ."""
    return {"version": __version__, "torch": str(torch.__version__).partition("+")[0]}


def template_digest(job: Job) -> str:
    """A short text that is equal at two places if their initial models are, bit for bit."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named_tensors(job.template).items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_order(job: Job, request: Message) -> None:
    """Refuse an order that does not fit the model of the run."""
    model = request.tensors.get("model")
    if model is None or model.dtype != torch.float32 or model.shape != (job.roles.layout.size,):
        what = "no model" if model is None else f"a model of {model.dtype} {tuple(model.shape)}"
        raise ProtocolError(f"The order brings {what}; here it is float32 ({job.roles.layout.size},).")
    fixed = named_tensors(job.template)
    for name, tensor in request.tensors.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            raise ProtocolError(f"The order's {name} holds NaN or infinite values.")
        if name.startswith("fixed/") and (name[6:] not in fixed or fixed[name[6:]].shape != tensor.shape):
            raise ProtocolError(f"The order sets {name[6:]}, which the model does not have in that shape.")
    if not 1 <= request.round <= job.settings.rounds + 1:
        raise ProtocolError(f"Round {request.round} is none of this run's {job.settings.rounds}.")
    if not isinstance(request.numbers.get("lr"), float):
        raise ProtocolError("The order has no learning rate.")


def state_folder(base: Path, run: str) -> Path:
    """Where a node keeps what belongs to one run."""
    return base / "runs" / run
