"""About how many local steps a run takes: what its time is proportional to."""

from __future__ import annotations

from fedframe.data.partition import read_partition
from fedframe.settings import Settings

# Training samples and classes of the public sets: an estimate must not need the data.
SIZES: dict[str, tuple[int, int]] = {
    "digits": (1438, 10),
    "mnist": (60_000, 10),
    "fashion-mnist": (60_000, 10),
    "emnist-letters": (124_800, 26),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
    "tiny-imagenet": (100_000, 200),
}


def local_steps(settings: Settings) -> int | None:
    """Steps of all clients in all rounds; None if the size of the data is not known before they are read."""
    size = SIZES.get(settings.data)
    clients = settings.clients or (20 if "user" not in settings.partition else None)
    if size is None or clients is None or settings.partition == "auto":
        return None
    classes = size[1]
    samples = size[0] * settings.data_share * (1 - settings.validate_share)
    imbalance = read_partition(settings.partition).imbalance
    if imbalance is not None:
        shares = [imbalance ** (-c / max(1, classes - 1)) for c in range(classes)]
        samples *= sum(shares) / classes
    if not isinstance(settings.local_test, str):
        samples *= 1 - settings.local_test
    taking_part = max(1, int(settings.participation * clients + 0.5))
    if settings.steps is not None:
        return settings.rounds * taking_part * settings.steps
    each = samples / clients
    batches = max(1.0, each / settings.batch + 0.5)  # the last batch of a client is half full on average
    return round(settings.rounds * taking_part * settings.epochs * batches)
