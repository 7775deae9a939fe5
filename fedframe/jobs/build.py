"""From settings to a job: load the data, deal it out to clients, build the initial model that the seed fixes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedframe.core.hook_errors import call_in_place, named_errors
from fedframe.core.imbalance import choose_metric
from fedframe.core.job import Job
from fedframe.core.method import Method
from fedframe.core.model import count_parameters, has_batch_norm
from fedframe.core.part import ALL_DATA, stacks
from fedframe.core.precision import COMPUTE_TYPES, check_precision, precision_note
from fedframe.core.privacy import check_private
from fedframe.data import Federation, Source, load_source, make_federation
from fedframe.data.augment import read_augment
from fedframe.data.holdout import hold_out_clients, hold_out_server_samples, hold_out_validation
from fedframe.data.load import check_task
from fedframe.errors import DataError, SettingError
from fedframe.jobs.devices import check_device, resolve_device
from fedframe.methods.recipes import make_method
from fedframe.models import build_net, default_net
from fedframe.models.adapters import adapt
from fedframe.models.freeze import check_freeze, frozen_modules
from fedframe.models.weights import load_weights, weights_digest
from fedframe.settings import FROM_PYTHON, METRICS, NUMBER_METRICS, USUAL_METRICS, Settings
from fedframe.util.seeds import seed_for

Net = str | nn.Module | Callable[..., nn.Module]


class JobMaker:
    """Turns settings into a job: loads the data, deals it out, builds the initial model that the seed fixes."""

    def __init__(self, settings: Settings, data: object, net: Net | None) -> None:
        check_given(settings, data, net)
        self.method = make_method(settings.method, settings.set)
        check_parts(self.method, settings)
        settings = settings.model_copy(update={"device": resolve_device(settings.device)})
        check_device(settings.device, several=True)
        check_precision(settings.precision, settings.device)
        check_freeze(settings.freeze)
        read_augment(settings.augment)  # refuse a wrong one before the data are loaded
        self.federation = make_clients(settings, settings.data if data is None else data)
        task = self.federation.source.task
        if task != "classification":
            self.method = make_method(settings.method, settings.set, task)
        for part in self.method.parts:
            if 0 < part.server_samples < ALL_DATA:
                each = int(part.server_samples)
                self.federation = hold_out_server_samples(self.federation, each, settings.seed, f"{part.name}.samples")
        shape = self.federation.source.input_shape
        self.net: Net = net if net is not None and not isinstance(net, str) else settings.model
        resolved: dict[str, Any] = {
            "clients": len(self.federation.all_clients),
            "partition": self.federation.partition or settings.partition,
            "task": task,
        }
        if settings.weights is not None:
            resolved["weights_digest"] = confirm_weights(settings)
        if self.net == "auto":
            samples = len(self.federation.train.values)
            self.net = resolved["model"] = default_net(shape, samples, settings.device)
        if settings.lr_per_class is not None:
            resolved |= {"lr": settings.lr_per_class * len(self.federation.source.outputs), "lr_per_class": None}
        self.settings = settings.model_copy(update=resolved)
        check_parts(self.method, self.settings)
        check_metric(self.settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(self.settings.seed, "model"))
            backbone = build_net(self.net, shape)
            left_out = load_weights(backbone, Path(settings.weights)) if settings.weights is not None else []
            adapters = adapt(backbone, settings.lora, settings.lora_alpha, settings.lora_layers)
            classes = len(self.federation.source.outputs)
            with named_errors(f"method = {settings.method!r}"):
                self.template = self.method.build(backbone, int(backbone.dim), classes)  # type: ignore[arg-type]
        self.federation = replace(self.federation, notes=(*self.federation.notes, *left_out))
        self.template.freeze(("",) if adapters else frozen_modules(backbone, settings.freeze), adapters)
        self.template.compute_type = COMPUTE_TYPES.get(self.settings.precision)
        if note := precision_note(self.settings.precision, self.settings.device):
            self.federation = replace(self.federation, notes=(*self.federation.notes, note))
        if self.settings.rounds and not count_parameters(self.template):
            note = f"rounds = {settings.rounds} is left out: {settings.method} has nothing that learns in rounds."
            self.settings = self.settings.model_copy(update={"rounds": 0})
            self.federation = replace(self.federation, notes=(*self.federation.notes, note))
        with named_errors(f"method = {settings.method!r}"):
            self.method.private(self.template)
            for part in self.method.parts:
                call_in_place(part, "check_model", self.template, len(self.federation))
        check_private(settings, self.method, has_batch_norm(self.template) and settings.buffers == "average")
        if has_batch_norm(self.template) and settings.batch == 1:
            raise SettingError("batch = 1 cannot train a net with BatchNorm; use batch = 2, or a net without it.")
        job = self.make(Path())
        check_scoring(job)
        if settings.vectorise == "auto" and self.settings.rounds and job.obstacle:
            note = f"vectorise = auto: clients train one by one, because {job.obstacle}."
            self.federation = replace(self.federation, notes=(*self.federation.notes, note))

    def choose_metric(self) -> None:
        """Where scores are no metric in particular: accuracy, unless one class alone would give a good one."""
        self.settings = self.settings.model_copy(update={"metric": choose_metric(self.settings, self.federation)})

    def make(self, folder: Path, home: Path | None = None) -> Job:
        """The job, once its folder is known, and for a node the one that it has for all runs."""
        return Job(self.settings, self.method, self.federation, self.template, folder, home)


def check_metric(settings: Settings) -> None:
    """Refuse a metric of another task."""
    about_classes = [name for name in settings.measures if name in ("collapse", "local")]
    if settings.task != "classification" and about_classes:
        raise SettingError(
            f"measure = {settings.measure!r}: {about_classes[0]} is about classes, and the task is {settings.task}; "
            "use measure = drift,cka."
        )
    good = NUMBER_METRICS if settings.task == "regression" else METRICS
    if settings.metric not in (*good, "auto"):
        raise SettingError(
            f"metric = {settings.metric!r} does not measure {settings.task}; use "
            f"{USUAL_METRICS.get(settings.task, 'accuracy')}, or another of {', '.join(good)}."
        )


def check_given(settings: Settings, data: object, net: Net | None) -> None:
    """Refuse a run whose data or net came from Python and are not given again."""
    for name, value, given in (("data", settings.data, data), ("model", settings.model, net)):
        if value == FROM_PYTHON and (given is None or isinstance(given, str)):
            raise SettingError(
                f"This run's {name} came from Python; give it again there: "
                f"fedframe.resume(folder, {name}=...) or fedframe.run(config=..., {name}=...)."
            )


def check_parts(method: Method, settings: Settings) -> None:
    """Refuse settings that a part of the method cannot work with."""
    with named_errors(f"method = {settings.method!r}"):
        for part in method.parts:
            call_in_place(part, "check_settings", settings)


def check_scoring(job: Job) -> None:
    """Refuse a positive class that there is not, and weights that the classes or the loss cannot have."""
    if job.target is not None:
        for name, unused in (("positive", job.settings.positive), ("class_weights", job.settings.class_weights)):
            if unused not in (None, "none"):
                raise SettingError(
                    f"{name} = {unused!r} is about classes, and the task is {job.target.task}; leave it out."
                )
        return
    if job.settings.positive is not None and job.template.classes != 2:
        raise SettingError(
            f"positive = {job.settings.positive!r} is about two classes, and there are {job.template.classes}; leave "
            "it out: measures are then one against the rest."
        )
    loss = job.method.slot("loss")
    if job.positive < 0 or job.class_weights is None or stacks(type(loss)):
        return
    raise SettingError(
        f"class_weights weigh a loss that is a sum over samples, and {loss.name!r} does not say that it is one "
        "(row_losses); use class_weights = none, or a method with another loss, such as fedavg."
    )


def make_clients(settings: Settings, data: object) -> Federation:
    """Load the data and deal it out to clients; with a validation share, that share takes the test data's place."""
    federation = deal_out(settings, data)
    if federation.source.target is None and len(federation.source.classes) < 2:
        raise DataError(
            f"All labels of {settings.data} are {federation.source.classes[0]!r}: there is nothing to tell apart; "
            "give data with two classes or more (--label names a table's column)."
        )
    everyone = hold_out_validation(federation, settings.validate_share, settings.seed)
    return hold_out_clients(everyone, settings.new_clients, settings.seed)


def deal_out(settings: Settings, data: object) -> Federation:
    """Clients with their training and test data; a federation from Python is one already."""
    if isinstance(data, Federation):
        check_task(data.source, settings.task)
        return data
    source: Source = load_source(
        data,
        data_dir=Path(settings.data_dir) if settings.data_dir else None,
        seed=settings.seed,
        test_share=settings.test_share,
        data_share=settings.data_share,
        label=settings.label,
        client_column=settings.client_column,
        task=settings.task,
    )
    partition, clients = settings.partition, settings.clients
    if partition == "auto":
        partition = "user" if source.train.user is not None else "dirichlet:0.1"
    if clients is None and partition.split("+")[-1] != "user":
        clients = 20
    return make_federation(
        source,
        partition=partition,
        clients=clients,
        seed=settings.seed,
        min_size=settings.min_client_size,
        local_test=settings.local_test,
    )


def confirm_weights(settings: Settings) -> str:
    """The digest of the file of weights, which must be the one that was noted before, if one was."""
    found = weights_digest(Path(str(settings.weights)))
    if settings.weights_digest not in (None, found):
        raise SettingError(
            f"weights = {settings.weights!r} is not the file of before: its digest is {found}, and "
            f"{settings.weights_digest} was noted; put that file there."
        )
    return found
