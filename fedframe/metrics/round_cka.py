"""Linear CKA between a few clients' local models, layer by layer, in every evaluated round."""

from __future__ import annotations

from statistics import fmean

from torch import Tensor

from fedframe.core.job import Job
from fedframe.core.server import RoundRecord, Server
from fedframe.metrics.cka import layer_grams, mean_cka
from fedframe.metrics.local_models import LocalModels
from fedframe.metrics.sampling import some_clients, some_rows

CLIENTS = 5  # ten pairs
SAMPLES = 200


class CkaInRounds:
    """How alike the clients' local models see the same samples."""

    most: int | None = CLIENTS

    def __init__(self, job: Job) -> None:
        self.job = job

    def add(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """`cka/LAYER` for every layer, and `cka`, their mean; in rounds that are evaluated."""
        if record.scores is None:
            return
        clients = some_clients(local.clients(), CLIENTS, self.job.settings.seed)
        if len(clients) < 2:
            return
        inputs = common_inputs(self.job)
        grams = [layer_grams(self.job.method, model, inputs) for _, model in local.each(record.round, clients)]
        layers = mean_cka(grams)
        if layers:
            record.figures |= {f"cka/{layer}": value for layer, value in layers.items()}
            record.figures["cka"] = fmean(layers.values())


def common_inputs(job: Job) -> Tensor:
    """The samples that all models see: of the global test set, or of the training data where there is none."""
    source = job.federation.source
    samples, rows = source.train, job.federation.train.values
    if source.test is not None and len(source.test):
        samples, rows = source.test, job.test_rows("test")
    return source.batch(samples, some_rows(rows, SAMPLES, job.settings.seed, "cka")).to(job.settings.device)
