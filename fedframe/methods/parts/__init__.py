"""Parts: one idea per file. `PARTS` lists them by name."""

from __future__ import annotations

from fedframe.core.part import Part
from fedframe.methods.parts.alone import Central, Local
from fedframe.methods.parts.analytic import Analytic
from fedframe.methods.parts.analytic_numbers import AnalyticNumbers
from fedframe.methods.parts.apple import Apple
from fedframe.methods.parts.attack import Attack
from fedframe.methods.parts.average import Average
from fedframe.methods.parts.bucketing import Bucketing
from fedframe.methods.parts.ccvr import CCVR
from fedframe.methods.parts.centred_clipping import CentredClipping
from fedframe.methods.parts.coordinate_median import CoordinateMedian
from fedframe.methods.parts.creff import CReFF
from fedframe.methods.parts.cross_entropy import CrossEntropy
from fedframe.methods.parts.ditto import Ditto
from fedframe.methods.parts.dot_regression import DotRegression
from fedframe.methods.parts.features import Normalise, Projection, Temperature
from fedframe.methods.parts.fedaws import FedAwS
from fedframe.methods.parts.fedbn import FedBN
from fedframe.methods.parts.feddecorr import FedDecorr
from fedframe.methods.parts.feddr_plus import FedDrPlus
from fedframe.methods.parts.feddyn import FedDyn
from fedframe.methods.parts.fedetf_stage import AlternatingAdaptation
from fedframe.methods.parts.fedexp import FedExP
from fedframe.methods.parts.fedgela import FedGELA
from fedframe.methods.parts.fedgloss import FedGloSS
from fedframe.methods.parts.fedgrab import FedGraB
from fedframe.methods.parts.fedlc import FedLC
from fedframe.methods.parts.fedloge import AuxiliaryHeads, GlobalRealignment, LocalRealignment
from fedframe.methods.parts.fedmmd import FedMMD
from fedframe.methods.parts.fedmtl import FedMTL
from fedframe.methods.parts.fednh import FedNH
from fedframe.methods.parts.fednova import FedNova
from fedframe.methods.parts.fedntd import FedNTD
from fedframe.methods.parts.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedframe.methods.parts.fedper import FedPer
from fedframe.methods.parts.fedproto import FedProto
from fedframe.methods.parts.fedrep import FedRep
from fedframe.methods.parts.fedrod import FedRoD
from fedframe.methods.parts.fedrs import FedRS
from fedframe.methods.parts.fedsam import FedSAM
from fedframe.methods.parts.feduv import FedUV
from fedframe.methods.parts.ffc import FFC
from fedframe.methods.parts.fine_tune import FineTune
from fedframe.methods.parts.fltrust import FLTrust
from fedframe.methods.parts.frame_head import FrozenRandom, Orthonormal, SimplexETF, SparseETF
from fedframe.methods.parts.frozen import Frozen
from fedframe.methods.parts.geometric_median import GeometricMedian
from fedframe.methods.parts.gmv import GlobalMemory
from fedframe.methods.parts.krum import Krum, MultiKrum
from fedframe.methods.parts.linear_head import LinearHead
from fedframe.methods.parts.losses import BalancedCrossEntropy, SquaredError
from fedframe.methods.parts.lra import RelationalAugmentation
from fedframe.methods.parts.mean import Mean
from fedframe.methods.parts.moon import Moon
from fedframe.methods.parts.nash import Nash
from fedframe.methods.parts.nearest_mixing import NearestMixing
from fedframe.methods.parts.norm_bound import NormBound
from fedframe.methods.parts.pfedme import Mix, PFedMe
from fedframe.methods.parts.pooled_head import PooledHead
from fedframe.methods.parts.prox import Prox
from fedframe.methods.parts.qfedavg import QFedAvg
from fedframe.methods.parts.ratioloss import RatioLoss
from fedframe.methods.parts.scaffold import Scaffold
from fedframe.methods.parts.task_losses import BinaryCrossEntropy, SquaredDistance
from fedframe.methods.parts.trimmed_mean import TrimmedMean

PARTS: dict[str, type[Part]] = {
    part.name: part
    for part in (
        LinearHead,
        FrozenRandom,
        Orthonormal,
        SimplexETF,
        SparseETF,
        Frozen,
        FedNH,
        RelationalAugmentation,
        Projection,
        Normalise,
        Temperature,
        GlobalMemory,
        CrossEntropy,
        SquaredError,
        SquaredDistance,
        BinaryCrossEntropy,
        BalancedCrossEntropy,
        DotRegression,
        FedDrPlus,
        FedGELA,
        FedRS,
        FedLC,
        RatioLoss,
        FedGraB,
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
        FedDecorr,
        FedNTD,
        FedUV,
        FedAwS,
        CReFF,
        FedProto,
        Ditto,
        PFedMe,
        FedSAM,
        Mean,
        Mix,
        FedNova,
        FedDyn,
        FedGloSS,
        FedAvgM,
        FedAdagrad,
        FedAdam,
        FedYogi,
        FedExP,
        QFedAvg,
        Nash,
        Apple,
        FedMTL,
        CoordinateMedian,
        TrimmedMean,
        Krum,
        MultiKrum,
        GeometricMedian,
        CentredClipping,
        FLTrust,
        NormBound,
        NearestMixing,
        Bucketing,
        Attack,
        Average,
        FFC,
        Analytic,
        CCVR,
        PooledHead,
        GlobalRealignment,
        FineTune,
        AlternatingAdaptation,
        LocalRealignment,
    )
}

# What fills a slot that no part of a recipe fills: together they are FedAvg with plain fine-tuning.
DEFAULTS: tuple[type[Part], ...] = (LinearHead, CrossEntropy, Mean, FineTune)
# The loss among them, where no class is learned.
TASK_LOSSES: dict[str, type[Part]] = {"regression": SquaredDistance, "multilabel": BinaryCrossEntropy}
# Parts whose mathematics is another where numbers are predicted: what takes their place then, under the same name.
TASK_PARTS: dict[tuple[str, type[Part]], type[Part]] = {("regression", Analytic): AnalyticNumbers}
