"""`analytic` where numbers are predicted: ridge regression from sums over all clients (`closed_form/numbers.py`).

Personal models are ridge regressions towards the shared one, chosen by exact leave-one-out at the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedframe.core import ClientContext, Message, ModelSize, Server, Upload
from fedframe.data.target import Task
from fedframe.errors import SettingError
from fedframe.methods.closed_form.head import MODULE, closed_form
from fedframe.methods.closed_form.numbers import fit_personal_numbers, number_problem, stream_numbers
from fedframe.methods.closed_form.ridge import fit_ridge
from fedframe.methods.closed_form.sums import Sums
from fedframe.methods.parts.analytic import NOTHING_CAME, Analytic, batches_of, is_exact
from fedframe.settings import Settings

ABOUT_CLASSES = {"send": "sums", "tail": "none", "balance": 0.0}  # settings, and what they are without classes


@dataclass(frozen=True)
class AnalyticNumbers(Analytic):
    """Ridge regression from sums over all clients, after the last round."""

    tasks: ClassVar[tuple[Task, ...] | None] = ("regression",)

    def check_settings(self, settings: Settings) -> None:
        """Refuse what is about classes, and privacy, whose bounds are those of indicators."""
        super().check_settings(settings)
        for name, value in ABOUT_CLASSES.items():
            if getattr(self, name) != value:
                raise SettingError(
                    f"analytic.{name} = {getattr(self, name)!r} is about classes, and the task is regression; use "
                    f"{value}."
                )
        if settings.privacy_clip is not None:
            raise SettingError(
                "privacy_clip: analytic bounds what a class label tells, and numbers have no such bound; leave it out, "
                "or use a method with rounds, such as fedavg."
            )

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """Beside what classes need, the sums of the numbers' squares."""
        found = super().uploads(size)
        stage = found[f"{MODULE}/u"].stage
        return found | {f"{MODULE}/squares": Upload([size.classes], "sum", when="statistics", stage=stage)}

    @torch.no_grad()
    def statistics(self, context: ClientContext) -> dict[str, Tensor]:
        """What the client's samples add up to."""
        head = closed_form(context.model)
        if context.stage < self.stages(context.model) - 1:
            return self.map_statistics(context, torch.zeros(context.model.classes))  # numbers have no classes
        dim = head.features.dim
        exact = is_exact(dim)
        batches = ((head.centred(inputs), y) for inputs, y in embedded_numbers(context))
        sums, squares = stream_numbers(batches, dim, context.model.classes)
        sums = sums if exact else sums.rounded()
        return {f"{MODULE}/v": sums.second, f"{MODULE}/u": sums.cross, f"{MODULE}/squares": squares}

    def fit_classifier(self, server: Server, replies: Iterable[Message]) -> None:
        """Solve for the regression."""
        middle = self.set_features(server)
        dim, outputs = closed_form(server.job.template).features.dim, server.job.template.classes
        total, squares = Sums.zeros(dim, outputs), torch.zeros(outputs, dtype=torch.float64)
        received = 0
        for reply in self.received(server, replies):
            total.add_(Sums(reply.tensors[f"{MODULE}/v"], reply.tensors[f"{MODULE}/u"]))
            squares += reply.tensors[f"{MODULE}/squares"]
            received += 1
        if not received:
            server.note(NOTHING_CAME)
            return
        problem = number_problem(total, squares, shortened=not is_exact(dim))
        fit = fit_ridge(problem, self.ridge)
        bias = problem.counts / problem.total
        tensors = {"mean": middle.double() + problem.mean, "inverse": problem.inverse_deviation}
        tensors["leverage"] = torch.tensor(fit.leverage)
        tensors |= {"weight": fit.coefficients.T, "bias": bias, "plain_weight": fit.coefficients.T, "plain_bias": bias}
        tensors |= {name: torch.ones(()) for name in ("fitted", "logits")}  # scores are the numbers themselves
        self._set_classifier(server, fit, tensors)

    @torch.no_grad()
    def personalise(self, context: ClientContext) -> None:
        """The client's own regression, if it does better on samples left out than the shared one."""
        head = closed_form(context.model)
        if not bool(head.fitted):
            return
        batches = [(head.standardised(inputs).cpu(), y.cpu()) for inputs, y in embedded_numbers(context)]
        features, numbers = (torch.cat(each) for each in zip(*batches, strict=True))
        shared = (head.plain_weight.cpu(), head.plain_bias.cpu())
        own = fit_personal_numbers(features, numbers, *shared, min(float(head.leverage), 0.9))
        head.weight.copy_(own.weight)
        head.bias.copy_(own.bias)


def embedded_numbers(context: ClientContext) -> Iterator[tuple[Tensor, Tensor]]:
    """The client's samples batch by batch, as they reach the classifier, and their numbers."""
    targets = context.job.federation.source.train.targets
    for rows in batches_of(context):
        yield context.embeddings(rows), targets[rows]
