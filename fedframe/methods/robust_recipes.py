"""Recipes of robust merging: FedAvg with a merge that a minority of poisoning clients cannot move at will."""

from __future__ import annotations

from fedframe.methods.parts.centred_clipping import CentredClipping
from fedframe.methods.parts.coordinate_median import CoordinateMedian
from fedframe.methods.parts.fltrust import FLTrust
from fedframe.methods.parts.geometric_median import GeometricMedian
from fedframe.methods.parts.krum import Krum, MultiKrum
from fedframe.methods.parts.norm_bound import NormBound
from fedframe.methods.parts.trimmed_mean import TrimmedMean
from fedframe.methods.recipe import Recipe

ROBUST_RECIPES: tuple[Recipe, ...] = (
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
)
