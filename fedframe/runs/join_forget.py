"""A client that joins a finished run, and one that is forgotten: what `fedframe join` and `fedframe forget` do.

Both are for methods whose model is fitted from sums over clients. A client's sums are added, or left out, and the model
is solved again; then every client's own model and all scores are made again. The result is that of a run with the
client, or without it: where features or the normalisation of inputs depend on all clients' data, sums are computed
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.measures import is_share
from fedframe.core.server import Server
from fedframe.engines.local import local_engine
from fedframe.errors import DataError, SettingError
from fedframe.jobs.build import JobMaker
from fedframe.methods.recipes import RECIPES, make_method
from fedframe.runs.changes import changed_since, refuse
from fedframe.runs.federated import NOTES, how_it_ends, is_organisers, not_here, update_command
from fedframe.runs.folder import EXAMINATION, JOINED, RunFolder
from fedframe.runs.organiser import NoNodes, nodes_federation
from fedframe.runs.personalise import check_name, load_data, perform
from fedframe.runs.personalise import summarise as summarise_client
from fedframe.runs.predictor import Predictor
from fedframe.runs.progress import Display, choose_display
from fedframe.runs.refit import KeptStatistics, conclude_again, restored_server, write_results
from fedframe.runs.result import RunResult
from fedframe.runs.roster import Joined, Roster
from fedframe.runs.round_files import SUMMARY
from fedframe.runs.session import sanitize_log_line
from fedframe.runs.staging import commit, new_stage, remove
from fedframe.settings import FROM_PYTHON, REMOTE_DATA, Settings, short_method
from fedframe.util.files import read_json, write_json, write_tensors
from fedframe.util.locate import resolve_paths
from fedframe.util.text import duration, figure, plural

Net = nn.Module | Callable[..., nn.Module]
DERIVED = (EXAMINATION, "report.html")  # made from the models and scores of before


def forget(
    run: str | Path,
    client: int | str,
    *,
    run_data: object = None,
    model: Net | None = None,
    changed_code: bool = False,
    progress: bool | Display = True,
) -> RunResult:
    """Take a client out of a finished run, by name or number: the model is that of a run without it.

    `run_data` and `model` are the run's, given again if they came from Python.
    """
    folder = RunFolder.open(run)
    settings = check_run(folder, "forget")
    with choose_display(progress) as display, folder.alone():
        roster = Roster.read(folder.path)
        number, name = find_client(folder, settings, roster, str(client))
        when = roster.forgotten_at(name)
        if when is not None:
            display.note(f"{name} was forgotten at {when}: there is nothing left to do.")
            return RunResult(folder.path, settings)
        if roster.find(name) is None:
            check_forgettable(folder, settings, number, name, roster)
        after = roster.without(number, name)
        kind = OrganisersChange if settings.data == REMOTE_DATA else Change
        change = kind(folder, settings, after, display, run_data, model, changed_code)
        change.perform(f"Forgot client {name}", [f"clients/{number // 1000:03d}/{number:06d}"])
        if settings.data == REMOTE_DATA:
            change.note(f"The nodes have the model of before; send them the new one: {update_command(folder.path)}")
    return RunResult(folder.path, settings)


def join(
    run: str | Path,
    data: object,
    *,
    name: str,
    test_share: float | None = None,
    label: str | None = None,
    run_data: object = None,
    model: Net | None = None,
    changed_code: bool = False,
    progress: bool | Display = True,
) -> RunResult:
    """Add a client to a finished run: its sums become part of the model, and it gets a personal model.

    `data` is what `fedframe.run` takes, of one client; `test_share` of it scores (default: the run's `local_test`).
    `run_data` and `model` are the run's, given again if they came from Python.
    """
    folder = RunFolder.open(run)
    settings = check_run(folder, "join")
    if settings.data == REMOTE_DATA:
        raise SettingError(
            f"{folder.path} is a federation's run, whose data stay at the nodes: a node joins it with its kit, and "
            "then the organiser adds its sums: fedframe federation update FOLDER"
        )
    text = resolve_paths(data) if isinstance(data, str) else FROM_PYTHON
    with choose_display(progress) as display, folder.alone():
        roster = Roster.read(folder.path)
        known = roster.find(name)
        if known is not None and known.data == text != FROM_PYTHON:
            display.note(f"{name} has joined before, with the same data: there is nothing left to do.")
            return RunResult(folder.path, settings)
        if known is not None:
            raise SettingError(f"name = {name!r} has joined {folder.path} with other data; choose another name.")
        check_name(folder, name, overwrite=False)
        if name in folder.names():
            raise SettingError(f"name = {name!r} is a client of the training in {folder.path}; choose {name}-2.")
        first = len(folder.names()) or settings.clients or 0
        guest = Joined(first + roster.joined_ever, name, text, test_share, label)
        after = roster.with_joined(guest)
        change = Change(folder, settings, after, display, run_data, model, changed_code, {name: data})
        change.perform(f"Client {name} joined", [])
    return RunResult(folder.path, settings)


# -- what can be changed -----------------------------------------------------------------------------------------------
def check_run(folder: RunFolder, what: str) -> Settings:
    """The settings of a run that can be changed; others are refused with the reason."""
    settings = folder.settings()
    method = make_method(settings.method, settings.set)
    stage = method.optional_slot("server_stage")
    if stage is None or not stage.from_sums:
        able = ", ".join(name for name, recipe in RECIPES.items() if any(part.from_sums for part in recipe.parts))
        raise SettingError(
            f"fedframe {what} is for models that are fitted from sums over clients, and "
            f"{short_method(settings.method)} is not; train again with the clients that you want, or with "
            f"a method that can do it: {able}."
        )
    if not folder.finished:
        remote = settings.data == REMOTE_DATA
        ends = how_it_ends(folder.path) if remote else f"finish it with 'fedframe resume {folder.path}'."
        raise SettingError(f"{folder.path} is not finished: {ends}")
    if settings.data == REMOTE_DATA and not is_organisers(folder.path):
        raise SettingError(not_here(folder.path))
    if settings.privacy_clip is not None:
        raise SettingError(
            f"{folder.path} is one private release (privacy_noise = {settings.privacy_noise:g}): fedframe {what} would "
            "make another, whose epsilon adds to the first one's; train again with the clients that you want, and "
            "count both."
        )
    if settings.validate_share:
        raise SettingError(
            f"{folder.path} was trained with validate_share = {settings.validate_share:g}, for tuning; use a run "
            "without it."
        )
    return settings


def find_client(folder: RunFolder, settings: Settings, roster: Roster, client: str) -> tuple[int, str]:
    """A client's number and name."""
    names, total = folder.names(), len(folder.names()) or settings.clients or 0
    guest = roster.find(client)
    if guest is not None:
        return guest.client, guest.name
    if client in names:
        return names.index(client), client
    if roster.forgotten_at(client) is not None:
        return -1, client
    if client.isdecimal() and int(client) < total:
        return int(client), names[int(client)] if names else client
    known = ", ".join([*(each.name for each in roster.joined), *names[:20]])
    numbers = f"the clients are 0 to {total - 1}"
    raise SettingError(f"There is no client {client!r}; {numbers}{f' ({known})' if known else ''}.")


def check_forgettable(folder: RunFolder, settings: Settings, number: int, name: str, roster: Roster) -> None:
    """Refuse what could not be exact."""
    if settings.rounds:
        raise SettingError(
            f"Client {name} took part in the {plural(settings.rounds, 'round')} of {folder.path}, which have learned "
            "from its data: no sum can take that out again; train again without it."
        )
    if settings.secure:
        raise SettingError(
            f"{folder.path} was added up securely: the sums without {name}, beside those with it, would show what "
            f"{name} alone has sent; set up a federation without it and train again (federation new, federation start)."
        )
    total = len(folder.names()) or settings.clients or 0
    if len({*roster.forgotten, number}) >= total:
        raise SettingError(f"{name} is the only client that is left in {folder.path}; delete the folder instead.")


# -- the change --------------------------------------------------------------------------------------------------------
@dataclass
class Change:
    """A run as it will be after a client has joined or was forgotten."""

    folder: RunFolder
    settings: Settings
    roster: Roster
    display: Display
    run_data: object = None
    net: Net | None = None
    changed_code: bool = False
    given: dict[str, object] | None = None  # data of those who join now, by name

    def note(self, text: str) -> None:
        """Show and log something that the user should know."""
        self.display.note(sanitize_log_line(text))
        self.folder.log(sanitize_log_line(text))

    def perform(self, done: str, delete: list[str]) -> None:
        """Make all files again, then put them in place."""
        began = time.perf_counter()
        job = self.make_job()
        before = read_json(self.folder.path / SUMMARY)
        stage = new_stage(self.folder.path)
        try:
            engine, summary = self.fill(stage, job)
        except (Exception, KeyboardInterrupt):
            remove(stage)
            raise
        delete += [name for name in (*DERIVED, "personal", "sums") if not (stage / name).exists()]
        dropped = self.dropped_newcomers(stage)
        commit(self.folder.path, delete)
        again = f"{len(engine.asked)} computed again" if engine.asked else "none computed again"
        seconds = duration(time.perf_counter() - began)
        self.note(f"{done}: sums of {len(engine.reused - engine.asked)} clients reused, {again}; {seconds}.")
        if difference := shared_scores(before, summary):
            self.note(f"The shared model: {difference}.")
        if dropped:
            self.note(f"Personal models from before are gone; make them again with 'fedframe personalise': {dropped}.")
        self.display.end(summary, self.folder.path)

    def fill(self, stage: Path, job: Job) -> tuple[KeptStatistics, dict[str, Any]]:
        """Write the run as it will be into a folder of its own; gives the engine that was used, and the summary."""
        private = self.folder.path / "clients"
        if private.is_dir():  # rounds have left it, and it stays
            (stage / "clients").symlink_to(private.resolve(), target_is_directory=True)
        job = replace(job, folder=stage)
        self.display.start(job, self.folder.path, job.settings.rounds)
        self.display.stage("sums, models and scores once more")
        guests = {each.client: self.guest_job(each, job) for each in self.roster.joined}
        engine = KeptStatistics(job, self.open_engine(job), self.folder.path, guests)
        try:
            server = restored_server(job, engine, self.folder, self.note)
            summary, table = conclude_again(server, self.folder, self.display.client)
        finally:
            engine.close()
        summary["joined"] = {
            each.name: self.make_personal(each, guest, server, stage)
            for each in self.roster.joined
            if (guest := guests[each.client]) is not None
        }
        (stage / "clients").unlink(missing_ok=True)
        write_results(stage, server, self.roster, summary, table)
        return engine, summary

    def make_job(self) -> Job:
        """The run's job, without those who were forgotten."""
        if self.settings.data == FROM_PYTHON and self.run_data is None:
            raise SettingError(f"The data of {self.folder.path} came from Python; give them again there: run_data=...")
        if not self.changed_code:
            refuse(changed_since(self.folder, self.net, data=self.run_data is None), self.folder.path)
        maker = JobMaker(self.settings, self.run_data, self.net)
        columns = maker.federation.source.columns
        maker.federation = self.roster.adjust(maker.federation, self.settings.seed)
        if columns is not None and maker.federation.left:
            self.note("The columns of the table, and what stands for missing values, stay those of the training.")
        return maker.make(self.folder.path)

    def open_engine(self, job: Job) -> Engine:
        """Who runs the clients."""
        return local_engine(job, self.note)

    def guest_job(self, guest: Joined, job: Job) -> Job | None:
        """A client that has joined as a federation of one; None if its data are gone, or were given in Python."""
        data = (self.given or {}).get(guest.name, guest.data)
        if isinstance(data, str) and data == FROM_PYTHON:
            self.note(f"The data of {guest.name} came from Python: it has no personal model until it joins again.")
            return None
        source = job.federation.source
        form = (source.outputs, source.input_shape, source.columns, source.mean, source.std)
        schema = Predictor(job.method, job.template, *form, target=source.target)
        settings = job.settings
        if guest.label is not None:
            settings = settings.model_copy(update={"label": guest.label})
        try:
            federation = load_data(data, schema, settings, guest.test_share)
        except DataError as error:
            if guest.name in (self.given or {}):
                raise
            # Its sums may be there: who wants to leave need not wait for another's data.
            self.note(f"The data of {guest.name} cannot be read: {error} It has no personal model without them.")
            return None
        if guest.name in (self.given or {}):  # it joins now
            for text in federation.notes:
                self.note(text)
        settings = settings.model_copy(update={"save_personal": False})
        return Job(settings, job.method, federation, job.template, job.folder / JOINED)

    def make_personal(self, guest: Joined, job: Job, server: Server, stage: Path) -> dict[str, Any]:
        """The personal model of a client that has joined, from the model as it is now; gives its scores."""
        own_job = Job(job.settings, job.method, job.federation, server.net().cpu(), job.folder)
        replies, own = perform(own_job, self.folder, self.note)
        summary = summarise_client(own_job, guest.name, guest.data, replies)
        path = stage / JOINED / f"{guest.name}.safetensors"
        write_json(path.with_suffix(".json"), summary)
        write_tensors(path, own, {"client": guest.name})
        scores: dict[str, Any] = summary["scores"]
        return scores

    def dropped_newcomers(self, stage: Path) -> str:
        """Personal models of clients that have never joined: they were made from the model of before."""
        names = {path.stem for path in (self.folder.path / JOINED).glob("*.safetensors")}
        made = {path.stem for path in (stage / JOINED).glob("*.safetensors")}
        gone = names - made - {each["client"] for each in self.roster.changes}
        return ", ".join(sorted(gone))


def shared_scores(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What the shared model scores now, beside before the change; empty where one of the two is not known."""
    found, share = [], is_share(after["metric"])
    for name in ("generic", "client"):
        old, new = before["scores"][name], after["scores"][name]
        if old["final"] is not None and new["final"] is not None:
            over = [f" over {plural(each['clients'], 'client')}" if each.get("clients") else "" for each in (new, old)]
            now, was = (figure(each["final"], share) for each in (new, old))
            found.append(f"{name} {now}{over[0]}, before {was}{over[1]}")
    return "; ".join(found)


class OrganisersChange(Change):
    """The same in an organiser's folder, without the nodes: only the shared model is made again."""

    def make_job(self) -> Job:
        """The run's job, without nodes that were forgotten or never there."""
        notes = read_json(self.folder.path / NOTES)
        shared, _ = Predictor.load_shared(self.folder.path, None, "", code_check="none")
        schema = shared.schema
        federation = nodes_federation(schema, notes, self.settings, self.roster.forgotten)
        return JobMaker(self.settings, federation, None).make(self.folder.path)

    def open_engine(self, job: Job) -> Engine:
        """Nobody who could be asked."""
        last = self.roster.changes[-1]["client"]
        return NoNodes(job, f"{update_command(self.folder.path)} --forget {last}")
