"""A personal model for a client that was not in the training: what `fedframe personalise` does.

The new client gets what a client of the run gets at its end: the shared model and the method's own client stage, on
data read with the run's classes, shapes and normalisation. It has no memory of rounds; what rounds would have left with
it is made up for first (`ClientRuntime.catch_up`).
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedframe.core.evaluation import gentler
from fedframe.core.job import Job, personal_path
from fedframe.core.measures import is_share, metric_name, sign_of
from fedframe.core.message import Message
from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.data.federation import Federation
from fedframe.data.new_client import load_new_client
from fedframe.engines.inline import InlineEngine
from fedframe.errors import DivergedError, RunError, SettingError
from fedframe.jobs.build import Net
from fedframe.jobs.devices import check_device
from fedframe.jobs.gather import setting_names
from fedframe.methods.recipes import MethodLike, make_method
from fedframe.runs.changes import CodeCheck, refuse_changed_code
from fedframe.runs.folder import JOINED, RunFolder
from fedframe.runs.predictor import Predictor
from fedframe.settings import FROM_PYTHON, Settings, check, merge_part_settings, short_method
from fedframe.util.allowed_code import check_named
from fedframe.util.display import print_line
from fedframe.util.files import write_json, write_tensors
from fedframe.util.locate import resolve_paths
from fedframe.util.text import duration, figure, plural

DEFINITIONS = {
    "client": "accuracy of the shared model on the client's own test samples",
    "personal": "accuracy of the client's own model on the same samples",
    "none": "null means not measured: there are no test samples, or the method has no shared model",
}


@dataclass(frozen=True)
class NewClient:
    """A client that came after the training: its name, its scores and its own model."""

    folder: Path
    name: str
    summary: dict[str, Any]  # what personal/joined/NAME.json holds
    net: Net = "auto"
    code_check: CodeCheck = "files"

    @property
    def scores(self) -> dict[str, float | None]:
        """`client`: the shared model; `personal`: the client's own; both on its own test samples."""
        scores: dict[str, float | None] = self.summary["scores"]
        return scores

    @cached_property
    def model(self) -> Predictor:
        """The client's own model, ready to predict."""
        net = None if isinstance(self.net, str) else self.net
        refuse_changed_code(self.folder, net, self.code_check)
        return Predictor.load(self.folder, self.name, net, changed_code=True)


def personalise(
    run: str | Path,
    data: object,
    *,
    name: str | None = None,
    test_share: float | None = None,
    set: Mapping[str, Any] | None = None,
    seed: int | None = None,
    label: str | None = None,
    data_dir: str | Path | None = None,
    device: str | None = None,
    overwrite: bool = False,
    changed_code: bool = False,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    method: MethodLike | None = None,
    progress: bool = True,
) -> NewClient:
    """Make and keep a personal model for a client that was not in the training of a finished run.

    `data` is what `fedframe.run` takes, of one client; `test_share` of it scores (default: the run's `local_test`).
    `set` changes the method's client stage; `seed` and `device` are the run's unless given; `model` and `method` are
    given again if they came from Python. The model is kept in the run folder under `name`, by default one made from
    the data's. Code that has changed since the training is refused, unless `changed_code` is true.
    """
    began = time.perf_counter()
    notify: Callable[[str], None] = print_line if progress else lambda text: None
    folder = RunFolder.open(run)
    python = f"give it again there: fedframe.personalise({str(run)!r}, data, model=MyNet())"
    shared, _ = Predictor.load_shared(folder.path, model, python, method, "none" if changed_code else "all")
    given = {"seed": seed, "device": device, "label": label, "data_dir": str(data_dir) if data_dir else None}
    check_named(folder.settings().method)
    settings = new_client_settings(folder.settings(), shared.method.slot("client_stage"), set or {}, given)
    if name is not None:
        check_name(folder, name, overwrite)
    if not os.access(folder.path, os.W_OK):
        raise RunError(f"{folder.path} cannot be written to; copy the run to a folder of your own and use that.")
    federation = load_data(data, shared, settings, test_share)
    if name is None:
        name = clean(federation.source.name)
        check_name(folder, name, overwrite)
    made = make_method(settings.method, settings.set, settings.task)
    # Below a folder of its own, where no client of the training has left a memory.
    job = Job(settings, made, federation, shared.model, folder.path / JOINED)
    notify(headline(job, name))
    for note in federation.notes:
        notify(note)
    try:
        replies, own = perform(job, folder, notify)
    except KeyboardInterrupt as stop:
        stop.add_note("No personal model was saved.")
        raise
    summary = summarise(job, name, resolve_paths(data) if isinstance(data, str) else FROM_PYTHON, replies)
    keep(folder, name, own, summary, overwrite)
    for text in closing_lines(summary, folder.path, folder.joined_path(name), time.perf_counter() - began):
        notify(text)
    net: Net = "auto" if model is None else model
    return NewClient(folder.path, name, summary, net, "none" if changed_code else "files")


# -- before the work ---------------------------------------------------------------------------------------------------
def new_client_settings(run: Settings, stage: Part, chosen: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """The run's settings, except for those given here and those of the client stage."""
    if isinstance(chosen, Mapping):  # a bare name is the client stage's
        bare = {name: value for name, value in chosen.items() if name in setting_names(stage)}
        others = {name: value for name, value in chosen.items() if name not in bare}
        chosen = merge_part_settings(others, {stage.name: bare}) if bare else others
    merged = merge_part_settings(run.set, chosen)
    fields = [field.name for field in dataclasses.fields(stage)]
    for part in chosen:
        if part != stage.name:  # it would change what the saved model was trained with, or do nothing
            can = (
                f"here only {stage.name} can be set: {', '.join(fields)}" if fields else "there is nothing to set here"
            )
            raise SettingError(f"set {part!r} belongs to the training, which is over; {can}.")
    values = {name: value for name, value in given.items() if value is not None}
    settings = check({**run.model_dump(), **values, "set": merged, "save_personal": False})
    make_method(settings.method, settings.set, settings.task)  # refuse a wrong setting before the data are loaded
    check_device(settings.device, several=True)  # of several, the first is used
    return settings


def load_data(data: object, shared: Predictor, settings: Settings, test_share: float | None) -> Federation:
    """The new client's data as one client, in the form of the run's."""
    form = shared.schema
    usual = settings.local_test
    if usual == "global":  # the run's test set is not at hand, and the new client's labels may be others
        usual = Settings.model_fields["local_test"].default
    return load_new_client(
        data,
        form,
        share=test_share,
        default_share=float(usual),
        seed=settings.seed,
        data_dir=Path(settings.data_dir) if settings.data_dir else None,
        label=settings.label,
        client_column=settings.client_column,
    )


def clean(text: str) -> str:
    """A name that can be a file's and is no client's number."""
    name = re.sub(r"[^\w.-]+", "-", text).strip("-.")[:100] or "newcomer"
    return f"client-{name}" if name.isdecimal() else name


def check_name(folder: RunFolder, name: str, overwrite: bool) -> None:
    """Refuse a name that is taken, or that could be mistaken for another client's."""
    if name != clean(name):
        raise SettingError(
            f"name = {name!r} cannot be used (letters, digits, - _ . and no number); try {clean(name)!r}."
        )
    number = 2
    while folder.joined_path(f"{name}-{number}").exists():
        number += 1
    other = f"choose another name, such as {name}-{number}"
    names = folder.names()
    if name in names and personal_path(folder.path, names.index(name)).exists():
        raise SettingError(f"name = {name!r} is a client of the training in {folder.path}; {other}.")
    if folder.joined_path(name).exists() and not overwrite:
        raise SettingError(f"{folder.path} already has a personal model {name!r}; {other}, or add --overwrite.")


# -- the work ----------------------------------------------------------------------------------------------------------
def perform(job: Job, folder: RunFolder, notify: Callable[[str], None]) -> tuple[dict[str, Message], dict[str, Tensor]]:
    """Score the shared model, make the client's own, score that; gives the scores and what differs in the own model."""
    engine = InlineEngine(job)
    try:
        server = Server(job, engine, notify)
        found = folder.checkpoint()
        kept = {} if found is None else {name: t for name, t in found[1].items() if name.startswith("state/")}
        if found is None and server.state:
            notify(f"{folder.path} has no checkpoint: what the method keeps on the server is as in the beginning.")
            kept = {f"state/{name}": tensor for name, tensor in server.state.items()}
        # The model is the finished one, not the checkpoint's, which was written before the server stage.
        server.restore({**kept, "model": server.model}, job.settings.rounds)
        kinds = ("own", "personalise") if job.shares_a_model else ("personalise",)
        replies = {kind: next(engine.run(server.build_request(kind, server.round + 1), [0])) for kind in kinds}
        runtime = engine.runtime
        own = job.own_tensors(runtime.model, {"model": server.model.to(runtime.flat.device)})
    finally:
        engine.close()
    if bool(replies["personalise"].tensors["diverged"]):
        hint = gentler(job.method.slot("client_stage"), job.settings.lr)
        raise DivergedError(f"The personal model came out with NaN or infinite weights and was not saved; {hint}.")
    return replies, own


def keep(folder: RunFolder, name: str, own: Mapping[str, Tensor], summary: Mapping[str, Any], overwrite: bool) -> None:
    """Write the scores and then the model: with the model the new client is there."""
    with folder.alone():
        check_name(folder, name, overwrite)  # again: another process may have been faster
        path = folder.joined_path(name)
        write_json(path.with_suffix(".json"), summary)
        write_tensors(path, own, {"client": name})


# -- what is kept and printed ------------------------------------------------------------------------------------------
def summarise(job: Job, name: str, data: str, replies: Mapping[str, Message]) -> dict[str, Any]:
    """Scores with their definitions, and what they were made with; the same for the same run, data and seed."""
    federation, stage = job.federation, job.method.slot("client_stage")
    personal, shared = replies["personalise"].tensors, replies.get("own")
    if job.target is not None:
        return {
            **scores_of_target(job, personal, shared.tensors if shared is not None else None),
            "name": name,
            "data": data,
            "per_class": {},
            "method": job.settings.method,
            "stage": {stage.name: dataclasses.asdict(stage)},
            "seed": job.settings.seed,
        }
    tests, trains = personal["samples"].tolist(), federation.class_counts(0).tolist()
    hits = {
        "client": shared.tensors["hits"].tolist() if shared is not None else None,
        "personal": personal["hits"].tolist(),
    }
    held = [i for i in range(len(tests)) if trains[i] or tests[i]]
    return {
        "name": name,
        "data": data,
        "scores": {score: ratio(sum(right), sum(tests)) if right else None for score, right in hits.items()},
        "definitions": DEFINITIONS,
        "samples": {"training": sum(trains), "test": sum(tests)},
        "per_class": {
            federation.source.classes[i]: {
                "training": trains[i],
                "test": tests[i],
                **{score: ratio(right[i], tests[i]) if right else None for score, right in hits.items()},
            }
            for i in held
        },
        "method": job.settings.method,
        "stage": {stage.name: dataclasses.asdict(stage)},
        "seed": job.settings.seed,
    }


def scores_of_target(job: Job, own: Mapping[str, Tensor], shared: Mapping[str, Tensor] | None) -> dict[str, Any]:
    """Scores by the run's metric, where no classes are learned."""
    metric = job.settings.score_metric
    name = metric_name(metric)
    found = {"client": shared, "personal": own}
    return {
        "scores": {
            score: None if tensors is None or float(tensors["error"]) < 0 else float(tensors["value"])
            for score, tensors in found.items()
        },
        "metric": metric,
        "definitions": {score: f"{name}{text.removeprefix('accuracy')}" for score, text in DEFINITIONS.items()},
        "samples": {"training": len(job.federation.train[0]), "test": int(own["samples"].sum())},
    }


def ratio(hits: int, total: int) -> float | None:
    """A share, or None where there is nothing to count."""
    return hits / total if total else None


def headline(job: Job, name: str) -> str:
    """What is done, in one line."""
    federation, stage = job.federation, job.method.slot("client_stage")
    classes = f"{int((federation.class_counts(0) > 0).sum())} of the run's {len(federation.source.classes)} classes"
    if job.target is not None:
        classes = f"{job.target.task} of {', '.join(job.target.names[:5])}"
    chosen = ", ".join(f"{key}={value}" for key, value in dataclasses.asdict(stage).items() if value is not None)
    return (
        f"{short_method(job.settings.method)}, a personal model for {name}: "
        f"{len(federation.train.values):,} training and {len(federation.local_test.values):,} test samples, {classes}; "
        f"client stage {stage.name} ({chosen})"
    )


def closing_lines(summary: Mapping[str, Any], folder: Path, path: Path, seconds: float) -> list[str]:
    """The result in plain words."""
    name, scores = summary["name"], summary["scores"]
    tests = plural(summary["samples"]["test"], "test sample")
    metric = str(summary.get("metric", "accuracy"))
    share, what = is_share(metric), metric_name(metric)
    lines = [""]
    if summary["samples"]["test"]:
        shared = f"{what} of the shared model on {name}'s own {tests}"
        if scores["client"] is None:
            shared = f"not measured: {short_method(summary['method'])} has no shared model"
        lines += [
            f"  {'client':9}{figure(scores['client'], share):>7}  {shared}",
            f"  {'personal':9}{figure(scores['personal'], share):>7}  {what} of {name}'s own model on the same "
            "samples, which were held out of its training",
        ]
        known = None not in scores.values()
        if known and sign_of(metric) * (scores["personal"] - scores["client"]) < 0:
            lines.append(f"  Here the shared model does better than {name}'s own: predict without --client.")
    else:
        lines.append("  There are no test samples, so there is no score: the data are too few, or test_share is 0.")
    return [
        *lines,
        "",
        f"  {duration(seconds)}. The model is {path}: try 'fedframe predict {folder} INPUT --client {name}'.",
    ]
