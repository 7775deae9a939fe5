"""What is tuned in a method beside its learning rate, how large a rate it wants, and what its steps cost.

A comparison that gives every method the same budget needs to know which one setting decides most in each. That belongs
to the methods, not to who compares them: a line per part, the part's default left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedframe.methods.parts import PARTS
from fedframe.methods.recipes import RECIPES, find_recipes, make_method

# Part -> its main setting and values to try beside the default, the more likely ones first.
MAIN: dict[str, tuple[str, tuple[Any, ...]]] = {
    "prox": ("mu", (0.1, 0.001)),
    "moon": ("mu", (5.0, 0.1)),
    "feddyn": ("alpha", (0.1, 0.001)),
    "fedmmd": ("weight", (1.0, 0.01)),
    "fedaws": ("weight", (10.0, 0.1)),
    "fedsam": ("rho", (0.1, 0.01)),
    "qfedavg": ("q", (0.1, 0.5)),
    "fedavgm": ("momentum", (0.5, 0.97)),
    "fedadagrad": ("lr", (0.03, 0.003)),
    "fedadam": ("lr", (0.01, 0.1)),
    "fedyogi": ("lr", (0.01, 0.1)),
    "fedrs": ("alpha", (0.9, 0.1)),
    "ratioloss": ("alpha", (0.5, 2.0)),
    "balanced_ce": ("gamma", (0.5, 1.5)),
    "ccvr": ("lr", (0.1, 0.001)),
    "fedproto": ("weight", (0.1, 10.0)),
    "fednh": ("rho", (0.5, 0.99)),
    "temperature": ("beta", (5.0, 20.0)),
    "etf": ("scale", (3.0, 1.5)),
    "gmv": ("alpha", (1.0, 0.25)),
    "sse_c": ("norm", (3.0, 10.0)),
    "lra": ("contrast_weight", (0.2, 0.002)),
    "ditto": ("lam", (0.1, 10.0)),
    "pfedme": ("lam", (5.0, 50.0)),
    "apple": ("mu", (0.01, 1.0)),
    "fedmtl": ("lam", (0.01, 0.0001)),
    "fedlc": ("tau", (1.0, 0.1)),
    "feddecorr": ("beta", (0.01, 1.0)),
    "fedntd": ("beta", (0.3, 3.0)),
    "feduv": ("variance", (1.0, 5.0)),
    "feddr_plus": ("beta", (0.7, 0.99)),
    "creff": ("match_lr", (1.0, 0.01)),
    "fedgrab": ("proportional", (1.0, 30.0)),
    "fedgloss": ("rho", (0.05, 0.01)),
}
# Recipes whose first part with a main setting is not the one that decides; None: the rate alone is tuned.
MAIN_PART: dict[str, str | None] = {
    "fedavg_etf": "gmv",
    "fedetf": "temperature",
    "feddr_plus": "feddr_plus",
    "fedgela": "temperature",
}

# Part -> factor on the common grid of rates. The squared error is a mean over classes, so its gradient is 2/C of the
# plain one (SphereFed, Eq. 5); with ten classes the best rates are about ten times those of cross-entropy.
RATE_FACTOR: dict[str, float] = {"mse": 10.0}

# Part -> processor time of a round relative to plain local SGD, measured by `benchmarks/cost.py` or counted in passes.
COST: dict[str, float] = {
    "moon": 1.9,
    "lra": 1.4,
    "fedsam": 2.0,
    "ditto": 2.0,
    "pfedme": 5.0,
    "fedmmd": 1.5,
    "fedntd": 1.3,
    "feddr_plus": 1.3,
}


@dataclass(frozen=True)
class MainSetting:
    """The setting of a part, and values to try beside the method's own."""

    part: str
    name: str
    values: tuple[Any, ...]


def main_setting(method: str) -> MainSetting | None:
    """The one setting of a method that is tuned beside the rate: of its last piece that has one."""
    present = {part.name: part for part in make_method(method, {}).parts}
    for recipe in reversed(find_recipes(method)):
        names = [part.name for part in recipe.parts if part.name in MAIN and part.name in present]
        part = MAIN_PART[recipe.name] if recipe.name in MAIN_PART else next(iter(names), None)
        if part in present:
            name, values = MAIN[part]
            own = getattr(present[part], name)
            return MainSetting(part, name, tuple(value for value in values if value != own))
    return None


def rate_factor(method: str) -> float:
    """How many times the common learning rates a method's are expected to be."""
    factor = 1.0
    for part in make_method(method, {}).parts:
        factor *= RATE_FACTOR.get(part.name, 1.0)
    return factor


def relative_cost(method: str) -> float:
    """About how long a round of a method takes relative to plain local training."""
    cost = 1.0
    for part in make_method(method, {}).parts:
        cost *= COST.get(part.name, 1.0)
    return cost


def exists(method: str) -> bool:
    """Whether every piece of a method's name is in the registry (or a file of the user's own)."""
    return all(piece in RECIPES or piece in PARTS or ":" in piece for piece in map(str.strip, method.split("+")))
