"""Recipes of newer methods against label skew and long tails, with the settings of their authors' public code."""

from __future__ import annotations

from fedframe.methods.parts.creff import CReFF
from fedframe.methods.parts.features import Normalise, Temperature
from fedframe.methods.parts.feddecorr import FedDecorr
from fedframe.methods.parts.feddr_plus import FedDrPlus
from fedframe.methods.parts.fedgela import FedGELA
from fedframe.methods.parts.fedgloss import FedGloSS
from fedframe.methods.parts.fedgrab import FedGraB
from fedframe.methods.parts.fedlc import FedLC
from fedframe.methods.parts.fedntd import FedNTD
from fedframe.methods.parts.fedsam import FedSAM
from fedframe.methods.parts.feduv import FedUV
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.recipe import Recipe

NEWER_RECIPES: tuple[Recipe, ...] = (
    Recipe("fedlc", "Logits are calibrated by the client's class counts: rare classes get a margin.", parts=(FedLC(),)),
    Recipe(
        "feddecorr",
        "The numbers of a feature are kept from saying the same thing.",
        parts=(FedDecorr(),),
        defaults={"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "batch": 64, "epochs": 10},
    ),
    Recipe(
        "fedntd",
        "What the server's model says about classes that a sample does not belong to is kept.",
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
        "Dot regression under a frozen ETF; features keep to those of the server's model.",
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
)
