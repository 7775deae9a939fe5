"""Run and resume from Python; the command line calls the same two functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedframe.errors import SettingError
from fedframe.jobs.build import FROM_PYTHON, JobMaker, Net
from fedframe.jobs.gather import gather
from fedframe.runs.engine import check_engine
from fedframe.runs.federated import how_it_ends, is_organisers, not_here, train_again
from fedframe.runs.folder import MODEL, SUMMARY, RunFolder
from fedframe.runs.predictor import Predictor
from fedframe.runs.progress import Display, choose_display
from fedframe.runs.session import execute
from fedframe.settings import REMOTE_DATA, Settings
from fedframe.util.files import read_json

if TYPE_CHECKING:
    from fedframe.runs.personalise import Newcomer


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
        from fedframe.runs.personalise import personalise  # it imports this module

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
    if asked.data == REMOTE_DATA and config is not None:
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
    if run_folder.settings().data == REMOTE_DATA and data is None:
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
