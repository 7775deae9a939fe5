"""The recipe of training in closed form: alone without rounds, joined to others after theirs."""

from __future__ import annotations

from fedframe.methods.parts.analytic import Analytic
from fedframe.methods.parts.frozen import Frozen
from fedframe.methods.recipe import Recipe

NEW_RUNS = {Analytic.name: {"map": "fixed"}}

ANALYTIC = Recipe(
    "analytic",
    "A ridge classifier in closed form, from sums over all clients: alone, or after any method's rounds.",
    "Fedframe; cf. Zhuang et al., AFL, CVPR 2025; Dong et al., SphereFed, ECCV 2022 (FFC)",
    parts=(Analytic(),),
    new_runs=NEW_RUNS,
    alone=Recipe(
        "analytic",
        "No rounds: fixed features, and a ridge classifier in closed form from sums over all clients.",
        parts=(Frozen(), Analytic()),
        new_runs=NEW_RUNS,
        defaults={"rounds": 0, "model": "raw"},
    ),
)
