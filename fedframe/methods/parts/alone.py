"""The two ends between which federated learning lies: every client alone, and all data in one place.

`local`: nothing is shared. Every client trains its own model on its own data for the same rounds; nothing is sent, and
there is no generic score. `central`: the training data of all clients are pooled, and one model is trained on them, as
many epochs per round as a client would train; it is scored like any shared model and fine-tuned for personal ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedframe.core import ALL_DATA, ClientContext, Method, Model, Part, Server
from fedframe.core.layout import named_tensors
from fedframe.core.part import overrides
from fedframe.errors import SettingError
from fedframe.methods.parts.mean import Mean
from fedframe.settings import Settings


def needing_shared_weights(method: Method) -> list[Part]:
    """Parts that have nothing to work with where clients share no weights."""
    merge, stage = method.slot("merge"), method.optional_slot("server_stage")
    compare = [part for part in method.parts if part.compares_with_server]
    return [*([] if isinstance(merge, Mean) else [merge]), *([stage] if stage else []), *compare]


@dataclass(frozen=True)
class Local(Part):
    """All that learns stays on the client."""

    name: ClassVar[str] = "local"
    shares_a_model = False

    def check_method(self, method: Method) -> None:
        """Refuse parts that work through the server or compare with its model: they would have nothing to work with."""
        senders = [other for hook in ("uploads", "after_merge") for other in method.parts_with(hook)]
        for other in (*senders, *needing_shared_weights(method)):
            raise SettingError(
                f"{method.name!r} cannot be combined: 'local' sends nothing, so that {other.name!r} would have nothing "
                "to work with; leave one of them out."
            )

    def private(self, model: Model) -> Collection[str]:
        """Everything but frozen weights."""
        frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
        tensors = named_tensors(model)
        return [name for name, tensor in tensors.items() if tensor.is_floating_point() and name not in frozen]


@dataclass(frozen=True)
class Central(Part):
    """One model, trained on the training data of all clients."""

    name: ClassVar[str] = "central"
    rank: ClassVar[int] = -100  # others prepare for the pooled data
    server_samples = ALL_DATA

    def check_method(self, method: Method) -> None:
        """Refuse parts that keep something on clients: there are none in its rounds."""
        for other in method.parts:
            if other.memory or overrides(type(other), "private"):
                raise SettingError(
                    f"{method.name!r} cannot be combined: 'central' has no clients in its rounds on which "
                    f"{other.name!r} could keep something; leave one of them out."
                )

    def check_settings(self, settings: Settings) -> None:
        """Refuse private BatchNorm statistics for the same reason."""
        if settings.buffers == "private":
            raise SettingError("central has no clients in its rounds, so that buffers cannot be private; use average.")

    def select_clients(self, server: Server, round: int, clients: Sequence[int]) -> Sequence[int]:
        """Train in one place, whichever clients were drawn."""
        return [0]

    def begin(self, context: ClientContext) -> None:
        """Use all training data, in rounds."""
        if context.training:
            context.rows = context.job.federation.train.values
