"""pfl-research on a job: `python -m benchmarks.peers.pfl_research D 5 job.npz 1`.

It works in the process that calls it, so `workers` is 1 there; it shares a round among several processes if torchrun
starts them, which then each hold the data. Clients' samples are slices of one array, made once.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.jobs import JOBS, Job
from benchmarks.loops import load
from benchmarks.peers.meter import Meter
from benchmarks.plain_nets import plain_net

try:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
except ImportError as error:
    sys.exit(
        f"pfl-research is not installed here ({error}): install it into an environment of its own that has Fedframe's "
        "torch, 'pip install --no-deps pfl multiprocess dill prv-accountant', and give its interpreter as --pfl-python"
    )


class Net(nn.Module):
    """A net with the loss as pfl-research asks for it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.net = plain_net(job, tuned=False)

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train()
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Any]:
        """Nothing is scored in this benchmark."""
        return {}


class Rounds(TrainingProcessCallback):  # type: ignore[misc]
    """Tells the meter of every round."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.meter.round()
        return False, Metrics()


def main(name: str, rounds: int, path: str, workers: int) -> None:
    if workers != 1:
        sys.exit("pfl-research works in one process, unless torchrun starts several: give 1")
    torch.set_num_threads(1)
    job, meter = JOBS[name], Meter()
    x, y = load(path)
    slices = [slice(first, first + job.samples_each) for first in range(0, job.samples, job.samples_each)]
    users = {number: PyTorchTensorDataset((x[own], y[own])) for number, own in enumerate(slices)}
    clients = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    net = Net(job)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=10**9,
            train_cohort_size=job.per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(clients, clients),
        model,
        NNTrainHyperParams(
            local_batch_size=job.batch, local_num_epochs=1, local_learning_rate=job.lr, local_max_grad_norm=None
        ),
        callbacks=[Rounds(meter)],
        send_metrics_to_platform=False,
    )
    meter.report()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
