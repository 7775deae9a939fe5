"""The runtime of clients in one process: this one, a worker process, or a node of an organisation.

It holds the data, one model and the method, takes a request for a unit (a client, or a piece of a test set) and returns
the reply. Whatever a client leaves in the model is overwritten before the next one begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedframe.core.batches import plain_batches
from fedframe.core.client_context import ClientContext
from fedframe.core.client_groups import GROUPED, join_replies, single_request
from fedframe.core.client_loop import StepHooks, compute_gradient, fit
from fedframe.core.culprit import find_culprit
from fedframe.core.declared import client_memory, reply_numbers, reply_tensors
from fedframe.core.feature_cache import FeatureCache, caches_features
from fedframe.core.hook_errors import call_in_place, describe_hook_error
from fedframe.core.imbalance import CLASSES
from fedframe.core.job import personal_path
from fedframe.core.measures import Predictions
from fedframe.core.message import CULPRIT, STAGE, Message, Number, all_finite
from fedframe.core.model import copy_tensors, load_tensors
from fedframe.core.part import Part
from fedframe.core.personal import make_personal_models
from fedframe.core.precision import full_precision
from fedframe.core.privacy import clipped, local_noise, node_deviation, noise_purpose
from fedframe.core.received import Received
from fedframe.core.scratch import Key, Scratch
from fedframe.core.stacked_net import StackedNet, layer_chain
from fedframe.core.stacked_training import StackMember, train_stack
from fedframe.core.target_measures import LabelPredictions, Single, evidence_size, sum_up
from fedframe.data import Samples
from fedframe.data.target import Target
from fedframe.errors import FedframeError, RunError
from fedframe.util.files import read_tensors
from fedframe.util.seeds import generator_for, seed_everything, seed_for

if TYPE_CHECKING:
    from fedframe.core.job import Job

STACKED_NET = Key[StackedNet]("fedframe/stacked_net")
PER_SAMPLE = ("predicted", "probabilities")  # of a reply of several clients: one after the other
NO_SCORE = -1.0  # what a client sends where the metric has no meaning for its test data
MOST_VISITS = 10  # rounds that a client that was in none makes up for: more cost time and gained almost nothing


class ClientRuntime:
    """The data, one model and the method; performs requests unit by unit."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.model = job.fresh_model()
        self.flat = job.roles.layout.bind(self.model)
        # Restored for every client: private tensors that are not stored yet, and integer counters.
        self.initial = copy_tensors(self.model, (*job.roles.private, *job.roles.fixed))
        self.all_hooks, self.no_hooks = StepHooks.of(job.method, job.method.parts), StepHooks.of(job.method, ())
        self.cache = FeatureCache(job) if caches_features(job) else None
        self.tools = Scratch()  # what a part makes once and uses for every client, such as a second net
        self.actions: dict[str, Callable[[Message, int], Message]] = {
            "train": self.train,
            GROUPED: self.train_group,
            "score": self.score,
            "client": self.score_client,
            "own": self.score_own,
            "statistics": self.statistics,
            "personalise": self.personalise,
            "personalise_group": self.personalise_group,
            "measure": self.measure,
            "end": self.end,
            CLASSES: self.count_classes,
        }
        self.own_predictions: dict[int, Single] = {}  # of own models that were made here

    def perform(self, request: Message, unit: int) -> Message:
        """Do what the request says for one unit."""
        with self.errors_named(request, unit):
            seed_everything(seed_for(self.job.settings.seed, request.kind, request.round, unit))  # dropout and the like
            return self.actions[request.kind](request, unit).checked()

    @contextmanager
    def errors_named(self, request: Message, unit: int, together: Sequence[int] = ()) -> Iterator[None]:
        """Say of an unexpected error where it happened: at a unit, or at clients that train together."""
        try:
            yield
        except FedframeError:
            raise
        except Exception as error:
            names = {
                "score": "piece {} of the test data",
                "personalise_group": "group {} of personal models",
                GROUPED: "group {} of clients",
            }
            who = names.get(request.kind, "client {}").format(unit)
            if len(together) > 1:
                who = f"clients {', '.join(map(str, together))} together"
            raise RunError(f"Round {request.round}, {request.kind}, {who}: {describe_hook_error(error)}") from error

    # -- the requests --------------------------------------------------------------------------------------------------
    def train(self, request: Message, client: int) -> Message:
        """One client's round: load the server's model, train, reply with the change."""
        if self.job.trains_together:  # the same arithmetic, whether or not there are others
            return self.train_together(request, [client])[0]
        context = self.begin(request, client)
        settings = self.job.settings
        loss = fit(context, self.all_hooks, settings.epochs, settings.steps, keeps_optimizer=settings.keep_optimizer)
        return self.reply_to_training(context, request, loss)

    def train_group(self, request: Message, group: int) -> Message:
        """The rounds of several clients, together or one after the other."""
        single, clients = single_request(request, group)
        together = self.job.trains_together
        replies = self.train_together(single, clients) if together else [self.perform(single, c) for c in clients]
        return join_replies(request, group, replies)

    def train_together(self, request: Message, clients: Sequence[int]) -> list[Message]:
        """The rounds of clients whose steps are taken together, each as if it were alone."""
        net = self.tools.get(STACKED_NET)
        if net is None:
            chain = layer_chain(self.job.template.backbone)
            assert chain is not None, self.job.obstacle
            net = self.tools[STACKED_NET] = StackedNet(self.model, chain)
        members, states = [], []
        for client in clients:
            with self.errors_named(request, client):
                seed_everything(seed_for(self.job.settings.seed, request.kind, request.round, client))
                context = self.begin(request, client)
            members.append(StackMember(context, net.take()))
            states.append(torch.get_rng_state())
        with self.errors_named(request, clients[0], clients):
            train_stack(self.job, net, members)
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}  # finding them takes a while
        replies = []
        for member, state in zip(members, states, strict=True):
            context = member.context
            net.give_back(member.tensors)
            torch.set_rng_state(state)
            context.named = dict(named)
            with self.errors_named(request, context.client):
                replies.append(self.reply_to_training(context, request, member.loss))
        return replies

    def reply_to_training(self, context: ClientContext, request: Message, loss: float) -> Message:
        """What a client sends and keeps after its training."""
        client = context.client
        context.reply["update"] = (self.flat - context.start).cpu()
        context.numbers |= {"samples": len(context.rows), "steps": context.steps, "loss": loss}
        private = copy_tensors(self.model, self.job.roles.private)  # before a part trains another model here
        for part in self.job.method.parts_with("finish"):
            call_in_place(part, "finish", context)
        self.check_uploads({**context.reply, **context.numbers}, "round")
        self.remember(context, private)
        self.protect(context, request)
        reply = Message(request.kind, request.round, client, dict(context.reply), dict(context.numbers))
        if math.isfinite(loss) and all_finite(context.reply["update"]):
            return reply
        culprit = find_culprit(self.begin(request, client), self.all_hooks)
        return reply if culprit is None else replace(reply, numbers={**reply.numbers, CULPRIT: culprit})

    def protect(self, context: ClientContext, request: Message) -> None:
        """Bound the update, and hide it in the client's own noise, as the privacy settings say."""
        settings = self.job.settings
        if settings.privacy_clip is None:
            return
        update = context.reply["update"]
        if settings.privacy_at == "node" and not all_finite(update):
            update = torch.zeros_like(update)  # that a client's training went wrong would tell of its data, too
        update = clipped(update, settings.privacy_clip)
        if settings.privacy_at == "node":
            deviation = settings.privacy_clip * node_deviation(self.job, self.job.clients_per_round)
            purpose = noise_purpose(self.job, f"noise {context.round} {context.client}")
            update = local_noise(update, deviation, self.job.home or self.job.folder, purpose, request.tensors["model"])
        context.reply["update"] = update

    def check_uploads(self, sent: Mapping[str, Tensor | Number], when: str, stage: int = 0) -> None:
        """Refuse a reply that lacks what a part has declared, or has it in another shape: an error of the part."""
        for name, upload in self.job.declared(when, stage).items():
            part, wanted = self.job.upload_owners[name], tuple(upload.shape)
            if name not in sent:
                raise RunError(f"The part {part!r} declares {name!r} in 'uploads' and does not send it.")
            value = sent[name]
            if isinstance(value, Tensor) and tuple(value.shape) != wanted:
                raise RunError(
                    f"The part {part!r} sends {name!r} with shape {tuple(value.shape)}, and its 'uploads' declares "
                    f"{wanted}; make them agree."
                )

    @torch.no_grad()
    def score(self, request: Message, piece: int) -> Message:
        """What the server's model predicts for one piece of a test set."""
        self.load(request.tensors, {})
        which = str(request.numbers["set"])
        samples, rows, labels = self.job.test_piece(which, piece)
        logits = self.predict(samples, rows, (which, piece))
        loss = summed_loss(self.job.target, logits, labels)
        tensors = {"predicted": logits.argmax(1).to(torch.int32), "probabilities": self.probabilities(logits)}
        return Message(request.kind, request.round, piece, tensors, {"loss": float(loss)})

    def score_client(self, request: Message, client: int) -> Message:
        """How the server's model does on the client's own test data, where only the client has them."""
        self.load(request.tensors, {})
        return Message(request.kind, request.round, client, self.count_hits(client))

    def score_own(self, request: Message, client: int) -> Message:
        """How the client's own model, as rounds have left it, does on the client's own test data."""
        self.load_personal(self.begin(request, client))
        return Message(request.kind, request.round, client, self.count_hits(client))

    def statistics(self, request: Message, client: int) -> Message:
        """What one client contributes to the server stage."""
        context = self.begin(request, client)
        context.stage = int(request.numbers.get(STAGE, 0))
        self.catch_up(context)  # features of untrained private layers would spoil the sums over all clients
        self.model.eval()
        part, declared = self.job.method.slot("server_stage"), self.job.expected("statistics", context.stage)
        with full_precision(self.model):
            tensors = part.statistics(context)
        for name in tensors.keys() - declared.keys():
            shape = tuple(tensors[name].shape)
            stage = f", stage={context.stage}" if context.stage else ""
            raise RunError(
                f"The part {part.name!r} sends {name!r} without declaring it; add it to the part's 'uploads': "
                f"{{{name!r}: Upload({shape}, 'sum', when='statistics'{stage})}}."
            )
        self.check_uploads(tensors, "statistics", context.stage)
        return Message(request.kind, request.round, client, tensors, {"samples": len(context.rows), "loss": 0.0})

    def personalise(self, request: Message, client: int) -> Message:
        """Make the client's own model, keep it, and say how it does on the client's own test data."""
        found = make_personal_models(self, request, [client])[0]
        predicted, probabilities = found.pop("predicted"), found.pop("probabilities")
        self.own_predictions[client] = self.job.predictions(probabilities, self.job.local_test(client)[2], predicted)
        return Message(request.kind, request.round, client, found)

    def measure(self, request: Message, client: int) -> Message:
        """Tallies of the shared model's and of the client's own predictions, where pooled ones need nothing more."""
        bins, target = self.job.settings.score_bins, self.job.target
        nothing = torch.zeros(evidence_size(target, self.model.classes, bins), dtype=torch.float64)
        self.load(request.tensors, {})
        shared = sum_up(self.predict_local(client), bins) if self.job.shares_a_model else nothing
        own = self.own_predictions.get(client) or self.predict_with_kept(request, client)
        tensors = {"tally/shared": shared, "tally/personal": nothing.clone() if own is None else sum_up(own, bins)}
        numbers: dict[str, Number] = {"samples": max(1, len(self.job.federation.train[client])), "loss": 0.0}
        return Message(request.kind, request.round, client, tensors, numbers)

    def predict_with_kept(self, request: Message, client: int) -> Single | None:
        """What the client's own model predicts, if an earlier process has made and kept it."""
        path = personal_path(self.job.folder, client)
        if not (self.job.settings.personal and path.exists()):
            return None
        self.load(request.tensors, {})
        load_tensors(self.model, read_tensors(path)[0])
        return self.predict_local(client)

    def end(self, request: Message, client: int) -> Message:
        """Nothing is left to do: a node keeps the model that comes with this request."""
        return Message(request.kind, request.round, client)

    def count_classes(self, request: Message, client: int) -> Message:
        """How many of its own test samples the client has of each class."""
        labels = self.job.local_test(client)[2]
        counts = labels.bincount(minlength=self.model.classes).double()
        numbers: dict[str, Number] = {"samples": max(1, len(self.job.federation.train[client])), "loss": 0.0}
        return Message(request.kind, request.round, client, {CLASSES: counts}, numbers)

    def personalise_group(self, request: Message, group: int) -> Message:
        """The same for a group of clients."""
        found = make_personal_models(self, request, self.job.personal_groups[group])
        tensors = {
            name: (torch.cat if name in PER_SAMPLE else torch.stack)([f[name] for f in found]) for name in found[0]
        }
        return Message(request.kind, request.round, group, tensors)

    def catch_up(self, context: ClientContext) -> None:
        """A client that was in no round first trains what rounds would have left with it: its private tensors, alone.

        It trains them for as long as an average client has, up to a bound, by the loss of the method and of the parts
        that own them. The rest of the model stays the server's, also the statistics that BatchNorm gathers on the way.
        """
        job = self.job
        learns = {name for name, p in self.model.named_parameters() if p.requires_grad} & {*job.roles.private}
        if not learns or any(f"model/{name}" in context.memory.values_by_name for name in learns):
            return
        self.train_missed_rounds(context, job.method.parts_with("private"), learns.__contains__)
        private = copy_tensors(self.model, job.roles.private)
        self.load(context.received, {f"model/{name}": tensor for name, tensor in private.items()})

    def train_missed_rounds(
        self, context: ClientContext, parts: Sequence[Part], only: Callable[[str], bool] | None
    ) -> None:
        """Train for as long as an average client was in rounds, up to a bound."""
        settings = self.job.settings
        visits = min(max(1, round(settings.rounds * settings.participation)), MOST_VISITS)
        steps = visits * settings.steps if settings.steps is not None else None
        context.fit(visits * settings.epochs, steps, only=only, parts=parts)

    # -- what they share -----------------------------------------------------------------------------------------------
    def begin(self, request: Message, client: int) -> ClientContext:
        """Load the server's model and the client's memory, and let parts prepare."""
        job = self.job
        received = Received(job, {name: tensor.to(self.flat.device) for name, tensor in request.tensors.items()})
        kept = job.store.load(client, request.round) if job.remembers else {}
        self.load(received, kept)
        memory = client_memory(job.memory_names, kept)
        reply, numbers = reply_tensors(job.expected("round")), reply_numbers(job.numbers)
        otherwise, reply.advice = reply.advice, lambda name, value: self.upload_advice(name) or otherwise(name, value)
        generator = generator_for(job.settings.seed, "batches", request.kind, request.round, client)
        rows, lr = job.federation.train[client], float(request.numbers["lr"])
        context = ClientContext(
            self, request.kind, client, request.round, lr, rows, received, memory, generator, reply, numbers
        )
        for part in job.method.parts_with("begin"):
            call_in_place(part, "begin", context)
        return context

    def upload_advice(self, name: str) -> str:
        """What to do about a tensor that a round sends and that is declared, but for the server stage."""
        upload = self.job.uploads.get(name)
        if upload is None or upload.when == "round":
            return ""
        return f"its Upload has when={upload.when!r}, which is for the server stage: drop that to send it in rounds."

    def load_personal(self, context: ClientContext) -> None:
        """Go on with the client's own model, where it is more than the shared one with private tensors."""
        part = self.job.method.optional_slot("load_personal")
        if part is not None:
            call_in_place(part, "load_personal", context)

    def load(self, received: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        """Set every tensor of the model: shared from the server, private from memory, the rest as in the beginning.

        A tensor that is fixed in training may have been changed by the server; it is then received by name.
        """
        with torch.no_grad():
            self.flat.copy_(received["model"])
        if self.initial:
            kept = {
                name: received.get(f"fixed/{name}", memory.get(f"model/{name}", value))
                for name, value in self.initial.items()
            }
            load_tensors(self.model, kept)

    def remember(self, context: ClientContext, private: dict[str, Tensor]) -> None:
        """Keep the client's private state, unless its training went wrong."""
        if not self.job.remembers:
            return
        kept = context.memory.values_by_name | {f"model/{name}": tensor for name, tensor in private.items()}
        floats = [t for t in (*context.reply.values(), *kept.values()) if t.is_floating_point()]
        if all(all_finite(tensor) for tensor in floats):
            self.job.store.save(context.client, context.round, kept)

    def compute_gradient(self, context: ClientContext) -> Tensor:
        """The gradient of a batch, for parts that take steps of their own."""
        return compute_gradient(context)

    def fit(
        self,
        context: ClientContext,
        epochs: int,
        steps: int | None,
        only: Callable[[str], bool] | None,
        parts: Sequence[Part] | None,
        loss: Part | None,
    ) -> float:
        """Training that a part asks for, beside the round's own."""
        hooks = self.all_hooks if context.training else self.no_hooks
        if parts is not None or loss is not None:
            chosen = parts if parts is not None else self.job.method.parts if context.training else ()
            hooks = StepHooks.of(self.job.method, chosen, loss)
        return fit(context, hooks, epochs, steps, only)

    def count_hits(self, client: int, predictions: Single | None = None) -> dict[str, Tensor]:
        """Right predictions and samples of each class in the client's own test data, and the metric if another.

        Where no classes are learned there are none to count: samples stand in the first place.
        """
        found = predictions or self.predict_local(client)
        counts = {name: torch.zeros(self.model.classes, dtype=torch.int64) for name in ("hits", "samples")}
        if isinstance(found, Predictions):
            matrix = torch.from_numpy(found.confusion)
            counts = {"hits": matrix.diagonal().contiguous(), "samples": matrix.sum(1)}
        else:
            counts["samples"][0] = found.samples
        if self.job.settings.score_metric == "accuracy" and self.job.target is None:
            return counts
        score = self.job.score(found)
        value, error = (score.value, score.error) if score is not None else (NO_SCORE, NO_SCORE)
        return {
            **counts,
            "value": torch.tensor(value, dtype=torch.float64),
            "error": torch.tensor(error, dtype=torch.float64),
        }

    @torch.no_grad()
    def predict_local(self, client: int) -> Single:
        """What the model as it stands predicts for the client's own test data."""
        samples, rows, labels = self.job.local_test(client)
        logits = self.predict(samples, rows, ("local test", client))
        return self.job.predictions(self.probabilities(logits), labels, logits.argmax(1))

    def outputs(self, found: Single) -> dict[str, Tensor]:
        """Predictions as tensors of a reply."""
        if isinstance(found, Predictions):
            predicted, answers = torch.from_numpy(found.predicted), found.probabilities
        else:
            predicted = torch.zeros(found.samples, dtype=torch.int64)
            answers = found.probabilities if isinstance(found, LabelPredictions) else found.truth + found.error
        return {"predicted": predicted, "probabilities": torch.from_numpy(answers).float()}

    def probabilities(self, logits: Tensor) -> Tensor:
        """The class probabilities that logits stand for."""
        return self.job.method.slot("loss").probabilities(logits)

    def predict(self, samples: Samples, rows: Tensor, name: Hashable) -> Tensor:
        """Class scores of the model as it stands, on the CPU; `name` is that of the samples."""
        self.model.eval()
        size, method = self.job.settings.eval_batch, self.job.method
        if self.cache is not None:
            features = self.cache.of(name, lambda: self.frozen_features(samples, rows))
            batches = features.split(size) if len(rows) else ()  # type: ignore[no-untyped-call]
            logits = [method.classify(self.model, method.refine(self.model, part)).cpu() for part in batches]
        else:
            inputs = plain_batches(self.job.federation.source, samples, rows, size)
            logits = [method.logits(self.model, part.to(self.flat.device)).cpu() for part in inputs]
        return torch.cat(logits) if logits else torch.empty(0, self.model.classes)

    def batch_features(self, context: ClientContext) -> Tensor:
        """Features of the batch under way; those of a frozen backbone are computed once."""
        if self.cache is not None:
            own = self.job.federation.train[context.client]
            train = self.job.federation.source.train
            found = self.cache.batch(context.client, context.batch_rows, lambda: self.frozen_features(train, own))
            if found is not None:
                return found
        features: Tensor = context.model(context.inputs)
        return features

    def embeddings(self, rows: Tensor, client: int | None = None) -> Tensor:
        """Features of training rows as they reach the classifier in prediction; `client` says whose, if it is known."""
        train = self.job.federation.source.train
        own = self.job.federation.train[client] if client is not None else rows[:0]
        if self.cache is not None and len(rows) and torch.equal(rows, own):
            with torch.no_grad():
                self.model.eval()
                features = self.cache.of(client, lambda: self.frozen_features(train, rows))
                pieces = features.split(self.job.settings.eval_batch)  # type: ignore[no-untyped-call]
                return torch.cat([self.job.method.refine(self.model, part) for part in pieces])
        return self._over_rows(train, rows, lambda inputs: self.job.method.embed(self.model, inputs), self.model.dim)

    def features(self, rows: Tensor) -> Tensor:
        """Features of training rows as they leave the backbone in prediction."""
        return self._over_rows(self.job.federation.source.train, rows, self.model, 0)

    @torch.no_grad()
    def _over_rows(self, samples: Samples, rows: Tensor, net: Callable[[Tensor], Tensor], width: int) -> Tensor:
        self.model.eval()
        batches = plain_batches(self.job.federation.source, samples, rows, self.job.settings.eval_batch)
        found = [net(inputs.to(self.flat.device)) for inputs in batches]
        return torch.cat(found) if found else torch.empty(0, width, device=self.flat.device)

    @torch.no_grad()
    def frozen_features(self, samples: Samples, rows: Tensor) -> Tensor:
        """Features of a frozen backbone, which is in evaluation mode whatever the rest of the model is in."""
        batches = plain_batches(self.job.federation.source, samples, rows, self.job.settings.eval_batch)
        found = [self.model(inputs.to(self.flat.device)) for inputs in batches]
        return torch.cat(found) if found else torch.empty(0, self.model.dim, device=self.flat.device)


def summed_loss(target: Target | None, logits: Tensor, truth: Tensor) -> Tensor:
    """The loss that is shown of predictions on test data, summed over samples, whatever the method minimises."""
    if target is None:
        return nn.functional.cross_entropy(logits, truth, reduction="sum")
    if target.task == "multilabel":
        return nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="none").mean(1).sum()
    return (logits - truth).square().mean(1).sum()
