"""Run and resume from Python; the command line calls the same two functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedframe.core.files import read_json
from fedframe.core.job import Job
from fedframe.core.model import has_batch_norm
from fedframe.core.privacy import check_private
from fedframe.core.seeds import seed_for
from fedframe.data import Federation, Source, load_source, make_federation
from fedframe.data.augment import read_augment
from fedframe.data.new_clients import keep_out
from fedframe.data.validation import for_validation
from fedframe.engines.choose import check_engine
from fedframe.errors import DataError, SettingError
from fedframe.federation.traces import how_it_ends, is_organisers, not_here, train_again
from fedframe.folder import MODEL, SUMMARY, RunFolder, read_config
from fedframe.nets import build_net, default_net
from fedframe.predictor import Predictor
from fedframe.recipes import make_method, recipe_defaults
from fedframe.report.progress import Display, choose_display
from fedframe.session import execute
from fedframe.settings import NOWHERE, Settings, check

if TYPE_CHECKING:
    from fedframe.personalising import Newcomer

FROM_PYTHON = "python"  # what config.yaml says of data or a net that was an object, not a name
Net = str | nn.Module | Callable[..., nn.Module]


@dataclass(frozen=True)
class Result:
    """What a run gave: its folder, and from it scores, history and models."""

    folder: Path
    settings: Settings
    net: Net = "auto"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Everything in summary.json: final scores, definitions, time, memory."""
        content: dict[str, Any] = read_json(self.folder / SUMMARY)
        return content

    @property
    def scores(self) -> dict[str, dict[str, float | None]]:
        """Final scores: `result.scores["generic"]["last"]`."""
        scores: dict[str, dict[str, float | None]] = self.summary["scores"]
        return scores

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """A dictionary per round."""
        return RunFolder(self.folder).metrics()

    @cached_property
    def model(self) -> Predictor:
        """The shared model, ready to predict."""
        return self.personal(None)

    def personal(self, client: int | str | None) -> Predictor:
        """A client's own model, by number or name, ready to predict."""
        return Predictor.load(self.folder, client=client, net=None if isinstance(self.net, str) else self.net)

    def personalise(self, data: object, **options: Any) -> Newcomer:
        """Make a personal model for a client that was not in the training; options as in `fedframe.personalise`."""
        from fedframe.personalising import personalise  # it imports this module

        return personalise(self.folder, data, model=None if isinstance(self.net, str) else self.net, **options)


def run(
    method: str | None = None,
    *,
    data: object = None,
    model: Net | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    progress: bool | Display = True,
    **settings: Any,
) -> Result:
    """Train a method and return its result.

    Settings have the names of the command line (`rounds=50`, `lr=0.05`, ...). `data` may be a name, arrays, tensors,
    a torch `Dataset`, a `Source` or a `Federation`; `model` a name, a module, or a function that makes one.
    """
    given = dict(settings)
    named = {"method": method, "data": data, "model": model}
    given |= {
        name: value if isinstance(value, str) else FROM_PYTHON for name, value in named.items() if value is not None
    }
    asked = gather(given, config)
    if asked.data == NOWHERE and config is not None:
        raise SettingError(
            f"{config} is of a federation's run, whose data stay at the nodes; its organiser runs it again with: "
            f"{train_again(Path(config).parent)}"
        )
    if asked.secure and asked.engine == "local":
        raise SettingError(
            "secure = true hides updates from an organiser, and engine = local has none; use engine = flower."
        )
    check_engine(asked.engine)
    job_maker = JobMaker(asked, data, model)
    folder = RunFolder.create(out, job_maker.settings)
    job = job_maker.make(folder.path)
    folder.write_settings(job.settings)
    folder.write_names(job.federation.names if job.federation.source.user_names is not None else None)
    with choose_display(progress) as display:
        execute(job, folder, display)
    return Result(folder.path, job.settings, job_maker.net)


def resume(
    folder: str | Path, *, data: object = None, model: Net | None = None, progress: bool | Display = True
) -> Result:
    """Go on with a run that was stopped; a finished one is returned as it is."""
    run_folder = RunFolder.open(folder)
    if run_folder.settings().data == NOWHERE and data is None:
        return resume_federation(run_folder)
    job_maker = JobMaker(run_folder.settings(), data, model)
    if not run_folder.finished:
        job = job_maker.make(run_folder.path)
        with choose_display(progress) as display:
            execute(job, run_folder, display)
    return Result(run_folder.path, job_maker.settings, job_maker.net)


def resume_federation(folder: RunFolder) -> Result:
    """A federation's run that is finished; to go on with one is another command, with its nodes."""
    path = folder.path
    if (path / MODEL).exists() and not is_organisers(path):
        raise SettingError(not_here(path))
    if not folder.finished:
        raise SettingError(f"{path} is a federation's run, whose data stay at the nodes: {how_it_ends(path)}")
    return Result(folder.path, folder.settings())


def gather(given: Mapping[str, Any], config: str | Path | None) -> Settings:
    """Settings by precedence: given > config file > recipe > default."""
    file = read_config(Path(config)) if config is not None else {}
    method = given.get("method") or file.get("method") or Settings.model_fields["method"].default
    brought = recipe_defaults(str(method))
    if {**file, **given}.get("optimizer", "sgd") != "sgd":  # what the recipe says of SGD does not suit another
        brought = {name: value for name, value in brought.items() if name not in ("lr", "momentum", "nesterov")}
    values = {**brought, **file, **given}
    values["set"] = merge_part_settings(file.get("set") or {}, given.get("set") or {})
    return check(values)


def merge_part_settings(*layers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Settings of parts, the later layer winning name by name."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        if not isinstance(layer, Mapping) or not all(isinstance(values, Mapping) for values in layer.values()):
            raise SettingError(f"set = {layer!r} cannot be read; write set: {{fine_tune: {{epochs: 3}}}}.")
        for part, values in layer.items():
            merged[part] = {**merged.get(part, {}), **values}
    return merged


class JobMaker:
    """Turns settings into a job: loads the data, deals it out, builds the initial model that the seed fixes."""

    def __init__(self, settings: Settings, data: object, net: Net | None) -> None:
        for name, value, given in (("data", settings.data, data), ("model", settings.model, net)):
            if value == FROM_PYTHON and (given is None or isinstance(given, str)):
                raise SettingError(
                    f"This run's {name} came from Python; give it again there: "
                    f"fedframe.resume(folder, {name}=...) or fedframe.run(config=..., {name}=...)."
                )
        self.method = make_method(settings.method, settings.set)
        for part in self.method.parts:
            part.check(settings)
        check_device(settings.device)
        read_augment(settings.augment)  # refuse a wrong one before the data are loaded
        self.federation = make_clients(settings, settings.data if data is None else data)
        for part in self.method.answering("reserve"):
            self.federation = part.reserve(self.federation, settings.seed)
        shape = self.federation.source.input_shape
        self.net: Net = net if net is not None and not isinstance(net, str) else settings.model
        resolved: dict[str, Any] = {
            "method": "+".join(anchored(piece.strip()) for piece in settings.method.split("+")),
            "data": anchored(settings.data),
            "model": anchored(settings.model),
            "clients": len(self.federation.everyone),
            "partition": self.federation.partition or settings.partition,
        }
        if self.net == "auto":
            self.net = resolved["model"] = default_net(shape)
        self.settings = settings.model_copy(update=resolved)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(self.settings.seed, "model"))
            backbone = build_net(self.net, shape)
            classes = len(self.federation.source.classes)
            self.template = self.method.build(backbone, int(backbone.dim), classes)  # type: ignore[arg-type]
        for part in self.method.parts:
            part.check_model(self.template, len(self.federation))
        check_private(settings, self.method, has_batch_norm(self.template) and settings.buffers == "average")
        if has_batch_norm(self.template) and settings.batch == 1:
            raise SettingError("batch = 1 cannot train a net with BatchNorm; use batch = 2, or a net without it.")

    def make(self, folder: Path, home: Path | None = None) -> Job:
        """The job, once its folder is known, and for a node the one that it has for all runs."""
        return Job(self.settings, self.method, self.federation, self.template, folder, home)


def make_clients(settings: Settings, data: object) -> Federation:
    """Load the data and deal it out to clients; with a validation share, that share takes the test data's place."""
    federation = deal_out(settings, data)
    if len(federation.source.classes) < 2:
        raise DataError(
            f"All labels of {settings.data} are {federation.source.classes[0]!r}: there is nothing to tell apart; "
            "give data with two classes or more (--label names a table's column)."
        )
    everyone = for_validation(federation, settings.validate_share, settings.seed)
    return keep_out(everyone, settings.new_clients, settings.seed)


def deal_out(settings: Settings, data: object) -> Federation:
    """Clients with their training and test data; a federation from Python is one already."""
    if isinstance(data, Federation):
        return data
    source: Source = load_source(
        data,
        data_dir=Path(settings.data_dir) if settings.data_dir else None,
        seed=settings.seed,
        test_share=settings.test_share,
        data_share=settings.data_share,
        label=settings.label,
        client_column=settings.client_column,
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


def anchored(spec: str) -> str:
    """A spec with its path made absolute, so that a run can be resumed and used from any folder."""
    kind, colon, rest = spec.partition(":")
    if colon and kind in ("npz", "csv", "parquet", "imagefolder", "list"):
        path, question, query = rest.partition("?")
        return f"{kind}:{Path(path).expanduser().absolute()}{question}{query}"
    if colon and kind.endswith(".py"):
        return f"{Path(kind).expanduser().absolute()}:{rest}"
    return spec


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have."""
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda", "mps") or (kind == "cuda" and not torch.cuda.is_available()):
        raise SettingError(f"device = {device!r} is not here; use cpu.")
