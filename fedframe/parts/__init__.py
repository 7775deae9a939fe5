"""Parts: one idea per file. `PARTS` lists them by name."""

from __future__ import annotations

from fedframe.core.part import Part
from fedframe.parts.alone import Central, Local
from fedframe.parts.apple import Apple
from fedframe.parts.ccvr import CCVR
from fedframe.parts.cross_entropy import CrossEntropy
from fedframe.parts.ditto import Ditto
from fedframe.parts.dot_regression import DotRegression
from fedframe.parts.features import Normalise, Projection, Temperature
from fedframe.parts.fedaws import FedAwS
from fedframe.parts.fedbn import FedBN
from fedframe.parts.feddyn import FedDyn
from fedframe.parts.fedetf_stage import AlternatingAdaptation
from fedframe.parts.fedloge import AuxiliaryHeads, GlobalRealignment, LocalRealignment
from fedframe.parts.fedmmd import FedMMD
from fedframe.parts.fedmtl import FedMTL
from fedframe.parts.fednh import FedNH
from fedframe.parts.fednova import FedNova
from fedframe.parts.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedframe.parts.fedper import FedPer
from fedframe.parts.fedproto import FedProto
from fedframe.parts.fedrep import FedRep
from fedframe.parts.fedrod import FedRoD
from fedframe.parts.fedrs import FedRS
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
from fedframe.parts.pfedme import Mix, PFedMe
from fedframe.parts.pooled_head import PooledHead
from fedframe.parts.prox import Prox
from fedframe.parts.ratioloss import RatioLoss
from fedframe.parts.scaffold import Scaffold

PARTS: dict[str, type[Part]] = {
    part.name: part
    for part in (
        LinearHead,
        FrozenRandom,
        Orthonormal,
        SimplexETF,
        SparseETF,
        FedNH,
        RelationalAugmentation,
        Projection,
        Normalise,
        Temperature,
        GlobalMemory,
        CrossEntropy,
        SquaredError,
        BalancedCrossEntropy,
        DotRegression,
        FedRS,
        RatioLoss,
        AuxiliaryHeads,
        FedRoD,
        FedPer,
        FedRep,
        FedBN,
        Local,
        Central,
        Prox,
        Moon,
        Scaffold,
        FedMMD,
        FedAwS,
        FedProto,
        Ditto,
        PFedMe,
        Mean,
        Mix,
        FedNova,
        FedDyn,
        FedAvgM,
        FedAdagrad,
        FedAdam,
        FedYogi,
        Nash,
        Apple,
        FedMTL,
        FFC,
        CCVR,
        PooledHead,
        GlobalRealignment,
        FineTune,
        AlternatingAdaptation,
        LocalRealignment,
    )
}

# What fills a slot that no part of a recipe claims: together they are FedAvg with plain fine-tuning.
DEFAULTS: tuple[type[Part], ...] = (LinearHead, CrossEntropy, Mean, FineTune)
