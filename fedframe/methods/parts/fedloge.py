"""FedLoGe's two auxiliary classifiers and what is made of them: one generic model, one model per client.

Xiao et al., FedLoGe: Joint Local and Generic Federated Learning under Long-tailed Data, ICLR 2024, Algorithm 1. The
backbone learns under a frozen classifier (SSE-C). On the same, detached features two more are trained in every batch:
psi, which is averaged like the backbone, and phi_k, which stays on the client. Afterwards
    GA-FR, on the server:   psi_c / ||psi_c||                (Eq. 6)
    LA-FR, on the client:   psi_c ||phi_k,c||, fine-tuned    (Eq. 7, line 12)
Between rounds the shared model predicts with psi as it is.

Differs from the paper in: heads have no bias (with one, the scale that GA-FR takes away would matter). The three steps
on a batch are one step on the sum of the three losses, which is the same because the features are detached. The
authors' code predicts a client's classes by the sum of two heads' logits, which `la_fr.plus_phi` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedframe.core import ClientContext, HeadStage, Message, Method, Model, Part, Server
from fedframe.errors import SettingError
from fedframe.methods.parts.cross_entropy import CrossEntropy
from fedframe.methods.parts.fine_tune import FineTune
from fedframe.methods.parts.frame_head import Orthonormal, SimplexETF, SparseETF

PAPER = "Xiao et al., FedLoGe: Joint Local and Generic Federated Learning under Long-tailed Data, ICLR 2024"
PSI, PHI, REALIGNED = "extras.auxiliary.psi", "extras.auxiliary.phi", "extras.auxiliary.realigned"
FRAME = "extras.auxiliary.frame"


class Auxiliary(nn.Module):
    """psi, phi, whether `head` has taken their place in prediction, and then what `head` was in training."""

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.psi = nn.Parameter(nn.Linear(dim, classes, bias=False).weight.detach().clone())
        self.phi = nn.Parameter(self.psi.detach().clone())
        self.realigned = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.frame = nn.Parameter(torch.zeros(classes, dim), requires_grad=False)


@dataclass(frozen=True)
class AuxiliaryHeads(Part):
    """A shared and a private linear classifier, trained on the detached features of another's backbone."""

    name: ClassVar[str] = "auxiliary_heads"
    paper: ClassVar[str] = PAPER
    rank: ClassVar[int] = 20  # built for the features that all transforms leave

    def check_method(self, method: Method) -> None:
        """Refuse stages that fit another head than psi, which predicts: their result would never be used."""
        stages = [method.optional_slot("server_stage")]
        if not isinstance(stages[0], GlobalRealignment):
            stages.append(method.slot("client_stage"))  # after GA-FR the head predicts, and may be trained
        for stage in stages:
            if stage is None or isinstance(stage, GlobalRealignment | LocalRealignment):
                continue
            if isinstance(stage, FineTune) and stage.what != "head":
                continue  # psi is trained with the rest
            raise SettingError(
                f"{method.name!r} cannot be combined: 'auxiliary_heads' predicts with a classifier of its own, so that "
                f"{stage.name!r} would have no effect; leave one of them out, or add ga_fr."
            )

    def build(self, model: Model) -> None:
        """Add both, with the same initial weights, for the features that reach the classifier."""
        model.extras["auxiliary"] = Auxiliary(model.classes, model.dim)

    def private(self, model: Model) -> Collection[str]:
        """phi_k stays on the client."""
        return (PHI,)

    def penalty(self, context: ClientContext) -> Tensor:
        """The losses of psi and phi_k on detached features."""
        heads = context.model.extras["auxiliary"]
        assert isinstance(heads, Auxiliary)
        features = context.embedding.detach()
        shared = F.cross_entropy(F.linear(features, heads.psi), context.labels)
        return shared + F.cross_entropy(F.linear(features, heads.phi), context.labels)  # ClientUpdate, line 5

    def predict(self, model: Model, features: Tensor) -> Tensor:
        """Predict with psi until a realigned classifier is in `head`."""
        heads = model.extras["auxiliary"]
        assert isinstance(heads, Auxiliary)
        logits: Tensor = model.head(features) if bool(heads.realigned) else F.linear(features, heads.psi)
        return logits


@dataclass(frozen=True)
class GlobalRealignment(Part):
    """GA-FR: every class vector of the generic classifier gets norm 1; frequent classes lose their advantage."""

    name: ClassVar[str] = "ga_fr"
    paper: ClassVar[str] = PAPER

    def check_method(self, method: Method) -> None:
        """Refuse heads whose class vectors all have one length: they would stay as they are."""
        head = method.slot("head")
        equal = isinstance(head, Orthonormal | SimplexETF | SparseETF)
        if equal and not any(isinstance(part, AuxiliaryHeads) for part in method.parts):
            raise SettingError(
                f"{method.name!r} cannot be combined: the class vectors of {head.name!r} all have one length, so that "
                "'ga_fr' would have no effect; add auxiliary_heads, or leave ga_fr out."
            )

    def server_stage(self, server: Server, replies: Iterable[Message]) -> None:
        """Put psi_c / ||psi_c|| into the head; where there is no psi, normalise the method's own classifier."""
        auxiliary = PSI in dict(server.job.template.named_parameters())
        if auxiliary:
            server.set_tensor(FRAME, server.tensor("head.weight").clone())  # features can only be understood by it
        # Eq. 6
        server.set_tensor("head.weight", F.normalize(server.tensor(PSI if auxiliary else "head.weight"), dim=1))
        if auxiliary:
            server.set_tensor(REALIGNED, torch.ones(()))
            if "head.bias" in dict(server.job.template.named_parameters()):
                server.set_tensor("head.bias", torch.zeros(server.job.template.classes))  # psi has none


@dataclass(frozen=True)
class LocalRealignment(Part):
    """LA-FR: the shared class vectors with the norms of the client's own, then a little training of them."""

    name: ClassVar[str] = "la_fr"
    paper: ClassVar[str] = PAPER

    epochs: Annotated[int, Field(ge=0)] = 5
    """Epochs of fine-tuning after the realignment."""
    lr: Annotated[float, Field(gt=0)] | None = None  # None: the run's lr
    """Learning rate of fine-tuning; empty means the run's `lr`."""
    plus_phi: bool = False  # predict with the sum of its logits and those of phi_k
    """Whether the logits of the private classifier phi_k are added in prediction."""
    by: Literal["norm", "counts"] = (
        "norm"  # counts: psi_c times the client's share of class c (A.8, "real distribution")
    )
    """What the class vectors' lengths come from: the `norm` of phi_k, or the client's label `counts`."""

    def check_method(self, method: Method) -> None:
        """Refuse methods without the part that trains psi and phi_k."""
        if not any(isinstance(part, AuxiliaryHeads) for part in method.parts):
            raise SettingError(
                f"{method.name!r} cannot be combined: 'la_fr' needs 'auxiliary_heads'; write it as "
                "...+auxiliary_heads+la_fr."
            )

    def personalise(self, context: ClientContext) -> None:
        """Put phi'_k,c = psi_c ||phi_k,c|| into the head."""
        heads = context.model.extras["auxiliary"]
        assert isinstance(heads, Auxiliary)
        with torch.no_grad():
            for name, tensor in context.model.head.named_parameters():
                lengths = heads.phi.norm(dim=1, keepdim=True)
                if self.by == "counts":
                    lengths = (context.class_counts / max(1, len(context.rows)))[:, None].to(lengths)
                aligned = heads.psi * lengths  # Eq. 7
                tensor.copy_(aligned if name == "weight" else torch.zeros_like(tensor))
            heads.realigned.fill_(1.0)

    def head_stages(self, method: Method, model: Model) -> Sequence[HeadStage]:
        """Fine-tuning, with the loss that phi_k was trained with."""
        after = self.add_phi if self.plus_phi else None
        stage = HeadStage(self.epochs, ("head.weight",), self.lr, CrossEntropy(), after)  # line 12
        return (stage,) if self.epochs or after else ()

    def add_phi(self, context: ClientContext) -> None:
        """Add phi_k to the head: both are linear, so that one classifier gives the sum of their logits."""
        heads = context.model.extras["auxiliary"]
        assert isinstance(heads, Auxiliary)
        with torch.no_grad():
            context.model.head.get_parameter("weight").add_(heads.phi)
