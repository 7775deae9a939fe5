"""The client's side: one loop over batches for every method, and the other things a client is asked to do.

A `Site` is a place where clients' work is done: this process, a worker process, or one organisation. It holds the data,
one model and the method, takes an order for a client (a unit) and gives the reply. A `Work` is one client's work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedframe.core.batches import plain_batches, training_batches
from fedframe.core.message import Message, Number, all_finite
from fedframe.core.model import copy_tensors, load_tensors
from fedframe.core.optimise import Optimizer, make_optimizer
from fedframe.core.seeds import generator_for, seed_everything, seed_for
from fedframe.errors import FedframeError, RunError

if TYPE_CHECKING:
    from fedframe.core.job import Job


@dataclass
class Work:
    """One client's work in one round: what it has, what it received, and what it will reply."""

    site: Site
    kind: str  # of the order: train, statistics or personalise
    client: int
    round: int
    lr: float
    rows: Tensor  # of the training samples
    received: Mapping[str, Tensor]
    memory: dict[str, Tensor]  # private, survives rounds; a part's names start with the part's name
    generator: torch.Generator
    reply: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, Number] = field(default_factory=dict)
    steps: int = 0

    # of the batch under way
    inputs: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    features: Tensor = field(init=False)  # as they leave the backbone
    logits: Tensor = field(init=False)
    optimizer: Optimizer = field(init=False)
    parameters: list[nn.Parameter] = field(init=False)  # those that are trained

    def __post_init__(self) -> None:
        self.job = self.site.job
        self.model = self.site.model
        self.start = self.received["model"]  # the server's weights as one flat vector

    @property
    def class_counts(self) -> Tensor:
        """How many training samples the client has of each class."""
        return self.job.federation.class_counts(self.client)

    def fit(self, epochs: int, steps: int | None = None, only: Callable[[str], bool] | None = None) -> float:
        """Train on the client's own data; returns the mean loss.

        `only` picks the weights to train by name, also frozen ones; otherwise all that are trained in rounds are.
        """
        return self.site.fit(self, epochs, steps, only)


class Site:
    """The data, one model and the method; performs orders client by client."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.model = job.fresh_model()
        self.flat = job.roles.layout.bind(self.model)
        # What must be as in the beginning for every client: private tensors nobody has stored yet, integer counters.
        self.initial = copy_tensors(self.model, (*job.roles.private, *job.roles.fixed))
        self.transforms = job.method.answering("transform")
        self.penalties = job.method.answering("penalty")
        self.corrections = job.method.answering("correct")
        self.after_steps = job.method.answering("after_step")
        self.loss = job.method.slot("loss")
        self.tools: dict[str, Any] = {}  # what a part wants to make once and use for every client, such as a second net
        step = job.method.optional_slot("step")
        self.step: Callable[[Work], Tensor] = step.step if step else self.gradient_step
        self.actions = {
            "train": self.train,
            "score": self.score,
            "statistics": self.statistics,
            "personalise": self.personalise,
        }

    def perform(self, order: Message, unit: int) -> Message:
        """Do what the order says for one unit (a client, or a piece of a test set)."""
        try:
            seed_everything(seed_for(self.job.settings.seed, order.kind, order.round, unit))  # dropout and the like
            return self.actions[order.kind](order, unit)
        except FedframeError:
            raise
        except Exception as error:
            who = f"piece {unit} of the test data" if order.kind == "score" else f"client {unit}"
            raise RunError(f"Round {order.round}, {order.kind}, {who}: {type(error).__name__}: {error}") from error

    # -- the orders ----------------------------------------------------------------------------------------------------
    def train(self, order: Message, client: int) -> Message:
        """One client's round: load the server's model, train, reply with the change."""
        work = self.begin(order, client)
        settings = self.job.settings
        for part in self.job.method.answering("begin"):
            part.begin(work)
        loss = work.fit(settings.epochs, settings.steps)
        work.reply["update"] = (self.flat - work.start).cpu()
        work.numbers |= {"samples": len(work.rows), "steps": work.steps, "loss": loss}
        for part in self.job.method.answering("finish"):
            part.finish(work)
        self.remember(work)
        return Message(order.kind, order.round, client, work.reply, work.numbers)

    @torch.no_grad()
    def score(self, order: Message, piece: int) -> Message:
        """What the server's model predicts for one piece of a test set."""
        self.load(order.tensors, {})
        samples, rows, labels = self.job.test_piece(str(order.numbers["set"]), piece)
        logits = self.predict(plain_batches(self.job.federation.source, samples, rows, self.job.settings.eval_batch))
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        tensors = {"predicted": logits.argmax(1).to(torch.int32)}
        return Message(order.kind, order.round, piece, tensors, {"loss": float(loss)})

    def statistics(self, order: Message, client: int) -> Message:
        """What one client contributes to the server stage."""
        work = self.begin(order, client)
        self.model.eval()
        tensors = self.job.method.slot("server_stage").statistics(work)
        return Message(order.kind, order.round, client, tensors, {"samples": len(work.rows)})

    def personalise(self, order: Message, client: int) -> Message:
        """Make the client's own model, keep it, and say what it predicts for the client's own test data."""
        work = self.begin(order, client)
        self.job.method.slot("client_stage").personalise(work)
        self.job.keep_personal(client, self.model, work.start)
        samples, rows, _ = self.job.local_test(client)
        source = self.job.federation.source
        with torch.no_grad():
            logits = self.predict(plain_batches(source, samples, rows, self.job.settings.eval_batch))
        return Message(order.kind, order.round, client, {"predicted": logits.argmax(1).to(torch.int32)}, work.numbers)

    # -- what they share -----------------------------------------------------------------------------------------------
    def begin(self, order: Message, client: int) -> Work:
        """Load the server's model and the client's memory."""
        job = self.job
        received = {name: tensor.to(self.flat.device) for name, tensor in order.tensors.items()}
        memory = job.store.load(client, order.round) if job.remembers else {}
        self.load(received, memory)
        seed = job.settings.seed
        generator = generator_for(seed, "batches", order.kind, order.round, client)
        lr = float(order.numbers["lr"])
        rows = job.federation.train[client]
        return Work(self, order.kind, client, order.round, lr, rows, received, memory, generator)

    def load(self, received: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        """Set every tensor of the model: shared from the server, private from memory, the rest as in the beginning.

        A tensor that is fixed in training may have been replaced by the server stage; it is then received by name.
        """
        with torch.no_grad():
            self.flat.copy_(received["model"])
        if self.initial:
            kept = {
                name: received.get(f"fixed/{name}", memory.get(f"model/{name}", value))
                for name, value in self.initial.items()
            }
            load_tensors(self.model, kept)

    def remember(self, work: Work) -> None:
        """Keep the client's private state, unless its training went wrong."""
        if not self.job.remembers or not all(all_finite(tensor) for tensor in work.reply.values()):
            return
        private = copy_tensors(self.model, self.job.roles.private)
        work.memory |= {f"model/{name}": tensor for name, tensor in private.items()}
        self.job.store.save(work.client, work.round, work.memory)

    def predict(self, batches: Iterable[Tensor]) -> Tensor:
        """Class scores of the model as it stands, on the CPU."""
        self.model.eval()
        logits = [self.job.method.logits(self.model, inputs.to(self.flat.device)).cpu() for inputs in batches]
        return torch.cat(logits) if logits else torch.empty(0, self.model.classes)

    # -- the loop over batches -----------------------------------------------------------------------------------------
    def fit(self, work: Work, epochs: int, steps: int | None, only: Callable[[str], bool] | None) -> float:
        """Train some weights; which of them learn is as before when it is over."""
        named = dict(self.model.named_parameters())
        before = {name: p.requires_grad for name, p in named.items()}
        try:
            for name, p in named.items():
                p.requires_grad_(before[name] if only is None else only(name))
            work.parameters = [p for p in named.values() if p.requires_grad]
            return self.loop(work, epochs, steps, keep_state=only is None and work.kind == "train")
        finally:
            for name, p in named.items():
                p.requires_grad_(before[name])

    def loop(self, work: Work, epochs: int, steps: int | None, keep_state: bool) -> float:
        """The one loop over batches: `epochs` times through the client's data, or `steps` batches."""
        settings = self.job.settings
        work.optimizer = make_optimizer(settings, work.parameters, work.lr)
        keeps = settings.keep_optimizer and keep_state
        if keeps:
            restore_optimizer(work)
        self.model.train()
        if self.job.batch_norm and len(work.rows) == 1:
            self.model.eval()  # one sample has no batch statistics; the server's running statistics stand in
        device = self.flat.device
        total = torch.zeros((), device=device)
        seen = 0
        limit = steps if steps is not None else -1
        epoch = 0
        while limit != 0 and (steps is not None or epoch < epochs):
            for part in self.job.method.answering("begin_epoch"):
                part.begin_epoch(work, epoch)
            for inputs, labels in training_batches(
                self.job.federation.source,
                work.rows,
                settings.batch,
                work.generator,
                self.job.augment,
                lonely_last=not self.job.batch_norm,
            ):
                work.inputs, work.labels = inputs.to(device), labels.to(device)
                loss = self.step(work)
                work.steps += 1
                limit -= 1
                seen += len(labels)
                total += loss.detach() * len(labels)
                if limit == 0:
                    break
            epoch += 1
        if keeps:
            keep_optimizer(work)
        return float(total) / max(seen, 1)

    def gradient_step(self, work: Work) -> Tensor:
        """One optimiser step on one batch, with every part's say."""
        work.features = features = self.model(work.inputs)
        for part in self.transforms:
            features = part.transform(self.model, features, work)
        work.logits = self.model.head(features)
        loss = self.loss.loss(work.logits, work.labels, work)
        for part in self.penalties:
            loss = loss + part.penalty(work)
        work.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for part in self.corrections:
            part.correct(work)
        if self.job.settings.clip is not None:
            nn.utils.clip_grad_norm_(work.parameters, self.job.settings.clip)
        work.optimizer.step()
        for part in self.after_steps:
            part.after_step(work)
        return loss


def keep_optimizer(work: Work) -> None:
    """Put the optimiser's state (momentum and the like) into the client's memory."""
    for index, state in work.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                work.memory[f"optimizer/{index}/{key}"] = value.detach().cpu().clone()


def restore_optimizer(work: Work) -> None:
    """Take the optimiser's state back out of the client's memory."""
    kept: dict[int, dict[str, Tensor]] = {}
    for name, value in work.memory.items():
        if name.startswith("optimizer/"):
            _, index, key = name.split("/")
            kept.setdefault(int(index), {})[key] = value
    if kept:
        groups = work.optimizer.state_dict()["param_groups"]
        work.optimizer.load_state_dict({"state": kept, "param_groups": groups})
