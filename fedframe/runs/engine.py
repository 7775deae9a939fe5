"""Which engine a run gets: the one place that knows them all. Those that need an extra are imported when asked for."""

from __future__ import annotations

from collections.abc import Callable

from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.engines.local import local_engine
from fedframe.errors import SettingError
from fedframe.settings import Settings, from_python

Note = Callable[[str], None]


OpenEngine = Callable[[Job, Note], Engine]


def check_engine(settings: Settings) -> None:
    """Refuse an engine that cannot be started here, before anything is written."""
    if settings.engine != "local":
        from fedframe.network.flower.environment import require_packages

        if "method" in from_python(settings.model_dump()):
            raise SettingError(
                f"The engine {settings.engine} starts processes that make the method again, and this one came from "
                "Python; put it into a file and name it (my_file.py:MyPart), or use engine = local."
            )
        if settings.engine == "flower-sim":
            require_packages("flwr", "ray", extra="flower-sim")
        else:
            require_packages("flwr", "cryptography")


def open_engine(job: Job, note: Note) -> Engine:
    """Start the engine that the settings name."""
    if job.settings.engine == "local":
        return local_engine(job, note)
    check_engine(job.settings)
    from fedframe.network.flower import open_flower

    return open_flower(job, note)
