"""`fedframe federation join`: a node takes part with its own data, and says what leaves it before anything does."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch

from fedframe.core.batches import plain_batches
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.data.federation import Federation
from fedframe.data.new_client import load_new_client
from fedframe.engines.inline import InlineEngine
from fedframe.errors import DataError
from fedframe.federation.folder_lock import hold
from fedframe.federation.kit import Kit
from fedframe.federation.node_folder import in_words
from fedframe.jobs.build import JobMaker, check_device
from fedframe.network.flower.node import Node, Place
from fedframe.network.node import NodeRuntime, state_folder
from fedframe.network.node_data import seated
from fedframe.network.node_request import HELLO
from fedframe.runs.folder import RunFolder
from fedframe.runs.predictor import save_model
from fedframe.settings import Settings

if TYPE_CHECKING:
    from fedframe.network.masks import Masker

WHEN = {"train": "a round", "statistics": "at last"}
LEAVES = "leaves.log"  # what left this node, letter by letter
DEFAULT_SHARE = 0.25


class Membership:
    """A node's kit, data and folder."""

    def __init__(
        self,
        kit: Kit,
        data: str,
        folder: Path,
        test_share: float | None = None,
        label: str | None = None,
        device: str = "cpu",
    ) -> None:
        self.kit, self.folder = kit, folder
        agreement = kit.agreement
        self.settings: Settings = agreement.settings.model_copy(update={"device": device})  # each node's own affair
        check_device(device)  # before data are loaded for nothing
        usual = self.settings.local_test
        federation = load_new_client(
            data,
            agreement.form,
            share=test_share,
            default_share=DEFAULT_SHARE if usual == "global" else float(usual),
            seed=self.settings.seed,
            label=label or self.settings.label,
        )
        self.federation: Federation = seated(federation, kit.number, agreement.members)
        self.maker = JobMaker(self.settings, self.federation, None)
        self.done = False

    # -- before anything leaves ----------------------------------------------------------------------------------------
    def check(self) -> list[str]:
        """Try the data with the net; sentences on what was found."""
        job, client = self.maker.make(self.folder), self.kit.number
        rows = job.federation.train[client]
        source = job.federation.source
        if len(rows) == 0:
            raise DataError("There are no training samples; give more data, or a smaller test_share.")
        inputs = next(plain_batches(source, source.train, rows[: self.settings.batch], self.settings.batch))
        with torch.no_grad():
            logits = job.method.logits(job.fresh_model().eval(), inputs)
        if not bool(torch.isfinite(logits).all()):
            raise DataError("The net gives NaN or infinite values on these data; are they in the agreed units?")
        counts = job.federation.class_counts(client).tolist()
        held = ", ".join(f"{name} {n}" for name, n in zip(source.classes, counts, strict=True) if n)
        return [
            f"{len(rows):,} training and {len(job.federation.local_test[client]):,} test samples of shape "
            f"{' x '.join(map(str, source.train.x.shape))}: {held}.",
            f"A batch of {len(inputs)} went through {self.settings.model}: the data fit.",
            *job.federation.notes,
        ]

    def what_leaves(self) -> list[str]:
        """Names, shapes and sizes of all that leaves this node: those of replies that it makes on trial."""
        with tempfile.TemporaryDirectory() as place:
            job = JobMaker(self.settings.model_copy(update={"steps": 1}), self.federation, None).make(Path(place))
            engine = InlineEngine(job)
            server = Server(job, engine, lambda text: None)
            kinds = ["train"] + (["statistics"] if job.expected("statistics") else [])
            replies = [
                next(iter(engine.run(server.build_request(kind, number), [self.kit.number])))
                for number, kind in enumerate(kinds, start=1)
            ]
            engine.close()
        lines = ["What leaves this node: names, shapes and numbers, never a sample and never a label."]
        once = "the numbers of training and test samples, the versions of Fedframe and torch, a digest of the net"
        lines.append(f"  once     {once}{', a public key' if self.settings.secure else ''}")
        for reply in replies:
            lines += [f"  {WHEN[reply.kind]}  {text}" for text in self.reply_lines(reply)]
        lines.append("  a round  right predictions and samples of the own test data")
        lines.append("  at last  right predictions of the own model on the own test data")
        if job.remembers:
            lines.append("What stays here between rounds: this client's private state, and at the end its own model.")
        return lines

    def reply_lines(self, reply: Message) -> list[str]:
        """What a reply holds, or what is sent in its place."""
        if self.settings.secure:
            words = torch.Size([1 + sum(tensor.numel() for tensor in reply.tensors.values())])
            names = ", ".join([*reply.tensors, "loss"])
            return [
                f"{tensor_text('masked', words, 8)}: {names}, which only the sum over clients shows; what masks were "
                "made of, once all masked replies are there",
                "numbers: samples",
            ]
        tensors = [tensor_text(name, t.shape, t.element_size()) for name, t in reply.tensors.items()]
        return [*tensors, f"numbers: {', '.join(reply.numbers)}"]

    # -- taking part ---------------------------------------------------------------------------------------------------
    lock: IO[str] | None = None  # held while this process takes part: see `make_node`

    def work(self, say: Callable[[str], None]) -> Callable[[bytes], bytes]:
        """What answers letters, and keeps a log of what leaves."""
        made = self.masker(say) if self.settings.secure else None  # now: keys are compared before the training begins
        masker = (lambda: made) if made is not None else None
        last: list[str] = []  # what is to be said after the line on the last letter
        work = NodeRuntime(
            self.make_job, [self.kit.number], lambda job, request: self.keep(job, request, last.append), masker
        )

        def answer(letter: bytes) -> bytes:
            began = time.monotonic()
            errand, replies, content = work.answer(letter)
            self.log(replies, len(content))
            if set(errand.tasks) != {HELLO}:
                took = f"{', '.join(errand.tasks)} in {time.monotonic() - began:.1f} s"
                when = f"round {errand.request.round}" if errand.request.round <= self.settings.rounds else "the end"
                say(f"{when}: {took}, {len(content):,} bytes back")
            while last:
                say(last.pop(0))
            return content

        return answer

    def masker(self, say: Callable[[str], None]) -> Masker:
        """This node's key for secure aggregation; it is made here and never leaves."""
        from fedframe.network.masks import Masker, fingerprint

        made = Masker(self.folder, say)
        say(f"This node's key for adding up: {fingerprint(made.public)}. Tell the others, and compare theirs.")
        return made

    def make_job(self, run: str) -> Job:
        """The job of a run; its folder can be used like any run's once the run is over."""
        path = state_folder(self.folder, run)
        path.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(path)
        folder.write_settings(self.maker.settings)
        folder.write_names(self.federation.names)
        return self.maker.make(path, self.folder)

    def keep(self, job: Job, request: Message, say: Callable[[str], None]) -> None:
        """The run is over: keep the shared model beside this client's own."""
        fixed = {name[6:]: tensor for name, tensor in request.tensors.items() if name.startswith("fixed/")}
        save_model(job.folder, job, request.tensors["model"], fixed)
        self.done = True
        own = f" --client {self.kit.name}" if self.settings.personal else ""
        say(f"The run is over. Predict with: fedframe predict {job.folder} INPUT{own}")

    def log(self, replies: Sequence[Message], size: int) -> None:
        """Write down what leaves, before it does."""
        lines = []
        for reply in replies:
            tensors = ", ".join(tensor_note(name, tensor) for name, tensor in reply.tensors.items())
            numbers = ", ".join(f"{name}={value}" for name, value in reply.numbers.items())
            lines.append(f"round {reply.round} {reply.kind}: {tensors or 'no tensors'}; {numbers}")
        self.log_lines([*lines, f"letter of {size:,} bytes"])

    def log_error(self, text: str) -> None:
        """Write down what the organiser is told of an error."""
        self.log_lines([f"error: {' '.join(text.split())}"])

    def log_lines(self, lines: Sequence[str]) -> None:
        """Add lines to the log of what leaves."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with (self.folder / LEAVES).open("a") as file:
            file.writelines(f"{stamp} {line}\n" for line in lines)


def tensor_text(name: str, shape: torch.Size, width: int) -> str:
    """A tensor in words."""
    return f"{name}: {' x '.join(map(str, shape)) or 'one'} numbers, {width * shape.numel():,} bytes"


def tensor_note(name: str, tensor: torch.Tensor) -> str:
    """A tensor in the log of what leaves: its form, and its value if it has but one."""
    value = f" = {tensor.item()}" if tensor.numel() == 1 else ""
    return f"{name} {str(tensor.dtype)[6:]} {tuple(tensor.shape)}{value}"


def make_node(member: Membership, say: Callable[[str], None]) -> Node:
    """The node, ready to join; its kit is kept in its folder, which no other process may use meanwhile."""
    folder, kit = member.folder, member.kit
    with in_words(kit, folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        member.lock = member.lock or hold(folder)  # before the kit: another one must not take a running node's place
        kit.keep(folder)
    place = Place(kit.agreement.address, folder / "ca.pem", folder / "node.key", folder, kit.name)
    return Node(place, member.work(say), say, member.log_error)
