"""A ridge classifier in closed form on fixed features, from sums over all clients: the same model on any partition.

Each client sends V_k = sum z z' and U_k = sum z onehot', with z its features and a constant; the server adds them up,
chooses the ridge by generalised cross-validation from the sums alone, and solves (`closed_form/`). Least squares on
sums is AFL's (Zhuang et al., CVPR 2025) and, without random features and with a fixed ridge, FFC's (Dong et al.,
SphereFed, ECCV 2022, Eq. 7 to 10). Features are those that reach the classifier, or without a net (`--model raw`)
random ones: whitened patches for images (Coates, Ng, Lee, AISTATS 2011), a random ReLU layer for vectors
(`models/feature_maps.py`). What those need to know of the data is a model of such data, or it is summed up in a message
before (`map`); so are the class counts if samples weigh by them (`balance`).

Personal models are in closed form, too: ridge towards the shared classifier, chosen by exact leave-one-out at the
client, and the shift to its own class frequencies (`closed_form/personal.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import psutil
import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Message, Method, Model, ModelSize, Part, Server, Upload
from fedframe.core.kept_statistics import keep_statistics
from fedframe.core.part import Slot
from fedframe.core.privacy import fresh_generator, local_noise, node_deviation, noise, noise_purpose
from fedframe.errors import SettingError
from fedframe.methods.closed_form.head import MODULE, ClosedFormHead, closed_form
from fedframe.methods.closed_form.long_tail import class_weights, equal_priors, normalised_columns
from fedframe.methods.closed_form.means_only import sums_from_crosses
from fedframe.methods.closed_form.personal import fit_personal
from fedframe.methods.closed_form.private import LONGEST, from_release, solve_noisy, to_release
from fedframe.methods.closed_form.ridge import Fit, fit_ridge, memory_needed, standardise
from fedframe.methods.closed_form.sums import Sums, stream_cross, stream_sums
from fedframe.models.feature_maps import Knows, Raw, make_map
from fedframe.settings import Settings
from fedframe.util.triangles import triangle_size

STREAM = 0x5EED  # sets the map's random numbers apart from those of the net
MOST_EXACT = 1 << 20  # numbers of V that are sent in float64: with few samples, rounding would show
MOST_KEPT = 2 << 30  # bytes of single clients' sums that are kept without being asked for
NOTHING_CAME = "analytic: no client's sums could be used; the model stays as it is."


@dataclass(frozen=True)
class Analytic(Part):
    """A ridge classifier from sums over all clients, after the last round."""

    name: ClassVar[str] = "analytic"
    paper: ClassVar[str] = "cf. Zhuang et al., AFL: Analytic Federated Learning, CVPR 2025"
    # Whatever else would fit the classifier, or go on with it, has a classifier that does not predict here.
    takes_over: ClassVar[tuple[Slot, ...]] = ("server_stage", "client_stage")
    from_sums: ClassVar[bool] = True

    # What random features know of the data. Runs of before this setting, which do not name it, have "data"; new runs
    # name the recipe's choice.
    map: Knows = "data"
    """What random features know of the data: nothing (`fixed`), or sums over all clients (`data`)."""
    width: Annotated[int, Field(ge=0, le=65536)] | None = None  # random features; None: by the data's shape
    """Number of random features; empty goes by the data's shape (none behind a net), 0 means none."""
    # Class means instead of V, which the server then estimates from how clients' means differ: for wide features.
    send: Literal["sums", "means"] = "sums"
    """What clients send: `sums` (second moments), or class `means` alone."""
    ridge: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # None: by generalised cross-validation
    """Strength of the ridge, lambda; empty chooses it by generalised cross-validation."""
    tail: Literal["none", "normalised", "equal_priors"] = "none"  # what is done for rare classes
    """What is done for rare classes: `none`, `normalised` or `equal_priors`."""
    balance: Annotated[float, Field(ge=0, le=1)] = 0.0  # a sample of class c weighs n_c^-balance
    """Samples weigh their class's count to the power of minus this; 0 counts all alike."""
    shift: bool = True  # personal models may be shifted to the client's class frequencies
    """Whether personal models may shift to the client's class frequencies."""
    protect: Literal["client", "sample"] = "client"  # what privacy settings hide: a whole client, or one of its samples
    """What the privacy settings hide: a whole `client`, or one `sample`."""
    keep_sums: bool | None = None  # keep single clients' sums in the run folder; None: if they are 2 GB at most
    """Whether the server keeps single clients' sums; empty means if they are 2 GB at most."""

    def check_method(self, method: Method) -> None:
        """Refuse methods without a shared model: sums of different clients' features would not be sums."""
        if not method.shares_a_model:
            raise SettingError(
                f"{method.name!r} cannot be combined: 'analytic' adds up features of one shared model, and here a part "
                "of it stays on the clients; leave one of them out."
            )

    def check_settings(self, settings: Settings) -> None:
        """Refuse private BatchNorm statistics for the same reason."""
        if settings.buffers == "private":
            raise SettingError("analytic adds up features of one shared model: buffers = 'private'; use average.")
        if self.send == "means" and self.balance:
            raise SettingError(
                "analytic.balance weighs samples in V, which analytic.send = 'means' only estimates; use sums."
            )
        if settings.privacy_clip is None:
            return
        if self.send == "means":
            raise SettingError(
                "analytic.send = 'means' takes every client's own without noise; use analytic.send=sums."
            )
        if self.map == "data":
            raise SettingError("analytic.map = 'data' takes sums without noise from clients; use analytic.map=fixed.")
        for name, value in (("tail", self.tail), ("balance", self.balance)):
            if value not in ("none", 0.0):
                raise SettingError(
                    f"analytic.{name} = {value!r} needs sums without noise; leave it out with privacy_clip."
                )
        if self.keep_sums:
            raise SettingError(
                "analytic.keep_sums keeps sums without noise, and privacy_clip is to hide them; use "
                "analytic.keep_sums=false."
            )

    @property
    def protects(self) -> Literal["clients", "samples"]:
        """What the noise of the privacy settings hides."""
        return "clients" if self.protect == "client" else "samples"

    # -- the model -----------------------------------------------------------------------------------------------------
    def build(self, model: Model) -> None:
        """The feature map, and an empty classifier."""
        raw = model.backbone.shape if isinstance(model.backbone, Raw) else None
        with torch.random.fork_rng(devices=[]):  # the classifier that rounds train starts as it would without
            torch.manual_seed(torch.initial_seed() ^ STREAM)
            features = make_map(raw, model.dim, self.width, self.map)
        model.extras[MODULE] = ClosedFormHead(features, model.classes)
        model.sizes |= {f"{MODULE}/map": features.sums_size, f"{MODULE}/features": features.dim}

    def predict(self, model: Model, features: Tensor) -> Tensor:
        """The closed form's scores; before it is there, those of the classifier that rounds train."""
        head = closed_form(model)
        if bool(head.fitted):
            scores: Tensor = head(features)
        else:
            scores = model.head(features)
        return scores

    # -- sums ----------------------------------------------------------------------------------------------------------
    def stages(self, model: Model) -> int:
        """One; two where what the map or the weights of classes need comes first."""
        return 2 if model.sizes[f"{MODULE}/map"] or self.balance else 1

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """Class counts and the map's sums, if they are needed; then the triangle of V and U."""
        rows, sums = size.more.get(f"{MODULE}/features", size.dim) + 1, size.more.get(f"{MODULE}/map", 0)
        before = {"counts": [size.classes], "map": [sums]}
        whole = {"v": [triangle_size(rows)], "u": [rows, size.classes]}
        if self.send == "means":
            del whole["v"]
        shapes = (before, whole) if sums or self.balance else (whole,)
        return {
            f"{MODULE}/{name}": Upload(shape, self.aggregate(name), when="statistics", stage=stage)
            for stage, named in enumerate(shapes)
            for name, shape in named.items()
        }

    def aggregate(self, name: str) -> Literal["sum", "each"]:
        """What the server needs of an upload: its sum over clients, but every client's own class means."""
        return "each" if name == "u" and self.send == "means" else "sum"

    @torch.no_grad()
    def statistics(self, context: ClientContext) -> dict[str, Tensor]:
        """What the client's samples add up to."""
        head = closed_form(context.model)
        if context.stage < self.stages(context.model) - 1:
            return self.map_statistics(context, context.class_counts)
        if context.job.settings.privacy_clip is not None:
            return self.private_statistics(context)
        weights = class_weights(head.counts, self.balance) if self.balance else None
        dim = head.features.dim
        exact = is_exact(dim)
        kind = torch.float64 if exact else torch.float32
        batches = ((head.centred(inputs), labels) for inputs, labels in embedded(context))
        if self.send == "means":
            return {f"{MODULE}/u": stream_cross(batches, dim, context.model.classes).to(kind)}
        sums = stream_sums(batches, dim, context.model.classes, weights)
        sums = sums if exact else sums.rounded()
        return {f"{MODULE}/v": sums.second, f"{MODULE}/u": sums.cross}

    def map_statistics(self, context: ClientContext, counts: Tensor) -> dict[str, Tensor]:
        """What the map needs to know of the client's samples, and how many there are of every class."""
        features = closed_form(context.model).features
        found = torch.zeros(features.sums_size, dtype=torch.float64)
        for rows in batches_of(context):
            found += features.sums(context.embeddings(rows))
        return {f"{MODULE}/counts": counts.double(), f"{MODULE}/map": found}

    def private_statistics(self, context: ClientContext) -> dict[str, Tensor]:
        """The same of bounded features: to hide a client their mean, and with its own noise if it is to add it."""
        head, job, rows = closed_form(context.model), context.job, len(context.rows)
        assert job.settings.privacy_clip is not None
        head.bound(
            job.settings.privacy_clip
        )  # whatever the request says: the noise hides features of this length alone
        # What is no number counts as 0: that there is one would tell of the data.
        batches = (
            (head.standardised(inputs).cpu().nan_to_num(0.0, 0.0, 0.0), labels) for inputs, labels in embedded(context)
        )
        sums = stream_sums(batches, head.features.dim, context.model.classes)
        release = to_release(sums)
        if self.protect == "client":
            release /= max(rows, 1)
        deviation = node_deviation(job, len(job.federation))
        if deviation:
            purpose = noise_purpose(job, f"{MODULE} {context.round} {context.client}")
            home = job.home or job.folder
            release = local_noise(release.float(), deviation, home, purpose, context.received["model"]).double()
        found = from_release(release, head.features.dim + 1, context.model.classes)
        found = found if len(found.second) <= MOST_EXACT else found.rounded()
        return {f"{MODULE}/v": found.second, f"{MODULE}/u": found.cross}

    # -- on the server -------------------------------------------------------------------------------------------------
    def server_stage(self, server: Server, replies: Iterable[Message]) -> None:
        """Add up; fit the map, then the classifier."""
        if server.stage < self.stages(server.job.template) - 1:
            self.fit_map(server, replies)
        else:
            self.fit_classifier(server, replies)

    def received(self, server: Server, replies: Iterable[Message]) -> Iterator[Message]:
        """Clients' replies; each is kept when it has been used, if single clients' sums are."""
        keeps = self.keeps_sums(server)
        for reply in replies:
            yield reply
            if keeps:
                keep_statistics(server.job.folder, reply, server.stage, server.request_digest)

    def fit_map(self, server: Server, replies: Iterable[Message]) -> None:
        """What the random features need to know of the data, and how many samples there are of every class."""
        head = closed_form(server.job.template)
        counts, sums = torch.zeros_like(head.counts, dtype=torch.float64), torch.zeros(head.features.sums_size).double()
        for reply in self.received(server, replies):
            counts += reply.tensors[f"{MODULE}/counts"]
            sums += reply.tensors[f"{MODULE}/map"]
        set_tensor(server, "counts", counts)
        for name, tensor in head.features.fit(sums).items():
            set_tensor(server, f"features.{name}", tensor)

    def set_features(self, server: Server) -> Tensor:
        """What clients need before they are asked, with the first of their replies; gives about where features lie.

        They are summed up from there: squares of small numbers lose less when they are rounded. After rounds they are
        not, because nodes then take no tensor that the rounds have not made (`network/step_bound.py`).
        """
        features = closed_form(server.job.template).features
        check_memory(features.dim)
        if not features.sums_size:  # a map that knows nothing of the data
            for name, tensor in features.fit(torch.zeros(0, dtype=torch.float64)).items():
                set_tensor(server, f"features.{name}", tensor)
        middle = torch.zeros(features.dim) if server.job.settings.rounds else features.usual()
        if bool(middle.any()):
            set_tensor(server, "mean", middle)
        return middle

    def fit_classifier(self, server: Server, replies: Iterable[Message]) -> None:
        """Solve for the classifier."""
        head, middle = closed_form(server.job.template), self.set_features(server)
        clip = server.job.settings.privacy_clip
        if clip is not None:
            set_tensor(server, "inverse", torch.full((head.features.dim,), LONGEST / clip))
            set_tensor(server, "bounded", torch.ones(()))
        total = Sums.zeros(head.features.dim, server.job.template.classes)
        received, crosses = 0, list[Tensor]()
        for reply in self.received(server, replies):
            if self.send == "means":
                crosses.append(reply.tensors[f"{MODULE}/u"].double())
            else:
                sums = Sums(reply.tensors[f"{MODULE}/v"], reply.tensors[f"{MODULE}/u"])
                total.add_(sums)
            received += 1
        if not received:
            server.note(NOTHING_CAME)
            return
        if crosses:
            total = sums_from_crosses(torch.stack(crosses))
        if clip is not None:
            self.fit_private(server, total)
            return
        problem = standardise(total, shortened=not is_exact(head.features.dim) and not crosses)
        del total
        fit = fit_ridge(problem, self.ridge)
        coefficients, bias = plain, plain_bias = fit.coefficients, problem.counts / problem.total
        if self.tail == "normalised":
            coefficients, bias = normalised_columns(problem, coefficients)
        elif self.tail == "equal_priors":
            coefficients, bias = equal_priors(problem, fit.ridge)
        tensors = {
            "mean": middle.double() + problem.mean,
            "inverse": problem.inverse_deviation,
            "weight": coefficients.T,
            "bias": bias,
            "plain_weight": plain.T,
            "plain_bias": plain_bias,
            "leverage": torch.tensor(fit.leverage),
            "fitted": torch.ones(()),
            "logits": torch.tensor(float(self.tail == "equal_priors")),
        }
        if not self.balance:  # otherwise they have come before, without the samples' weights
            tensors["counts"] = problem.counts
        self._set_classifier(server, fit, tensors)

    def _set_classifier(self, server: Server, fit: Fit, tensors: dict[str, Tensor]) -> None:
        """Put the classifier into the model, and say what it is."""
        for name, tensor in tensors.items():
            set_tensor(server, name, tensor)
        dim = closed_form(server.job.template).features.dim
        how = "as set" if self.ridge is not None else "by generalised cross-validation"
        server.note(f"analytic: {dim:,} features, ridge {fit.ridge:.3g} of their variance ({how}).")

    def fit_private(self, server: Server, total: Sums) -> None:
        """Add the server's noise to the sums, if it is the server's, and solve for the classifier."""
        settings, (rows, classes) = server.job.settings, total.cross.shape
        # Noise of nodes is in the sums, of as many as there are at most.
        deviation = node_deviation(server.job, len(server.job.federation)) * math.sqrt(len(server.job.federation))
        if settings.privacy_at == "server":
            deviation = settings.privacy_noise
            release = to_release(total)
            total = from_release(release + noise(len(release), deviation, fresh_generator()), rows, classes)
        fit, bias = solve_noisy(total, deviation)
        counts = total.counts.clamp_min(0)
        tensors = {"weight": fit.coefficients.T, "bias": bias, "counts": counts, "leverage": torch.tensor(fit.leverage)}
        tensors |= {"plain_weight": fit.coefficients.T, "plain_bias": bias, "fitted": torch.ones(())}
        for name, tensor in tensors.items():
            set_tensor(server, name, tensor)
        spent = f"noise {settings.privacy_noise:g} at the {settings.privacy_at}, one release that hides {self.protects}"
        server.note(f"analytic: {rows - 1:,} features, ridge {fit.ridge:.3g} by the noise ({spent}).")

    def keeps_sums(self, server: Server) -> bool:
        """Whether every client's sums are kept, so that it can be taken out of the model later."""
        if self.keep_sums is not None or server.job.settings.privacy_clip is not None:
            return bool(self.keep_sums)
        # V and U are sent in float32 where they are many numbers; all else is in float64.
        short = set() if is_exact(closed_form(server.job.template).features.dim) else {f"{MODULE}/v", f"{MODULE}/u"}
        numbers = {name: math.prod(upload.shape) for name, upload in self.uploads(server.size).items()}
        size = sum((4 if name in short else 8) * count for name, count in numbers.items())
        return len(server.job.federation) * size <= MOST_KEPT

    # -- personal models -----------------------------------------------------------------------------------------------
    @torch.no_grad()
    def personalise(self, context: ClientContext) -> None:
        """The client's own classifier, if it does better on samples left out than the shared one."""
        head = closed_form(context.model)
        if not bool(head.fitted):
            return
        features = torch.empty(len(context.rows), head.features.dim)
        for number, (inputs, _) in enumerate(embedded(context)):
            start = number * context.job.settings.eval_batch
            features[start : start + len(inputs)] = head.standardised(inputs)
        labels = context.job.federation.source.train.y[context.rows]
        priors = head.counts.cpu() / head.counts.cpu().sum().clamp_min(1)
        leverage = min(float(head.leverage), 0.9)
        shared = (head.plain_weight.cpu(), head.plain_bias.cpu())
        own = fit_personal(features, labels, *shared, priors, leverage, self.shift)
        head.logits.zero_()
        head.weight.copy_(own.weight)
        head.bias.copy_(own.bias)
        head.sharpness.fill_(own.sharpness)
        head.shift.copy_(own.shift)


def is_exact(dim: int) -> bool:
    """Whether sums of so many features are sent in float64."""
    return triangle_size(dim + 1) <= MOST_EXACT


def check_memory(dim: int) -> None:
    """Refuse more features than can be solved for: the system would end the process without a message."""
    needed, there = memory_needed(dim), psutil.virtual_memory().total
    if needed > there:
        fewer = 1 << int(math.log2(dim * math.sqrt(there / needed)))
        raise SettingError(
            f"{dim:,} features take {needed / 2**30:,.0f} GB of memory to solve for, and this machine has "
            f"{there / 2**30:,.0f}; use analytic.width={fewer}."
        )


def set_tensor(server: Server, name: str, value: Tensor) -> None:
    """Set a tensor of the closed form's part of the model."""
    server.set_tensor(f"extras.{MODULE}.{name}", value)


def batches_of(context: ClientContext) -> tuple[Tensor, ...]:
    """The client's rows, in batches of the size that evaluation has."""
    found: tuple[Tensor, ...] = context.rows.split(context.job.settings.eval_batch)  # type: ignore[no-untyped-call]
    return found


def embedded(context: ClientContext) -> Iterator[tuple[Tensor, Tensor]]:
    """The client's samples batch by batch, as they reach the classifier, and their labels."""
    labels = context.job.federation.source.train.y
    for rows in batches_of(context):
        yield context.embeddings(rows), labels[rows]
