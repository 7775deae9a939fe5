"""Run and resume from Python; the command line calls the same two functions."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedframe.core.evaluation import EASIER_TASK, spoken_definitions
from fedframe.core.measures import is_share
from fedframe.errors import SettingError
from fedframe.jobs.build import JobMaker, Net, check_given
from fedframe.jobs.gather import gather
from fedframe.jobs.inputs import InputFinder
from fedframe.methods.recipes import MethodLike, confirm_method, method_text
from fedframe.runs.changes import changed_since, find_changes, refuse
from fedframe.runs.engine import check_engine
from fedframe.runs.federated import how_it_ends, is_organisers, not_here, train_again
from fedframe.runs.folder import EXAMINATION, MODEL, RunFolder, is_run_config
from fedframe.runs.progress import Display, choose_display
from fedframe.runs.result import RunResult
from fedframe.runs.rewind import rewind
from fedframe.runs.session import execute
from fedframe.settings import FROM_PYTHON, REMOTE_DATA, data_text, read_config, short_method
from fedframe.util.allowed_code import allow_edited, allow_typed, check_named
from fedframe.util.text import figure, interval, plural, sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class NotGiven(Enum):
    """Stands for a method that is not given: a config's, or the default. None would hide a mistake."""

    NOT_GIVEN = "the config's, or fedavg"

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Result(RunResult):
    """The result of a run: its folder, with scores, history and models. A notebook shows it as a table."""

    data: object = field(default=None, repr=False, compare=False)  # data that exist only in Python

    def report(self, out: str | Path | None = None, *, quick: bool = False, changed_code: bool = False) -> Path:
        """Write the run's HTML page (default: report.html in its folder) and return its path.

        `quick` examines no model and shows what is known already. `changed_code` examines models with the files as they
        are now, even if they have changed since the run.
        """
        from fedframe.report.page.build import write_page  # what only a report needs is loaded for one only

        if not quick and not (self.folder / EXAMINATION).exists():
            from fedframe.analysis import examine

            # The page would look at the models by itself, but has no data and no net that exist only in Python.
            net = None if isinstance(self.net, str) else self.net
            if not changed_code and self.code_check != "none":
                folder, objects = RunFolder(self.folder), self.code_check == "all"
                refuse(changed_since(folder, net, data=self.data is None, objects=objects), self.folder)
            examine(self.folder, net=net, data=self.data, changed_code=True)
            changed_code = True  # what has changed was refused above, if it was to be
        target = Path(out) if out is not None else None
        allowed = changed_code or self.code_check == "none"
        return write_page([self.folder], target, quick=quick, changed_code=allowed, notify=lambda text: None)

    def export(self, format: str = "onnx", client: int | str | None = None, out: str | Path | None = None) -> Path:
        """Write a model for use without Fedframe, as `fedframe export` does, and return its file."""
        from fedframe.analysis.export import export

        net = None if isinstance(self.net, str) else self.net
        return export(self.folder, format, client, out, net=net, data=self.data).file

    def plot(self, out: str | Path | None = None) -> Figure:
        """Return the learning curves as a matplotlib figure. `out` also writes them, as .svg, .png or .pdf."""
        from fedframe.report.figures.drawing import draw, make_figure
        from fedframe.report.page.runs import open_runs

        if out is not None:
            draw([self.folder], "curves", Path(out))
        return make_figure(open_runs([self.folder]), "curves")

    def __repr__(self) -> str:
        finished = RunFolder(self.folder).finished
        shown: object = "none yet"
        if finished:
            share = is_share(self.summary["metric"])
            shown = {name: figure(score["final"], share) for name, score in self.scores.items()}
        return f"Result({str(self.folder)!r}, scores={shown})"

    def _repr_html_(self) -> str:
        """The scores with their definitions, as a notebook shows them."""
        summary = self.summary
        share, words = is_share(summary["metric"]), spoken_definitions(summary)
        both = summary.get("task", "classification") == "classification" and all(
            summary["scores"][name]["final"] is not None for name in ("generic", "personal")
        )
        easier = f"<p>{html.escape(sentence(EASIER_TASK))}</p>" if both else ""
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{figure(score['final'], share)} {interval(score, share)}</td>"
            f"<td style='text-align:left'>{html.escape(words.get(name, ''))}</td></tr>"
            for name, score in summary["scores"].items()
        )
        method, data = short_method(summary["method"]), data_text(summary["data"])
        size = f"{plural(summary['clients'], 'client')}, {plural(summary['rounds'], 'round')}"
        about = f"{method} on {data}: {size}, seed {summary['seed']}"
        return (
            f"<p>{html.escape(about)}<br><code>{html.escape(str(self.folder))}</code></p><table>{rows}</table>{easier}"
        )


def run(
    method: MethodLike | NotGiven = NotGiven.NOT_GIVEN,
    *,
    data: object = None,
    model: Net | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    progress: bool | Display = True,
    **settings: Any,
) -> Result:
    """Train a method and return its result.

    Settings have the names of the command line (`rounds=50`, `lr=0.05`, ...). `method` may be a name, a part, a part's
    class, a recipe, or a list of them to be joined. `data` may be a name, arrays, tensors, a torch `Dataset`, a
    `Source` or a `Federation`. `model` may be a name, a module, or a function that makes one.
    """
    given = dict(settings)
    if not isinstance(method, NotGiven):
        given["method"] = method_text(method)
    named = {"data": data, "model": model}
    given |= {
        name: value if isinstance(value, str) else FROM_PYTHON for name, value in named.items() if value is not None
    }
    allow_typed(given.get("method"), given.get("model"))
    if config is not None:
        texts = [read_config(Path(config)).get(name) for name in ("method", "model") if given.get(name) is None]
        # A file of your own is what you would type; one that a run has left may be anybody's.
        (check_named if is_run_config(Path(config)) else allow_typed)(*texts)
    asked = gather(given, config)
    if asked.data == REMOTE_DATA and config is not None:
        raise SettingError(
            f"{config} is of a federation's run, whose data stay at the nodes; its organiser runs it again with: "
            f"{train_again(Path(config).parent)}"
        )
    if asked.secure and asked.engine == "local":
        raise SettingError(
            "secure = true hides updates from an organiser, and engine = local has none; use engine = flower."
        )
    check_engine(asked)
    inputs = InputFinder().find(asked, model)
    job_maker = JobMaker(asked, data, model)
    job_maker.choose_metric()
    folder = RunFolder.create(out, job_maker.settings)
    with folder.removed_unless_begun():
        job = job_maker.make(folder.path)
        folder.write_inputs(inputs)
        folder.write_names(job.federation.names if job.federation.source.user_names is not None else None)
        folder.write_settings(job.settings)  # last: with it the run has begun
        with choose_display(progress) as display:
            execute(job, folder, display)
    return Result(folder.path, job.settings, job_maker.net, "files", kept_object(data))


def resume(
    folder: str | Path,
    *,
    method: MethodLike | None = None,
    data: object = None,
    model: Net | None = None,
    changed_code: bool = False,
    from_round: int | None = None,
    without_private_state: bool = False,
    progress: bool | Display = True,
) -> Result:
    """Continue a run that was stopped. A finished run is returned as it is.

    If files are damaged, `from_round` goes back to a round that is kept (the last two, and 0), also in a finished run.
    With `without_private_state`, clients whose private state is damaged or missing start afresh.

    Give a method, data or a net again if they were objects. If files of your own have changed since the run began, it
    is refused, unless `changed_code` is true: then it continues with the files as they are now. A finished run is
    refused only when its models are used.
    """
    run_folder = RunFolder.open(folder)
    settings = run_folder.settings()
    if settings.data == REMOTE_DATA and data is None:
        return resume_federation(run_folder)
    confirm_method(settings.method, method)
    if changed_code:
        allow_edited(settings.method, settings.model)
    if from_round is not None:
        check_named(settings.method, settings.model)  # before anything is taken away
        rewind(run_folder, from_round)
    finished = run_folder.finished
    changed = None if finished else find_changes(run_folder, model, changed_code)
    if finished:  # nothing of it is loaded before a model is asked for
        check_given(settings, data, model)
        net = settings.model if model is None else model
        return Result(run_folder.path, settings, net, "none" if changed_code else "all", kept_object(data))
    check_named(settings.method, settings.model)
    job_maker = JobMaker(settings, data, model)
    job = job_maker.make(run_folder.path)
    if changed is not None:  # after the job was made: code that cannot run must not take the record's place
        changed.record(run_folder)
    with choose_display(progress) as display:
        execute(job, run_folder, display, without_private_state=without_private_state)
    return Result(run_folder.path, job_maker.settings, job_maker.net, "files", kept_object(data))


def resume_federation(folder: RunFolder) -> Result:
    """A federation's run that is finished; to go on with one is another command, with its nodes."""
    path = folder.path
    if (path / MODEL).exists() and not is_organisers(path):
        raise SettingError(not_here(path))
    if not folder.finished or not is_organisers(path):
        raise SettingError(f"{path} is a federation's run, whose data stay at the nodes: {how_it_ends(path)}")
    return Result(folder.path, folder.settings())


def kept_object(data: object) -> object:
    """Data that a result needs again to be looked at: those that are no name."""
    return None if isinstance(data, str) else data
