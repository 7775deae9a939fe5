"""What parts may use on the server: the shared model, the state that they keep, and what clients sent in a round."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedframe.core.aggregation import UploadSums
from fedframe.core.job import Job
from fedframe.core.layout import named_tensors
from fedframe.core.model import Model, load_tensors
from fedframe.core.part import ModelSize
from fedframe.core.reply_limits import ReplyLimits
from fedframe.core.server_state import StateTensors
from fedframe.util.seeds import generator_for


class ServerView:
    """The part of the server that hooks of parts read and change."""

    def __init__(self, job: Job, note: Callable[[str], None]) -> None:
        self.job = job  # the run: settings, method and data
        self.note = note  # adds a line to the log of the run
        self.layout = job.roles.layout  # where each tensor stands in the flat vector of the shared weights
        self.model = self.layout.flatten(named_tensors(job.template))  # the shared weights as one flat vector
        self.fixed_overrides: dict[str, Tensor] = {}  # fixed tensors of the model that the server has changed
        self.state = StateTensors()  # what parts keep on the server, as `server_state` declares it
        self.figures: dict[str, float] = {}  # figures that parts add to the round's line of metrics
        self.round = 0  # the last finished round
        self.stage = 0  # the current one of the stages in which statistics are asked for after the last round
        self.request_digest = ""  # the digest of the current request for statistics
        self.uploads = UploadSums({})  # what clients have sent for parts in the current round
        self.limits = ReplyLimits(job, note)  # bounds on what a single reply can do
        self._net: tuple[Model, Tensor] | None = None  # made when a part first asks for it

    @property
    def size(self) -> ModelSize:
        """The number of classes, the size of a feature and the size of the model, for the shapes of state."""
        return self.job.size

    @property
    def current_round(self) -> int:
        """The number of the current round."""
        return self.round + 1

    @property
    def lr(self) -> float:
        """The clients' learning rate in the current round."""
        return self.learning_rate(self.current_round)

    def learning_rate(self, round: int) -> float:
        """The clients' learning rate in a round."""
        return self.job.learning_rate(round)

    def total(self, name: str) -> Tensor:
        """The sum over this round's replies of an upload that is declared as `sum` or `weighted_sum`, in float64."""
        return self.uploads.total(name)

    def each(self, name: str) -> list[Tensor]:
        """What each client of this round sent of an upload that is declared as `each`, in the order of the clients."""
        return self.uploads.each(name)

    @property
    def weight_of_all(self) -> float:
        """The sum of the weights of all clients, whether or not they take part in the round."""
        by_samples = self.job.settings.weighting == "samples"
        return self.limits.samples_of_all() if by_samples else float(len(self.job.federation))

    def tensor(self, name: str) -> Tensor:
        """A tensor of the server's model, by name."""
        shared = self.layout.views(self.model)
        if name in shared:
            return shared[name]
        return self.fixed_overrides.get(name, named_tensors(self.job.template)[name].detach())

    def set_tensor(self, name: str, value: Tensor) -> None:
        """Set a tensor of the model, shared or fixed. Clients receive it with the next request."""
        shared = self.layout.views(self.model)
        if name in shared:
            shared[name].copy_(value)
        else:
            self.fixed_overrides[name] = value.detach().clone().float()

    def net(self) -> Model:
        """The current shared model as a net in evaluation mode, for parts that work with data on the server."""
        if self._net is None:
            model = self.job.fresh_model().eval()
            self._net = (model, self.layout.bind(model))
        model, flat = self._net
        with torch.no_grad():
            flat.copy_(self.model)
        load_tensors(model, self.fixed_overrides)
        return model

    def generator(self, purpose: str) -> torch.Generator:
        """A random stream of the server, the same for any engine and after a resume."""
        return generator_for(self.job.settings.seed, "server", purpose, self.round)
