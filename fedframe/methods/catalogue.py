"""All named methods: parts put together under a name, with their papers' settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedframe.methods.parts.alone import Central, Local
from fedframe.methods.parts.analytic import Analytic
from fedframe.methods.parts.apple import Apple
from fedframe.methods.parts.average import Average
from fedframe.methods.parts.ccvr import CCVR
from fedframe.methods.parts.centred_clipping import CentredClipping
from fedframe.methods.parts.coordinate_median import CoordinateMedian
from fedframe.methods.parts.creff import CReFF
from fedframe.methods.parts.ditto import Ditto
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
from fedframe.methods.parts.fltrust import FLTrust
from fedframe.methods.parts.frame_head import FrozenRandom, Orthonormal, SimplexETF, SparseETF
from fedframe.methods.parts.frozen import Frozen
from fedframe.methods.parts.geometric_median import GeometricMedian
from fedframe.methods.parts.gmv import GlobalMemory
from fedframe.methods.parts.krum import Krum, MultiKrum
from fedframe.methods.parts.losses import BalancedCrossEntropy, SquaredError
from fedframe.methods.parts.lra import RelationalAugmentation
from fedframe.methods.parts.moon import Moon
from fedframe.methods.parts.nash import Nash
from fedframe.methods.parts.norm_bound import NormBound
from fedframe.methods.parts.pfedme import Mix, PFedMe
from fedframe.methods.parts.prox import Prox
from fedframe.methods.parts.qfedavg import QFedAvg
from fedframe.methods.parts.ratioloss import RatioLoss
from fedframe.methods.parts.scaffold import Scaffold
from fedframe.methods.parts.trimmed_mean import TrimmedMean
from fedframe.methods.recipe import Recipe

# Of methods whose rounds leave every client a model of its own: it is scored as it is.
AS_IT_IS: Mapping[str, Mapping[str, Any]] = {"fine_tune": {"epochs": 0}}
# Of new runs: an older one, whose settings name no map, keeps the features that know all clients' data.
FIXED_MAP: Mapping[str, Mapping[str, Any]] = {Analytic.name: {"map": "fixed"}}


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "fedavg",
            "Clients train the whole model; the server takes the mean of their updates.",
            "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017",
        ),
        Recipe("fedprox", "FedAvg with a pull towards the server's model in every local step.", parts=(Prox(),)),
        Recipe(
            "scaffold",
            "Control variates take the client's drift out of every local gradient.",
            parts=(Scaffold(),),
            defaults={"lr": 0.05},  # at FedAvg's .1 the variates run away after some 28 rounds on digits
        ),
        Recipe("fednova", "Updates are normalised by how much each client has trained.", parts=(FedNova(),)),
        Recipe("fedavgm", "FedAvg with momentum on the server.", parts=(FedAvgM(),)),
        Recipe("fedadagrad", "The mean update drives Adagrad on the server.", parts=(FedAdagrad(),)),
        Recipe("fedadam", "The mean update drives Adam on the server.", parts=(FedAdam(),)),
        Recipe("fedyogi", "The mean update drives Yogi on the server.", parts=(FedYogi(),)),
        Recipe("fedexp", "The mean update, extrapolated as far as the clients disagree.", parts=(FedExP(),)),
        Recipe("average", "The final model is the mean of the last rounds' shared models.", parts=(Average(),)),
        Recipe("fedsam", "Local steps along the gradient a little uphill: flat minima.", parts=(FedSAM(),)),
        Recipe(
            "qfedavg",
            "Clients with a higher loss weigh more in the server's step.",
            parts=(QFedAvg(),),
            defaults={"update_bound": 10_000.0},  # clients multiply their updates by a power of their loss
        ),
        Recipe(
            "moon",
            "Features stay close to those of the server's model, away from those of the client's last one.",
            parts=(Moon(),),
        ),
        Recipe(
            "feddyn",
            "A linear and a quadratic penalty that change from round to round; the server corrects by their mean.",
            parts=(FedDyn(),),
            defaults={"weight_decay": 1e-3, "batch": 50, "epochs": 5, "clip": 10.0},
        ),
        Recipe("fedmmd", "Features keep the distribution that they have under the server's model.", parts=(FedMMD(),)),
        Recipe("fedaws", "After every round the server turns class vectors away from each other.", parts=(FedAwS(),)),
        Recipe("fedrs", "Logits of classes that a client lacks count little in its softmax.", parts=(FedRS(),)),
        Recipe(
            "ratioloss",
            "Neglected classes weigh more, as a few samples on the server show.",
            parts=(RatioLoss(),),
        ),
        Recipe("ccvr", "At the end the server retrains the classifier on features drawn per class.", parts=(CCVR(),)),
        Recipe(
            "fedproto",
            "Clients keep their models and share class prototypes.",
            parts=(FedProto(),),
            defaults={"lr": 0.01, "momentum": 0.5, "batch": 8, "epochs": 1},
            part_defaults=AS_IT_IS,
        ),
        Recipe(
            "fednh",
            "Class prototypes on the sphere as classifier, moved by the server towards the class means.",
            parts=(FedNH(), Normalise(), Temperature()),
            defaults={"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "batch": 64, "epochs": 5},
        ),
        Recipe(
            "spherefed",
            "Features on the sphere, a frozen orthonormal classifier, squared error; least squares at the end.",
            parts=(Orthonormal(), Normalise(), SquaredError(), FFC()),
            defaults={
                "lr_per_class": 0.05,  # .5 for ten: the loss is a mean over classes, and so is its gradient
                "lr_schedule": "cosine",
                "momentum": 0.9,
                "weight_decay": 1e-5,
                "batch": 64,
                "epochs": 10,
            },
            # After FFC the classifier is no longer orthonormal, and the rounds' lr is too large for it.
            part_defaults={"fine_tune": {"lr": 0.01}},
        ),
        Recipe(
            "fedavg_etf",
            "A frozen simplex ETF as classifier; late in training, features are moved towards global class means.",
            parts=(SimplexETF(), GlobalMemory()),
            defaults={"lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4, "batch": 64},
        ),
        Recipe(
            "fedetf",
            "Projected unit features, a frozen simplex ETF, a learned temperature, a loss balanced by label counts.",
            parts=(
                SimplexETF(),
                Projection(),
                Normalise(),
                Temperature(),
                BalancedCrossEntropy(),
                AlternatingAdaptation(),
            ),
            defaults={"lr": 0.04, "momentum": 0.9, "weight_decay": 5e-4, "batch": 128, "epochs": 3},
        ),
        Recipe(
            "fedloge",
            "A frozen sparse ETF for the backbone; a shared and a private classifier, realigned at the end.",
            parts=(SparseETF(), AuxiliaryHeads(), GlobalRealignment(), LocalRealignment()),
            defaults={"lr": 0.03, "momentum": 0.5, "batch": 8, "epochs": 5},
        ),
        Recipe(
            "fedrane",
            "Features are refined by their neighbours in the batch; updates are merged by Nash bargaining.",
            parts=(RelationalAugmentation(), Nash()),
            defaults={"batch": 128, "epochs": 5},
        ),
        Recipe(
            "fedbabu",
            "A frozen random classifier in rounds; everything is fine-tuned for personal models.",
            parts=(FrozenRandom(),),
            part_defaults={"fine_tune": {"what": "everything", "epochs": 5}},  # also after a method that needs none
        ),
        Recipe("fedper", "The classifier stays on the client.", parts=(FedPer(),), part_defaults=AS_IT_IS),
        Recipe(
            "fedrep",
            "The classifier stays on the client and is trained first in every round, the shared body after it.",
            parts=(FedPer(), FedRep()),
            defaults={"epochs": 11},
            part_defaults=AS_IT_IS,
        ),
        Recipe("fedbn", "BatchNorm stays on the client.", parts=(FedBN(),), part_defaults=AS_IT_IS),
        Recipe(
            "fedrod",
            "A shared classifier with a balanced loss; each client adds the logits of one of its own.",
            parts=(BalancedCrossEntropy(), FedRoD()),
            part_defaults=AS_IT_IS,
        ),
        Recipe(
            "ditto",
            "Beside the shared model each client trains one of its own, held near the shared one.",
            parts=(Ditto(),),
            part_defaults=AS_IT_IS,
        ),
        Recipe(
            "pfedme",
            "Each local step solves for the client's own model and moves the shared one towards it.",
            parts=(PFedMe(), Mix()),
            part_defaults=AS_IT_IS,
        ),
        Recipe(
            "apple",
            "A client's model is a mixture of all clients' models, with weights that it learns.",
            parts=(Apple(),),
            part_defaults=AS_IT_IS,
        ),
        Recipe(
            "fedmtl",
            "A model per client; the server learns how they are related, and the relations pull.",
            parts=(FedMTL(),),
            part_defaults=AS_IT_IS,
        ),
        Recipe(
            "fedlc", "Logits are calibrated by the client's class counts: rare classes get a margin.", parts=(FedLC(),)
        ),
        Recipe(
            "feddecorr",
            "A penalty keeps the numbers of a feature from being correlated.",
            parts=(FedDecorr(),),
            defaults={"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "batch": 64, "epochs": 10},
        ),
        Recipe(
            "fedntd",
            "Distils what the server's model predicts for the classes that a sample does not belong to.",
            parts=(FedNTD(),),
            defaults={
                "lr": 0.01,
                "lr_schedule": "exponential:0.99",
                "momentum": 0.9,
                "weight_decay": 1e-5,
                "batch": 50,
                "epochs": 5,
            },
        ),
        Recipe(
            "feduv",
            "Probabilities vary and features spread as they would on data of all classes.",
            parts=(FedUV(),),
            defaults={
                "lr": 0.01,
                "lr_schedule": "cosine",
                "momentum": 0.9,
                "weight_decay": 1e-5,
                "batch": 128,
                "epochs": 10,
            },
        ),
        Recipe(
            "feddr_plus",
            "Dot regression under a frozen ETF; features stay close to those of the server's model.",
            parts=(SimplexETF(), FedDrPlus()),
        ),
        Recipe(
            "fedgela",
            "A frozen ETF whose class vectors every client scales by its class frequencies.",
            parts=(SimplexETF(), Normalise(), Temperature(5.0, learned=False), FedGELA()),
            defaults={"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "batch": 64, "epochs": 10, "clip": 20.0},
        ),
        Recipe(
            "creff",
            "The server retrains the classifier on features that match the clients' gradients, balanced by class.",
            parts=(CReFF(),),
            defaults={"lr": 0.1, "batch": 32, "epochs": 10},
        ),
        Recipe(
            "fedgrab",
            "A sigmoid per class; controllers on the client balance the gradients of each class.",
            parts=(FedGraB(),),
            defaults={"lr": 0.03, "momentum": 0.5, "batch": 8, "epochs": 5},
        ),
        Recipe(
            "fedgloss",
            "Clients begin a little uphill of the server's model, tied together by ADMM: a flat minimum for all.",
            parts=(FedGloSS(), FedSAM(0.15)),
            defaults={"lr": 0.01, "weight_decay": 4e-4, "batch": 64, "epochs": 1},
        ),
        Recipe(
            "analytic",
            "A ridge classifier in closed form, from sums over all clients: alone, or after any method's rounds.",
            "Fedframe; cf. Zhuang et al., AFL, CVPR 2025; Dong et al., SphereFed, ECCV 2022 (FFC)",
            parts=(Analytic(),),
            new_runs=FIXED_MAP,
            alone=Recipe(
                "analytic",
                "No rounds: fixed features, and a ridge classifier in closed form from sums over all clients.",
                parts=(Frozen(), Analytic()),
                new_runs=FIXED_MAP,
                defaults={"rounds": 0, "model": "raw"},
            ),
        ),
        Recipe("median", "Robust: every weight moves by the median of its changes.", parts=(CoordinateMedian(),)),
        Recipe("trimmed_mean", "Robust: the extremes of every weight's changes are cut.", parts=(TrimmedMean(),)),
        Recipe("krum", "Robust: the one update that lies closest to its neighbours.", parts=(Krum(),)),
        Recipe("multi_krum", "Robust: the mean of the updates closest to their neighbours.", parts=(MultiKrum(),)),
        Recipe("rfa", "Robust: the geometric median of the updates.", parts=(GeometricMedian(),)),
        Recipe(
            "centred_clipping",
            "Robust: updates are clipped around the last step before they are averaged.",
            parts=(CentredClipping(),),
        ),
        Recipe("norm_bound", "Robust: no update is longer than the median one.", parts=(NormBound(),)),
        Recipe("fltrust", "Robust: updates count by agreement with the server's own samples.", parts=(FLTrust(),)),
        Recipe("local", "No federation: every client trains alone.", parts=(Local(),), part_defaults=AS_IT_IS),
        Recipe("central", "No federation: one model, trained on all data in one place.", parts=(Central(),)),
    )
}
