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

from fedframe.core.client_runtime import NO_SCORE, ClientRuntime
from fedframe.core.imbalance import BALANCED, CLASSES, METRIC, may_choose
from fedframe.core.job import Job
from fedframe.core.layout import named_tensors
from fedframe.core.message import CULPRIT, LAST, STAGE, Message, Number, all_finite
from fedframe.core.privacy import release_of, withholds_figures
from fedframe.errors import ProtocolError
from fedframe.network.admission import Admission, Slot
from fedframe.network.envelope import decode_envelope
from fedframe.network.ledger import EpsilonLedger
from fedframe.network.node_request import (
    AGREE,
    COUNT_KINDS,
    HELLO,
    PROTOCOL,
    UNMASK,
    NodeRequest,
    encode_replies,
    refuse_stale,
)
from fedframe.util.version import __version__

if TYPE_CHECKING:
    from fedframe.network.masker import Masker
    from fedframe.network.masks import MaskingGroup

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
        ledger: EpsilonLedger | None = None,
        most_runs: int | None = None,
    ) -> None:
        self.make_job, self.clients, self.on_finished = make_job, frozenset(clients), on_finished
        self.make_masker, self.ledger, self.most_runs = masker, ledger, most_runs
        self.admission: Admission | None = None  # the rules of the run under way
        self.masker: Masker | None = None
        self.run, self.client_runtime = "", None  # type: tuple[str, ClientRuntime | None]
        self.agreed_metric, self.metric = "", None  # type: tuple[str, object]
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
        if set(node_request.tasks) - {HELLO, AGREE, UNMASK, CLASSES}:
            check_request(runtime.job, node_request.request)
            runtime = self.with_metric(runtime, node_request.request)
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
        group = self.masking_group(runtime.job, node_request)
        assert self.admission is not None
        admitted = self.admission.admit(
            node_request.request,
            node_request.tasks,
            node_request.seen,
            group.context if group is not None else "",
        )
        for client, round in node_request.seen.items():
            if client in self.clients and runtime.job.remembers:
                runtime.job.store.forget_after(client, round)
        replies = {
            (kind, client): self.reply(runtime, node_request.request, kind, client, group)
            for kind, clients in node_request.tasks.items()
            for client in clients
        }
        for (kind, client), reply in replies.items():
            if kind == "train":
                self.admission.trained(client, reply)
        if group is not None:
            replies = self.masked(runtime.job, node_request, group, replies, admitted)
        for each, reply in replies.items():
            if each in admitted:
                self.admission.seal(admitted[each][0], each[1], reply)
        if self.on_finished is not None and node_request.request.numbers.get(LAST):
            said = self.on_finished(runtime.job, node_request.request)
            if said and replies and not withholds_figures(runtime.job.settings):
                last = next(reversed(replies))
                replies[last] = replace(replies[last], numbers={**replies[last].numbers, **said})
        return [*replies.values()]

    def runtime_for(self, run: str) -> ClientRuntime:
        """The runtime of this run; another run starts from nothing."""
        if self.client_runtime is None or run != self.run:
            if not run.isalnum() or len(run) > 64:
                raise ProtocolError("The name of a run has letters and digits only.")
            job = replace(self.make_job(run), run=run)
            self.admission = Admission(job, run, self.ledger, self.most_runs)
            self.run, self.client_runtime = run, ClientRuntime(job)
            self.agreed_metric, self.metric = job.settings.metric, None
        return self.client_runtime

    def with_metric(self, runtime: ClientRuntime, request: Message) -> ClientRuntime:
        """The runtime with the metric that the organiser names, where the agreement leaves it open."""
        asked = request.numbers.get(METRIC, self.agreed_metric)
        if asked == self.metric:
            return runtime
        job = runtime.job
        if asked != self.agreed_metric and not (asked == BALANCED and may_choose(self.agreed_metric, job.federation)):
            raise ProtocolError(f"The metric {str(asked)[:40]!r} is not agreed; it is {self.agreed_metric!r} here.")
        if self.metric is not None:
            raise ProtocolError(f"This run's metric is {self.metric!r}, and a run has one.")
        self.metric = asked
        if asked != self.agreed_metric:
            job = replace(job, settings=job.settings.model_copy(update={METRIC: asked}))
            self.client_runtime = runtime = ClientRuntime(job)
        return runtime

    def masking_group(self, job: Job, node_request: NodeRequest) -> MaskingGroup | None:
        """With whom replies are summed; None if the federation has not agreed on secure aggregation."""
        if not job.settings.secure:
            return None
        from fedframe.network.masks import MaskingGroup, mask_context
        from fedframe.network.secure_aggregation import check_group, main_kind, summed_kinds

        if self.masker is None:
            if self.make_masker is None:
                raise ProtocolError("This node does not support secure aggregation.")
            self.masker = self.make_masker()
        asking = set(node_request.tasks) & {AGREE, UNMASK}
        summed = set(node_request.tasks) & set(summed_kinds(job))
        if not asking and not summed:
            return None
        if len(asking) + bool(summed) > 1:
            raise ProtocolError("Masks are asked about by a request of its own.")
        group = MaskingGroup.from_json(node_request.group)
        names = job.federation.names
        if max(group.keys) >= len(names):
            raise ProtocolError("The group includes a client that is not a member.")
        self.masker.check_keys(group, self.clients, lambda client: str(names[client]))
        if summed:
            main = main_kind(node_request.request, summed)
            check_group(job, main, group)
            if group.context != mask_context(node_request.run, node_request.request, group.keys, summed):
                raise ProtocolError("Masks would not be bound to this request.")
            if any(set(node_request.tasks[kind]) != set(node_request.tasks[main]) for kind in summed):
                raise ProtocolError("What is added up together must be asked of the same clients.")
        return group

    def masked(
        self,
        job: Job,
        node_request: NodeRequest,
        group: MaskingGroup,
        replies: dict[tuple[str, int], Message],
        admitted: Mapping[tuple[str, int], tuple[Slot, int]],
    ) -> dict[tuple[str, int], Message]:
        """The replies with those that are summed as one masked vector for each client."""
        from fedframe.network.secure_aggregation import COUNTS, main_kind, masked_reply, summed_kinds

        assert self.masker is not None
        summed = [kind for kind in node_request.tasks if kind in summed_kinds(job)]
        if not summed:
            return replies
        main = main_kind(node_request.request, summed)
        found = {each: reply for each, reply in replies.items() if each[0] not in summed}
        for client in node_request.tasks[main]:
            reply = replies[main, client]
            counts = {f"{COUNTS}{kind}": count_tensor(replies[kind, client]) for kind in summed if kind in COUNT_KINDS}
            if main in COUNT_KINDS:
                reply = Message(main, reply.round, client, numbers={"samples": 1, "loss": 0.0})
            reply = replace(reply, tensors={**reply.tensors, **counts})
            slot, again = admitted[main, client]
            purpose = f"{self.run}-{slot.name}" + (f"-again{again}" if again else "")
            found[main, client], diverged = masked_reply(job, purpose, reply, group, self.masker)
            if diverged and main == "train" and job.remembers:  # it counts as no change, so its state is as before
                job.store.forget_after(client, reply.round - 1)
        return found

    def reply(
        self, runtime: ClientRuntime, request: Message, kind: str, client: int, group: MaskingGroup | None
    ) -> Message:
        """The reply to one task for one client; counts leave the node as totals, not class by class."""
        if kind == HELLO:
            return hello_reply(runtime.job, client, self.masker.public if self.masker is not None else None)
        if kind in (AGREE, UNMASK):
            if group is None or self.masker is None:
                raise ProtocolError("This federation has not agreed on secure aggregation.")
            from fedframe.network.secure_aggregation import seeds_reply, signature_reply

            fewest, names = runtime.job.fewest(len(group.keys)), runtime.job.federation.names
            if kind == UNMASK:
                return seeds_reply(request, client, group, self.masker, fewest)
            return signature_reply(request, client, group, self.masker, fewest, lambda each: str(names[each]))
        if kind != request.kind:  # a piggybacked task is no part of a round: it has the plain learning rate
            request = replace(request, kind=kind, numbers={**request.numbers, "lr": runtime.job.settings.lr})
        reply = runtime.perform(request, client)
        if withholds_figures(runtime.job.settings):
            reply = noised_alone(runtime.job, reply)
        elif kind in COUNT_KINDS and group is None:
            reply = replace(reply, tensors={name: tensor.sum() for name, tensor in reply.tensors.items()})
        # The organiser gets no names of files that are at the node.
        kept = {name: value for name, value in reply.numbers.items() if name != CULPRIT}
        return replace(reply, numbers={name: finite_or_text(value) for name, value in kept.items()})


def count_tensor(reply: Message) -> torch.Tensor:
    """Right predictions of a reply as numbers of which a sum over clients makes means: see `SUMMED_COUNTS`."""
    samples, hits = (float(reply.tensors[name].sum()) for name in ("samples", "hits"))
    value = float(reply.tensors["value"]) if "value" in reply.tensors else hits / max(samples, 1.0)
    scored = float(samples > 0 and ("error" not in reply.tensors or float(reply.tensors["error"]) != NO_SCORE))
    diverged = float(reply.tensors["diverged"].sum()) if "diverged" in reply.tensors else 0.0
    found = [scored, scored * value, scored * value * samples, scored * samples, diverged]
    return torch.tensor(found, dtype=torch.float64)


def noised_alone(job: Job, reply: Message) -> Message:
    """What may leave of a reply where noise is promised: what has it, and nothing that has none."""
    if reply.kind == "train":
        return replace(reply, tensors={"update": reply.tensors["update"]}, numbers={"samples": 1})
    if reply.kind == "statistics" and release_of(job.method) is not None:  # its part has added the noise
        return replace(reply, numbers={"samples": 1})
    return replace(reply, tensors={}, numbers={})


def finite_or_text(value: Number) -> Number:
    """A number as envelopes hold it: diverged training must be recognised as that, not refused as unreadable."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def hello_reply(job: Job, client: int, key: str | None = None) -> Message:
    """Who a client is: how many samples it has, and whether its program and initial model are the federation's."""
    sizes = len(job.federation.train[client]), len(job.federation.local_test[client])
    if withholds_figures(job.settings) and sizes[0]:  # all weigh alike, and numbers of samples have no noise
        sizes = (1, 0)
    numbers: dict[str, Number] = {
        "train": sizes[0],
        "test": sizes[1],
        **versions(),
        "template": template_digest(job),
        "uploads": upload_digest(job),
        "members": members_digest(job.federation.names),
    }
    if key is not None:
        numbers["key"] = key
    return Message(HELLO, 0, client, numbers=numbers)


def versions() -> dict[str, str]:
    """The versions that must be the same everywhere; which processors torch was built for may differ."""
    return {
        "version": __version__,
        "torch": str(torch.__version__).partition("+")[0],
        "protocol": str(PROTOCOL),
    }


def template_digest(job: Job) -> str:
    """A short text that is equal on two machines if their initial models are, bit for bit."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named_tensors(job.template).items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def members_digest(names: Sequence[str]) -> str:
    """A short text that is equal on two machines if they know the same clients, in the same order."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()


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
