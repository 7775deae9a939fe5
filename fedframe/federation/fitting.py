"""What cannot be done where data stay with the clients, refused by name before anything starts."""

from __future__ import annotations

from fedframe.core.job import Job
from fedframe.errors import SettingError


def check_fit(job: Job) -> None:
    """Refuse methods that need data in one place."""
    method, engine = job.method, job.settings.engine
    for part in method.parts:
        if part.pools_data or (part.name and len(job.federation.aside) and part in method.answering("reserve")):
            raise SettingError(
                f"{method.name!r} cannot run over a network: {part.name!r} needs clients' training data on the server; "
                "choose a method whose data stay with the clients, such as fedavg, or engine = local."
            )
    if job.settings.model == "python" or job.settings.device != "cpu":
        what = "model came from Python" if job.settings.model == "python" else f"device is {job.settings.device}"
        raise SettingError(
            f"The engine {engine} starts processes that build the net anew on the CPU, and the run's {what}; name the "
            "net (mlp:64, my_file.py:MyNet) and use device = cpu, or use engine = local."
        )
