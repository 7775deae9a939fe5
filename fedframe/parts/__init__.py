"""Parts: one idea per file. `PARTS` lists them by name."""

from __future__ import annotations

from fedframe.core.part import Part
from fedframe.parts.cross_entropy import CrossEntropy
from fedframe.parts.dot_regression import DotRegression
from fedframe.parts.features import Normalise, Projection, Temperature
from fedframe.parts.fedetf_stage import AlternatingAdaptation
from fedframe.parts.fedloge import AuxiliaryHeads, GlobalRealignment, LocalRealignment
from fedframe.parts.fednova import FedNova
from fedframe.parts.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedframe.parts.ffc import FFC
from fedframe.parts.fine_tune import FineTune
from fedframe.parts.frame_head import FrozenRandom, Orthonormal, SimplexETF, SparseETF
from fedframe.parts.gmv import GlobalMemory
from fedframe.parts.linear_head import LinearHead
from fedframe.parts.losses import BalancedCrossEntropy, SquaredError
from fedframe.parts.lra import RelationalAugmentation
from fedframe.parts.mean import Mean
from fedframe.parts.moon import Moon
from fedframe.parts.nash import Nash
from fedframe.parts.prox import Prox
from fedframe.parts.scaffold import Scaffold

PARTS: dict[str, type[Part]] = {
    part.name: part
    for part in (
        LinearHead,
        FrozenRandom,
        Orthonormal,
        SimplexETF,
        SparseETF,
        RelationalAugmentation,
        Projection,
        Normalise,
        Temperature,
        GlobalMemory,
        CrossEntropy,
        SquaredError,
        BalancedCrossEntropy,
        DotRegression,
        AuxiliaryHeads,
        Prox,
        Moon,
        Scaffold,
        Mean,
        FedNova,
        FedAvgM,
        FedAdagrad,
        FedAdam,
        FedYogi,
        Nash,
        FFC,
        GlobalRealignment,
        FineTune,
        AlternatingAdaptation,
        LocalRealignment,
    )
}

# What fills a slot that no part of a recipe claims: together they are FedAvg with plain fine-tuning.
DEFAULTS: tuple[type[Part], ...] = (LinearHead, CrossEntropy, Mean, FineTune)
