"""Progress of a run: a live display on a terminal, plain lines elsewhere, nothing when not wanted."""

from __future__ import annotations

import re
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedframe.core.evaluation import EASIER_TASK, spoken_definitions
from fedframe.core.measures import METRICS, NUMBER_METRICS, is_share, metric_name
from fedframe.metrics.accuracy import has_tail
from fedframe.settings import data_text, short_method
from fedframe.util.display import ProgressDisplay, choose, print_line, start_bars
from fedframe.util.text import duration, figure, interval, loss_text, percent, plural, sentence

if TYPE_CHECKING:
    from rich.progress import TaskID

    from fedframe.core.evaluation import Scores
    from fedframe.core.job import Job
    from fedframe.core.round_record import RoundRecord
    from fedframe.data import Source

REFUSED = " (log.txt says why; most often numbers are no longer finite, and a smaller --lr helps)"


class Display(ProgressDisplay):
    """Shows nothing; the base of the other displays of a run."""

    def start(self, job: Job, folder: Path, done: int) -> None:
        """The run begins, or goes on after `done` rounds."""

    def client(self, done: int, total: int) -> None:
        """Another client of the round (or of a stage) is done."""

    def round(self, record: RoundRecord) -> None:
        """A round is finished and written down."""

    def stage(self, text: str) -> None:
        """What is done now, after the last round."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def end(self, summary: dict[str, Any], folder: Path) -> None:
        """The run is over."""


class PlainDisplay(Display):
    """One line per evaluated round: for files, pipes and continuous integration."""

    def start(self, job: Job, folder: Path, done: int) -> None:
        """Say what is run."""
        self.rounds, self.first, self.began = job.settings.rounds, done, time.perf_counter()
        self.share = is_share(job.settings.score_metric)
        print_line(headline(job, folder))

    def round(self, record: RoundRecord) -> None:
        """Loss, scores and the time that is left."""
        if record.scores is None and record.round != self.first + 1:
            return
        per_round = (time.perf_counter() - self.began) / (record.round - self.first)
        left = duration(per_round * (self.rounds - record.round))
        text = f"{loss_text(record.loss)}{round_scores(record, self.share)}{privacy_text(record)}"
        print_line(f"round {record.round}/{self.rounds}  {text}  {left} left of the rounds")

    def stage(self, text: str) -> None:
        """Announce the stage."""
        print_line(text)

    def note(self, text: str) -> None:
        """Print the note."""
        print_line(text)

    def end(self, summary: dict[str, Any], folder: Path) -> None:
        """Print the final scores."""
        for text in closing_lines(summary, folder):
            print_line(text)


class LiveDisplay(Display):
    """A progress bar with round, loss, accuracies and the time that is left."""

    def open(self) -> None:
        """Start drawing; each refresh takes time from the workers."""
        self.bar = start_bars("scores", remaining=True, refresh_per_second=4)

    def close(self) -> None:
        """Stop drawing."""
        self.bar.stop()

    def start(self, job: Job, folder: Path, done: int) -> None:
        """Draw the bar."""
        self.bar.print(headline(job, folder), markup=False, highlight=False)
        self.task: TaskID = self.bar.add_task("round", total=job.settings.rounds, completed=done, scores="")
        self.finished = done
        self.share = is_share(job.settings.score_metric)
        self.scores = ""
        self.in_stage = False

    def client(self, done: int, total: int) -> None:
        """Move the bar by a client's share."""
        if self.in_stage:
            self.bar.update(self.task, completed=done, total=total)
        else:
            self.bar.update(self.task, completed=self.finished + done / total)

    def round(self, record: RoundRecord) -> None:
        """Show the round's loss and scores."""
        self.finished = record.round
        self.scores = round_scores(record, self.share) or self.scores
        text = f"{loss_text(record.loss)}{self.scores}{privacy_text(record)}"
        self.bar.update(self.task, completed=record.round, scores=text)

    def stage(self, text: str) -> None:
        """A second bar for what comes after the last round."""
        self.in_stage = True
        self.bar.update(self.task, description="personal", completed=0, total=None)
        self.bar.print(text, markup=False, highlight=False)

    def note(self, text: str) -> None:
        """Print the note above the bar."""
        self.bar.print(text, style="yellow", markup=False, highlight=False)

    def end(self, summary: dict[str, Any], folder: Path) -> None:
        """Print the final scores below the bar."""
        self.bar.stop()
        for text in closing_lines(summary, folder):
            for line in fold(text, self.bar.console.width):
                self.bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


def choose_display(progress: bool | Display) -> Display:
    """The display that suits where the output goes."""
    if isinstance(progress, Display):
        return progress
    return choose(progress, Display, PlainDisplay, LiveDisplay)


def closing_lines(summary: dict[str, Any], folder: Path) -> list[str]:
    """The result in plain words."""
    lines = [""]
    share, words = is_share(summary["metric"]), spoken_definitions(summary)
    for name, score in summary["scores"].items():
        ends = interval(score, share)
        text = f"  {name:9}{figure(score['final'], share):>7} {ends:13} {words[name]}"
        if name == "new" and score["client"] is not None:
            text += f" ({figure(score['client'], share)})"
        over, clients = score.get("clients"), summary["clients"]
        if score["final"] is None:
            text = f"  {name:9}{percent(None):>7} {'':13} {why_not(name, summary)}"
        elif over is not None and over < clients:
            text += f" (over {over:,} of {clients:,} clients: {why_fewer(score, over, clients)})"
        elif score.get("samples"):
            text += f" ({plural(score['samples'], 'test sample')})"
        lines.append(text)
    evaluations, five = summary["evaluations"], summary["scores"]["generic"]["last_five"]
    if evaluations > 1 and five is not None:
        before = ", before the server stage" if summary["server_stage"] else ""
        text = f"generic, mean of the last {min(5, evaluations)} evaluations{before}"
        lines.append(f"  {'':9}{figure(five, share):>7} {'':13} {text}")
    lines += [*tail_lines(summary), *measure_lines(summary), *comparing_lines(summary)]
    predict = f"fedframe predict {folder} INPUT{whose(summary)}"
    lines += [
        "",
        f"  {duration(summary['seconds'])}, {summary['peak_memory_mb']:.0f} MB in all processes, "
        f"{plural(summary['updates_refused'], 'update')} refused{REFUSED if summary['updates_refused'] else ''}"
        f"{missing_text(summary.get('replies_missing', 0))}.",
        f"  Everything is in {folder}: try '{predict}', 'fedframe report {folder}'.",
    ]
    return lines


SCORE_LINE = re.compile(r"  [\w -]{9}[\d.,%–\s-]{7} [\[\]\d.,\s-]{13} (?=\S)")  # noqa: RUF001


def fold(text: str, width: int) -> list[str]:
    """A line of the result as lines of a terminal; words about a score stay in their column."""
    score = SCORE_LINE.match(text)
    indent = " " * (len(score[0]) if score and width >= 2 * len(score[0]) else 2)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False) or [""]


def why_fewer(score: dict[str, Any], over: int, clients: int) -> str:
    """Why a mean is not over all clients."""
    silent = score.get("unheard", 0)
    if over + silent == clients:
        return f"{silent:,} gave no answer"
    return "those with test data, or a draw of them" + (f", but for {silent:,} that gave no answer" if silent else "")


def missing_text(lost: int) -> str:
    """Replies that never came: there was no update to refuse."""
    return f", {plural(lost, 'reply', 'replies')} missing (log.txt says whose and why)" if lost else ""


def privacy_text(record: RoundRecord) -> str:
    """What was spent of the clients' privacy so far, where it is counted."""
    spent = record.figures.get("epsilon")
    return "" if spent is None else f"  epsilon {spent:.3g}"


def why_not(score: str, summary: dict[str, Any]) -> str:
    """Why there is no such score."""
    if score in ("generic", "client") and not summary["shares_a_model"]:
        return f"{short_method(summary['method'])} has no shared model that predicts"
    return "not measured"


def whose(summary: dict[str, Any]) -> str:
    """The option without which nothing predicts: where there is no shared model, a client's own must be named."""
    return "" if summary["shares_a_model"] else " --client 0"


def tail_lines(summary: dict[str, Any]) -> list[str]:
    """Frequent and rare classes apart, where their numbers differ so much that one mean hides the rare ones."""
    groups = {name: value for name, value in summary["per_group"].items() if value is not None}
    if len(groups) < 2 or not has_tail(summary["train_per_class"]):  # no groups where labels stay with the clients
        return []
    found = ", ".join(f"{name} {percent(value)}" for name, value in groups.items())
    return [f"  {'':9}{'':7} {'':13} generic by how frequent a class is in the training data: {found}"]


def measure_lines(summary: dict[str, Any]) -> list[str]:
    """What else a trade measures, of the shared model on the largest test set that there is."""
    measures = summary.get("measures", {})
    score = next((name for name in ("generic", "client", "personal") if name in measures), None)
    if score is None:
        return []
    found = measures[score]
    at = f"{100 * found['at']:g} %" if "at" in found else ""
    names = {
        **{metric: metric_name(metric) for metric in (*METRICS, *NUMBER_METRICS)},
        "sensitivity": f"sensitivity at {at} specificity",
        "specificity": f"specificity at {at} sensitivity",
    }
    texts = [
        f"{name} {figure(found[metric]['value'], is_share(metric))} {interval(found[metric], is_share(metric))}"
        for metric, name in names.items()
        if found.get(metric) is not None and metric != summary["metric"]
    ]
    about = f" (positive class: {found['positive']!r})" if found.get("positive") else ""
    pooled = "" if score == "generic" else ", all clients' predictions together"
    return [f"  {'':9}{'':7} {'':13} {score}{pooled}, by other measures{about}: {', '.join(texts)}"]


def comparing_lines(summary: dict[str, Any]) -> list[str]:
    """What must be known to set personal beside generic."""
    both = all(summary["scores"][name]["final"] is not None for name in ("generic", "personal"))
    both = both and summary.get("task", "classification") == "classification"
    return ["", f"  {sentence(EASIER_TASK)}"] if both else []


def headline(job: Job, folder: Path) -> str:
    """What is run, in one line."""
    settings, source = job.settings, job.federation.source
    each = max(1, int(settings.participation * len(job.federation) + 0.5))
    rounds = f"{each} a round, {plural(settings.rounds, 'round')}" if settings.rounds else "no rounds"
    return (
        f"{short_method(settings.method)} on {data_text(source.name)}: "
        f"{len(job.federation.train.values):,} training samples, "
        f"{learned_text(source)}, "
        f"{plural(len(job.federation.present), 'client')} ({settings.partition}), "
        f"{rounds}, "
        f"{settings.model.rpartition('/')[2]} with {job.parameters:,} parameters -> {folder}"
    )


def learned_text(source: Source) -> str:
    """What is learned, and of how many kinds."""
    if source.task == "classification":
        return plural(len(source.classes), "class", "classes")
    return plural(len(source.outputs), *(("number", "numbers") if source.task == "regression" else ("label", "labels")))


def round_scores(record: RoundRecord, share: bool = True) -> str:
    """The scores of a round in one line, and those that nodes have sent since of the model of the round before."""
    now = scores_text(record.scores, share) if record.scores is not None else ""
    late = scores_text(record.late, share) if record.late is not None else ""
    said = [*([now] if now else []), *([f"{late} after round {record.round - 1}"] if late else [])]
    return "".join(f"  {text}" for text in said)


def scores_text(scores: Scores, share: bool = True) -> str:
    """Those that there are; personal ones where clients have models of their own between rounds."""
    named = {"generic": scores.generic, "client": scores.client, "personal": scores.personal}
    return "  ".join(f"{name} {figure(value, share)}" for name, value in named.items() if value is not None)
