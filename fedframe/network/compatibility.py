"""Checks that refuse what cannot be done where data stay with the clients, by name and before anything starts."""

from __future__ import annotations

from fedframe.core.job import Job, agreeing, per_round
from fedframe.core.method import Method
from fedframe.core.part import ALL_DATA, ModelSize, overrides
from fedframe.core.reply_limits import most_samples
from fedframe.errors import RunError, SettingError
from fedframe.settings import Settings


def check_data_stay_local(method: Method, reserves_data: bool = True) -> None:
    """Refuse methods that need data on the server; `reserves_data`: whether parts that may reserve data do so."""
    for part in method.parts:
        if part.server_samples == ALL_DATA or (part.server_samples and reserves_data):
            raise SettingError(
                f"{method.name!r} cannot run over a network: {part.name!r} needs clients' training data on the server; "
                "choose a method whose data stay with the clients, such as fedavg, or engine = local."
            )


def check_secure_aggregation(settings: Settings, method: Method, clients: int) -> None:
    """Refuse what cannot be summed securely among so many clients."""
    if settings.secure:
        if clients < 2:
            raise SettingError("secure = true hides a client among others, and there are no two clients; leave it out.")
        if (drawn := per_round(settings.participation, clients)) < 2:
            raise SettingError(
                f"participation = {settings.participation:g} of {clients} clients is {drawn} a round, and the sum of "
                f"one is its update; with secure = true use {2 / clients:.2g} or more."
            )
        if settings.min_clients == 1:
            raise SettingError("min_clients = 1 with secure = true would show one client's update; use 2 or more.")
        check_summable(method)


def check_summable(method: Method) -> None:
    """Refuse parts that need single replies."""
    any_size = ModelSize(classes=2, dim=2, trainable=2)  # how uploads are aggregated does not depend on it
    for part in method.parts:
        single = any(upload.aggregate in ("each", "number") for upload in part.uploads(any_size).values())
        if single or overrides(type(part), "merger") or overrides(type(part), "before_merge"):
            raise SettingError(
                f"secure = true lets the server see sums only, and {part.name!r} of {method.name!r} needs single "
                "clients' replies; leave one of them out, or use a method of sums, such as fedavg or scaffold."
            )


def check_claimed_samples(job: Job) -> None:
    """Refuse secure sums in which one member would count for more than the agreement allows.

    Members weigh their updates themselves before they are masked, so that the server cannot bound a weight afterwards.
    """
    settings = job.settings
    if not settings.secure or settings.weighting != "samples":
        return
    sizes = job.federation.train.sizes()
    largest, most = int(sizes.argmax()), most_samples(sizes, settings.samples_bound)
    if sizes[largest] > most:
        raise RunError(
            f"{job.federation.names[largest]} says that it has {int(sizes[largest]):,} samples, more than "
            f"samples_bound = {settings.samples_bound:g} times the members' median, and in a secure sum no weight can "
            "be bounded: use weighting = uniform, or a larger samples_bound if the number is right."
        )


def check_min_clients(settings: Settings, clients: int) -> None:
    """Refuse to wait for more replies than are asked for."""
    drawn = per_round(settings.participation, clients)
    if isinstance(settings.min_clients, int) and settings.min_clients > drawn:
        of = f" (participation = {settings.participation:g} of {clients} clients)" if drawn < clients else ""
        raise SettingError(
            f"min_clients = {settings.min_clients}: there are {drawn} clients in a round{of}; use min_clients = "
            f"{drawn}, or fewer."
        )


def price_of_smaller_sums(settings: Settings, members: int) -> str | None:
    """What it costs that secure sums may be made without some members; None where each has all of them."""
    if not settings.secure:
        return None
    asked = settings.min_clients
    least = members if isinstance(asked, str) else min(members, max(asked or 0, agreeing(members)))
    drawn = per_round(settings.participation, members)
    if least == drawn == members:
        return None
    how = f"of {least} of {members}" if least < members else f"participation = {settings.participation:g}"
    both = "" if drawn == members else "participation = 1 and "
    return (
        f"Sums without some members may be unmasked ({how}): an organiser that lies about who is away, or draws whom "
        f"it likes, can tell one member's update from the sums of two rounds; {both}min_clients = all rules that out, "
        "and then a round waits for whoever is away."
    )


def check_measures(settings: Settings, data_is_local: bool) -> None:
    """Refuse measures of what the server does not see; `data_is_local`: the clients' data are on this machine."""
    asked = set(settings.measures)
    if settings.secure and (single := sorted(asked & {"drift", "cka"})):
        raise SettingError(
            f"measure = {','.join(single)} looks at single updates, which secure = true hides; leave measure out."
        )
    if not data_is_local and (needy := sorted(asked - {"drift"})):
        raise SettingError(
            f"measure = {','.join(needy)} needs samples on the server, and they are at the nodes; use measure = drift."
        )
    if not data_is_local and settings.new_clients:
        raise SettingError(
            "new_clients keeps clients out of the training whose data are here, and nodes' data are not; use 0 and, "
            "for a client that comes later, fedframe personalise."
        )


def check_local_deployment(job: Job) -> None:
    """Refuse jobs that node processes on this machine cannot do."""
    settings = job.settings
    check_secure_aggregation(settings, job.method, len(job.federation))
    check_claimed_samples(job)
    check_min_clients(settings, len(job.federation))
    check_measures(settings, data_is_local=True)
    check_data_stay_local(job.method, reserves_data=len(job.federation.server_rows) > 0)
    if settings.model == "python" or settings.device != "cpu":
        what = "model came from Python" if settings.model == "python" else f"device is {settings.device}"
        raise SettingError(
            f"The engine {settings.engine} starts processes that build the net again on the CPU, and the run's {what}; "
            "name the net (mlp:64, my_file.py:MyNet) and use device = cpu, or use engine = local."
        )
