"""A node's side of a run: it takes a request, performs it with the data that only it has, and gives the answer.

The node keeps its data and its model in memory between requests. What a request may make it do is this file and nothing
else: kinds of work that it knows, for clients that are its own, with tensors of the right shapes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.job import Job
from fedframe.core.layout import named_tensors
from fedframe.core.message import CULPRIT, LAST, STAGE, Message, Number, all_finite, has_numbers
from fedframe.errors import ProtocolError
from fedframe.network.envelope import decode_envelope
from fedframe.network.node_request import HELLO, UNMASK, NodeRequest, encode_replies, refuse_stale
from fedframe.util.version import __version__

if TYPE_CHECKING:
    from fedframe.network.masks import Masker, MaskingGroup

SUMMED_KINDS = ("train", "statistics", "measure")  # of which, with secure aggregation, only sums are revealed
COUNT_KINDS = ("client", "own", "personalise")  # kinds of work whose reply is how many predictions were right
OnFinished = Callable[[Job, Message], Mapping[str, Number] | None]  # returns what the last reply says beside
MakeJob = Callable[[str], Job]


class NodeRuntime:
    """Some clients' side of a federation, for one run after the other."""

    def __init__(
        self,
        make_job: MakeJob,
        clients: Sequence[int],
        on_finished: OnFinished | None = None,
        masker: Callable[[], Masker] | None = None,
    ) -> None:
        self.make_job, self.clients, self.on_finished = make_job, frozenset(clients), on_finished
        self.make_masker = masker
        self.masker: Masker | None = None
        self.run, self.client_runtime = "", None  # type: tuple[str, ClientRuntime | None]
        self.last_answer = (b"", b"")  # a digest of the last request, and its answer

    def handle(self, content: bytes) -> tuple[NodeRequest, list[Message], bytes]:
        """Perform an encoded request; returns it, the replies, and the replies as the envelope that goes back.

        A request that comes again gets the same answer, without any work: the answer was lost, or came too late.
        """
        torch.set_num_threads(1)  # as everywhere, and in this very thread: results must not depend on the machine
        node_request = NodeRequest.from_bytes(content)
        strangers = {client for clients in node_request.tasks.values() for client in clients} - self.clients
        if strangers:
            raise ProtocolError(f"The clients {sorted(strangers)[:5]} are not at this node.")
        runtime = self.runtime_for(node_request.run)
        if set(node_request.tasks) - {HELLO, UNMASK}:
            check_request(runtime.job, node_request.request)
        if set(node_request.tasks) != {HELLO}:
            refuse_stale(runtime.job.folder, self.clients, node_request.number)
        digest = hashlib.blake2b(replace(node_request, number=0).to_bytes()).digest()
        if digest != self.last_answer[0]:
            self.last_answer = (b"", b"")  # a large answer is not kept in memory while the next one is made
            replies = self.perform(runtime, node_request)
            self.last_answer = (digest, encode_replies(node_request.run, replies))
            return node_request, replies, self.last_answer[1]
        return node_request, decode_envelope(self.last_answer[1])[0], self.last_answer[1]

    def perform(self, runtime: ClientRuntime, node_request: NodeRequest) -> list[Message]:
        """Do all tasks of a request."""
        for client, round in node_request.seen.items():
            if client in self.clients and runtime.job.remembers:
                runtime.job.store.forget_after(client, round)
        group = self.masking_group(runtime.job, node_request)
        replies = [
            self.reply(runtime, node_request.request, kind, client, group)
            for kind, clients in node_request.tasks.items()
            for client in clients
        ]
        if self.on_finished is not None and node_request.request.numbers.get(LAST):
            said = self.on_finished(runtime.job, node_request.request)
            if said and replies:
                replies[-1] = replace(replies[-1], numbers={**replies[-1].numbers, **said})
        return replies

    def runtime_for(self, run: str) -> ClientRuntime:
        """The runtime of this run; another run starts from nothing."""
        if self.client_runtime is None or run != self.run:
            if not run.isalnum() or len(run) > 64:
                raise ProtocolError("A run is named by letters and digits.")
            self.run, self.client_runtime = run, ClientRuntime(self.make_job(run))
        return self.client_runtime

    def masking_group(self, job: Job, node_request: NodeRequest) -> MaskingGroup | None:
        """With whom replies are summed; None if the federation has not agreed on secure aggregation."""
        if not job.settings.secure:
            return None
        from fedframe.network.masks import MaskingGroup, mask_context

        if self.masker is None:
            if self.make_masker is None:
                raise ProtocolError("This node cannot add up securely.")
            self.masker = self.make_masker()
        kinds = set(node_request.tasks) & {UNMASK, *SUMMED_KINDS}
        if not kinds:
            return None
        group = MaskingGroup.from_json(node_request.group)
        names = job.federation.names
        self.masker.check_keys(group, self.clients, lambda client: str(names[client]))
        context = mask_context(node_request.run, node_request.request, group.keys, group.scale)
        if kinds != {UNMASK} and group.context != context:
            raise ProtocolError("Masks would not be bound to this request.")
        return group

    def reply(
        self, runtime: ClientRuntime, request: Message, kind: str, client: int, group: MaskingGroup | None
    ) -> Message:
        """The reply to one task for one client; counts leave the node as totals, not class by class."""
        if kind == HELLO:
            return hello_reply(runtime.job, client, self.masker.public if self.masker is not None else None)
        if kind == UNMASK:
            if group is None or self.masker is None:
                raise ProtocolError("This federation has not agreed on secure aggregation.")
            from fedframe.network.secure_aggregation import seeds_reply

            asked = max(len(group.keys), runtime.job.clients_per_round)
            return seeds_reply(request, client, group, self.masker, runtime.job.fewest(asked))
        if kind != request.kind:  # a piggybacked task is no part of a round: it has the plain learning rate
            request = replace(request, kind=kind, numbers={**request.numbers, "lr": runtime.job.settings.lr})
        reply = runtime.perform(request, client)
        if kind in COUNT_KINDS:
            reply = replace(reply, tensors={name: tensor.sum() for name, tensor in reply.tensors.items()})
        # The organiser gets no names of files that are at the node.
        kept = {name: value for name, value in reply.numbers.items() if name != CULPRIT}
        reply = replace(reply, numbers={name: finite_or_text(value) for name, value in kept.items()})
        if group is not None and self.masker is not None and kind in SUMMED_KINDS:
            if not has_numbers(reply):  # the organiser learns no more of it than this
                return Message(kind, reply.round, client, numbers={"loss": "nan"})
            from fedframe.network.secure_aggregation import masked_reply

            reply = masked_reply(runtime.job, self.run, reply, group, self.masker, int(request.numbers.get(STAGE, 0)))
        return reply


def finite_or_text(value: Number) -> Number:
    """A number as envelopes hold it: diverged training must be recognised as that, not refused as unreadable."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def hello_reply(job: Job, client: int, key: str | None = None) -> Message:
    """Who a client is: how many samples it has, and whether its program and initial model are the federation's."""
    numbers: dict[str, Number] = {
        "train": len(job.federation.train[client]),
        "test": len(job.federation.local_test[client]),
        **versions(),
        "template": template_digest(job),
        "uploads": upload_digest(job),
    }
    if key is not None:
        numbers["key"] = key
    return Message(HELLO, 0, client, numbers=numbers)


def versions() -> dict[str, str]:
    """The versions that must be the same everywhere; which processors torch was built for may differ."""
    return {"version": __version__, "torch": str(torch.__version__).partition("+")[0]}


def template_digest(job: Job) -> str:
    """A short text that is equal on two machines if their initial models are, bit for bit."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named_tensors(job.template).items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def upload_digest(job: Job) -> str:
    """A short text that is equal on two machines if their clients send tensors of the same names and shapes."""
    sent = [
        (name, tuple(each.shape), each.aggregate, each.when, each.stage) for name, each in sorted(job.uploads.items())
    ]
    return hashlib.blake2b(repr(sent).encode(), digest_size=16).hexdigest()


def check_request(job: Job, request: Message) -> None:
    """Refuse a request that does not fit the model of the run."""
    model = request.tensors.get("model")
    if model is None or model.dtype != torch.float32 or model.shape != (job.roles.layout.size,):
        what = "no model" if model is None else f"a model of {model.dtype} {tuple(model.shape)}"
        raise ProtocolError(f"The request brings {what}; here it is float32 ({job.roles.layout.size},).")
    fixed = named_tensors(job.template)
    for name, tensor in request.tensors.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            raise ProtocolError(f"The request's {name} holds NaN or infinite values.")
        if name.startswith("fixed/") and (name[6:] not in fixed or fixed[name[6:]].shape != tensor.shape):
            raise ProtocolError(f"The request sets {name[6:]}, which the model does not have in that shape.")
    if not 1 <= request.round <= job.settings.rounds + 1:
        raise ProtocolError(f"Round {request.round} is none of this run's {job.settings.rounds}.")
    if request.numbers.get(STAGE, 0) not in range(max(1, job.stages)):
        raise ProtocolError(f"Stage {str(request.numbers[STAGE])[:40]} is none of this method's {job.stages}.")
    if not isinstance(request.numbers.get("lr"), float):
        raise ProtocolError("The request has no learning rate.")


def run_folder(base: Path, run: str) -> Path:
    """Where a node keeps what belongs to one run."""
    return base / "runs" / run
