"""One run from start to end: engine, rounds, files, final scores."""

from __future__ import annotations

import json
import math
import time
import traceback
from dataclasses import fields
from typing import Any

from fedframe.core.evaluation import Scores, gentler
from fedframe.core.imbalance import IMBALANCED, imbalance_text, majority
from fedframe.core.job import Job, check_names, count_personal
from fedframe.core.measures import is_share, metric_name, sign_of
from fedframe.core.round_record import RoundRecord
from fedframe.core.server import Server
from fedframe.errors import DataError, DivergedError, FedframeError
from fedframe.metrics.cost import cpu_seconds, highest_memory_bytes, memory_bytes
from fedframe.metrics.observers import observers
from fedframe.runs.advice import how_to_go_on, is_own_fault
from fedframe.runs.engine import OpenEngine, open_engine
from fedframe.runs.expectation import expectation
from fedframe.runs.folder import CLIENT_SCORES, RunFolder
from fedframe.runs.gain import told_rows, write_gain
from fedframe.runs.loggers import Loggers
from fedframe.runs.new_client_scores import score_new_clients
from fedframe.runs.predictor import save_model
from fedframe.runs.private_states import StateIndex
from fedframe.runs.progress import Display
from fedframe.runs.round_files import CHECKPOINT, DRIFT, METRICS, SUMMARY
from fedframe.runs.summary import client_table, spreads, summarise
from fedframe.util.files import write_json, write_sealed
from fedframe.util.text import figure

COLLAPSED = 0.5  # of its best accuracy: less than this share is no swing from round to round
HARM = 0.02  # personal accuracy this far below that of the shared model is not chance
MOST_NOTE = 1000  # characters of a note
MEMORY_EVERY = 2.0  # seconds between two looks at the memory, at least
MEMORY_SHARE = 0.002  # of the time, at most: where processes are large a look takes some ten milliseconds


class Session:
    """A run in progress: records rounds, notes and costs while the server trains."""

    def __init__(self, job: Job, folder: RunFolder, display: Display, engine: OpenEngine = open_engine) -> None:
        self.job, self.folder, self.display = job, folder, display
        self.began, self.cpu_began = time.perf_counter(), cpu_seconds()
        self.seconds_before = 0.0  # of earlier sessions of the same run
        self.cpu_before = 0.0
        self.peak_memory = 0
        self._memory_due = 0.0  # when the memory is looked at next
        self.loggers = Loggers(job.settings, folder.path, self.note)
        self.engine = engine(job, self.note)
        self.job = job = self.engine.server_job(job)
        try:
            self.states = StateIndex(job)
            self.server = Server(job, self.engine, self.note, [*observers(job, self.note), self.states])
            if not (folder.path / CHECKPOINT).exists():  # runs that have begun go on with the names they have
                check_names(job, self.server.state.owners)
        except BaseException:
            self.engine.close()
            raise
        self.fingerprint = job.fingerprint()
        self.history: list[dict[str, Any]] = []

    def note(self, text: str) -> None:
        """Show and log something that the user should know."""
        text = sanitize_log_line(text)
        self.folder.log(text)
        self.display.note(text)

    def restore(self, without_private_state: bool = False) -> None:
        """Go on after the last finished round, if there is one.

        `without_private_state`: clients whose private state is damaged or missing start afresh.
        """
        found = self.folder.checkpoint()
        if found is None:
            self.folder.keep_metrics_until(0)
            return
        round, tensors, notes = found
        if notes["fingerprint"] != self.fingerprint:
            raise DataError(
                f"The data or the net of {self.folder.path} have changed since round {round}; put them back as they "
                "were, or start a new run with another --out."
            )
        state = self.server.state
        usable = {name: t for name, t in tensors.items() if state.usable(name.removeprefix("state/"), t)}
        self.server.restore(usable, round)
        self.history, mended = self.folder.keep_metrics_until(round)
        for text in (*mended, *self.states.restore(tensors, without_private_state)):
            self.note(text)
        self.seconds_before, self.cpu_before = notes["seconds"], notes["cpu_seconds"]
        self.peak_memory = notes["peak_memory"]
        self.server.traffic = notes.get("traffic", self.server.traffic)
        if self.history and "client" not in self.history[-1]:
            self.engine.evaluation.resume(self.server)
        self.note(f"Going on after round {round} of {self.job.settings.rounds}.")

    def finish_round(self, record: RoundRecord) -> None:
        """Write a round down: its line first, then the checkpoint that makes it count."""
        self.watch_memory()
        self.complete_line(record.late)
        line = metrics_line(record)
        self.folder.append_metrics(line)
        self.history.append(line)
        self.loggers.round(line)
        if record.by_client:
            self.folder.append_drift({"round": record.round, **record.by_client})
        notes = {**self.costs(), "fingerprint": self.fingerprint, "traffic": self.server.traffic}
        self.folder.write_checkpoint(record.round, {**self.server.tensors(), **self.states.tensors()}, notes)
        self.display.round(record)

    def complete_line(self, late: Scores | None) -> None:
        """Add scores of the last round's model that clients behind a network have sent since."""
        if late is None or not self.history:
            return
        self.history[-1] |= late.line()
        self.folder.write_metrics(self.history)

    def conclude(self) -> Scores:
        """The stages after the last round, whose memory is looked at with every client.

        Solving for a classifier from all clients' sums happens between two looks, but leaves its mark on the process.
        """
        before = highest_memory_bytes()

        def progress(done: int, total: int) -> None:
            self.watch_memory()
            self.display.client(done, total)

        final = self.server.conclude(progress)
        highest = highest_memory_bytes()
        if highest > before:
            self.peak_memory = max(self.peak_memory, highest)
        return final

    def costs(self) -> dict[str, Any]:
        """Time and memory so far, over all sessions of the run."""
        return {
            "seconds": self.seconds_before + time.perf_counter() - self.began,
            "cpu_seconds": self.cpu_before + cpu_seconds() - self.cpu_began,
            "peak_memory": self.peak_memory,
        }

    def watch_memory(self) -> None:
        """Look at the memory of all processes from time to time."""
        if time.perf_counter() < self._memory_due:
            return
        began = time.process_time()
        self.peak_memory = max(self.peak_memory, memory_bytes(self.engine.processes()))
        took = time.process_time() - began
        self._memory_due = time.perf_counter() + max(MEMORY_EVERY, took / MEMORY_SHARE)


def sanitize_log_line(text: str) -> str:
    """One line of bounded length: text from a node can neither control a terminal nor forge or flood a log."""
    line = "".join(each if each.isprintable() else " " for each in text[: MOST_NOTE + 1])
    return line if len(line) <= MOST_NOTE else f"{line[: MOST_NOTE - 4]} ..."


def execute(
    job: Job,
    folder: RunFolder,
    display: Display,
    engine: OpenEngine = open_engine,
    again: str | None = None,
    without_private_state: bool = False,
) -> None:
    """Run what is left of a run and write its results; `again` goes on with it where `fedframe resume` does not."""
    with folder.alone():
        execute_alone(job, folder, display, engine, again, without_private_state)


def execute_alone(
    job: Job, folder: RunFolder, display: Display, engine: OpenEngine, again: str | None, without_private_state: bool
) -> None:
    """The same, once no other process works on the folder."""
    session = Session(job, folder, display, engine)
    job = session.job
    try:
        session.restore(without_private_state)
        display.start(job, folder.path, session.server.round)
        for text in (*job.federation.notes, *imbalance(job), *expectation(job, session.server.round)):
            session.note(text)
        session.server.train(session.finish_round, display.client)
        display.stage("final scores and personal models" if job.settings.personal else "final scores")
        final = session.conclude()
        session.complete_line(session.server.late)
        session.watch_memory()
        new = None
        if job.federation.with_new_clients is not None:
            session.engine.close()
            display.stage("clients that were kept out of the training")
            new = score_new_clients(session.server, session.note, display.client)
    except (KeyboardInterrupt, FedframeError) as stop:
        session.loggers.close()
        text = how_to_go_on(stop, job.settings, folder, session.server.round, again)
        if stop.__cause__ is not None:  # an error in the user's own code, of which users see one sentence
            folder.log("".join(traceback.format_exception(stop)))
        folder.log(f"Stopped ({type(stop).__name__}: {stop}). {text}")
        if not isinstance(stop, DivergedError) or is_own_fault(stop, folder):
            stop.add_note(text)
        raise
    except Exception as error:  # of the user's own code, or a bug of ours: what is finished is kept all the same
        session.loggers.close()
        folder.log("".join(traceback.format_exception(error)))
        text = how_to_go_on(error, job.settings, folder, session.server.round, again)
        error.add_note(f"log.txt in {folder.path} has the whole traceback. {text}")
        raise
    finally:
        session.engine.close()
    warn_of_harm(session, final)
    warn_of_collapse(session)
    warn_of_imbalance(session, final)
    save_model(folder.path, job, session.server.model, session.server.fixed_overrides)
    table = client_table(job, final)
    kept_out = {} if new is None else {"new": new.by_client()}
    write_sealed(folder.path / CLIENT_SCORES, json.dumps({**table, **kept_out}) + "\n")
    if final.told:
        write_gain(
            folder.path,
            job.settings.score_metric,
            told_rows(table, job.federation.names, final.told, job.settings.score_metric),
        )
    server = session.server
    summary = summarise(job, session.history, final, new, session.costs(), server.traffic, server.stages)
    summary["spread"] = spreads(table, job.settings.score_metric)
    summary["changed_code"] = folder.changed_code()
    summary["lines"] = {METRICS: len(session.history), DRIFT: len(folder.drift())}
    summary["personal_models"] = count_personal(folder.path)
    write_json(folder.path / SUMMARY, summary)
    session.loggers.end(summary)
    display.end(summary, folder.path)


def imbalance(job: Job) -> list[str]:
    """What accuracy hides, where one class has nearly all of the test data; nothing where labels are elsewhere."""
    name, share = majority(job.federation)
    return [imbalance_text(name, share, job.settings.score_metric)] if share > IMBALANCED else []


def warn_of_imbalance(session: Session, final: Scores) -> None:
    """The same at the end of a federation's run, where nodes have not told it before the first round."""
    if session.job.target is not None or majority(session.job.federation)[0] or "client" not in final.pooled:
        return
    counts = final.pooled["client"].confusion.sum(1)
    share = float(counts.max() / counts.sum())
    if share > IMBALANCED:
        name = session.job.federation.source.classes[int(counts.argmax())]
        session.note(imbalance_text(name, share, session.job.settings.score_metric))


def warn_of_harm(session: Session, final: Scores) -> None:
    """Note it if the client stage made models worse."""
    if final.personal is None or final.client is None:
        return
    metric = session.job.settings.score_metric
    share, sign = is_share(metric), sign_of(metric)
    slack = HARM if sign > 0 else HARM * abs(final.client)
    if sign * (final.personal - final.client) > -slack:
        return
    stage = session.job.method.slot("client_stage")
    if getattr(stage, "epochs", None) == 0:  # they are as the rounds have left them
        why = "more rounds, or a smaller learning rate, may help"
    else:
        why = f"the client stage did harm; {gentler(stage, session.job.settings.lr)}"
    session.note(
        f"The clients' own models are worse on their own data ({figure(final.personal, share)}) than the shared one "
        f"({figure(final.client, share)}): {why}."
    )


def warn_of_collapse(session: Session) -> None:
    """Note it if models have lost what they had learned, although their numbers are finite."""
    shared = session.job.shares_a_model
    metric = session.job.settings.score_metric
    sign, share = sign_of(metric), is_share(metric)
    score, whose = ("generic", "of the shared model") if shared else ("personal", "of own models")
    known = {line["round"]: line[score] for line in session.history if line.get(score) is not None}
    if not known:
        return
    best, last = max(known, key=lambda round: sign * known[round]), max(known)
    lost = known[last] < known[best] * COLLAPSED if sign > 0 else known[last] * COLLAPSED > known[best]
    if lost and (share or sign < 0 or known[best] > 0):
        session.note(
            f"The {metric_name(metric)} {whose} was {figure(known[best], share)} after round {best} and "
            f"{figure(known[last], share)} "
            f"after round {last}: the training went wrong; start again with a smaller lr (now "
            f"{session.job.settings.lr:g}) or with clip = 10."
        )


def metrics_line(record: RoundRecord) -> dict[str, Any]:
    """A round as a line of metrics.jsonl."""
    left_out = ("scores", "late", "figures", "by_client")
    line = {each.name: getattr(record, each.name) for each in fields(record) if each.name not in left_out}
    if math.isnan(record.loss):  # a round that was given up has none
        del line["loss"]
    return {**line, **record.figures, **(record.scores.line() if record.scores is not None else {})}
