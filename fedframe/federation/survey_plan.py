"""What a survey adds up, and the agreement that follows from it: columns, categories, sizes, normalisation.

First come the members' forms (names and kinds). The plan that is made of them says what is added up; both sides know
from it what stands where in the sums. Two sums are taken: means, with counts by class, category and missing value;
then, around these means, variances and the histograms that medians come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedframe.data.spec import DataSchema
from fedframe.errors import ProtocolError, RunError, SettingError
from fedframe.federation.survey_data import (
    CATEGORY,
    CELLS,
    IMAGES,
    NUMBER,
    TABLE,
    UNUSABLE,
    Floats,
    OwnData,
    histogram,
    median_of,
)

MEANS, SPREADS = "means", "spreads"
MAX_SIDE = 224  # of images, unless the organiser says otherwise
SHARES = {"any": 0.0, "most": 0.5, "all": 1.0}  # of the members that must have a column
MAX_COLUMNS = 2000
Forms = Mapping[str, Mapping[str, Any]]  # by member
Sums = Mapping[str, float]


@dataclass(frozen=True)
class SurveyPlan:
    """What is added up: the same at all members."""

    kind: str
    classes: tuple[str, ...]
    numbers: tuple[tuple[str, int], ...] = ()  # columns with their scales
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()  # columns with their values
    shape: tuple[int, ...] = ()  # of arrays and images
    scale: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "kind": self.kind,
            "classes": list(self.classes),
            "numbers": [list(each) for each in self.numbers],
            "categories": [[name, list(values)] for name, values in self.categories],
            "shape": list(self.shape),
            "scale": self.scale,
        }

    @classmethod
    def from_json(cls, values: Any) -> SurveyPlan:
        """Read it from JSON values; anything else is refused."""
        try:
            plan = cls(
                str(values["kind"]),
                tuple(map(str, values["classes"])),
                tuple((str(name), int(scale)) for name, scale in values["numbers"]),
                tuple((str(name), tuple(map(str, found))) for name, found in values["categories"]),
                tuple(map(int, values["shape"])),
                int(values["scale"]),
            )
            names = [name for name, _ in (*plan.numbers, *plan.categories)]
            fine = len(set(names)) == len(names) <= MAX_COLUMNS and plan.to_json() == values
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ProtocolError("What the survey adds up cannot be read.") from error
        if not fine:
            raise ProtocolError("What the survey adds up cannot be read.")
        return plan

    @property
    def channels(self) -> int:
        """Of arrays and images: how many numbers are normalised by themselves."""
        return self.shape[-1] if self.shape else 0

    def check(self, own: OwnData) -> None:
        """Refuse a plan that is not about such data as these."""
        if self.kind != own.kind:
            raise ProtocolError(f"The survey is about {described(self.kind)}, and this node has {described(own.kind)}.")
        for name, scale in self.numbers:
            if name in own.numbers and scale < own.numbers[name].scale:
                raise ProtocolError(f"The survey adds up {name[:60]!r} in a scale that this node's numbers exceed.")
        if self.kind not in (TABLE, IMAGES) and (self.shape != own.shape or self.scale < own.scale):
            raise ProtocolError(f"The survey is about arrays of shape {self.shape}, and this node's are {own.shape}.")


# -- what stands in the sums -------------------------------------------------------------------------------------------
def names_of(plan: SurveyPlan, stage: str) -> list[str]:
    """What the numbers of a sum are, in their order."""
    if stage == MEANS:
        found = ["rows", *(f"class {name}" for name in plan.classes)]
        for name, _ in plan.numbers:
            found += [f"rows of {name}", f"sum of {name}", f"squares of {name}", f"missing {name}"]
        for name, values in plan.categories:
            found += [*(f"{name}={value}" for value in values), f"missing {name}"]
        return found + (["samples", *(f"sum of channel {i}" for i in range(plan.channels))] if plan.shape else [])
    found = []
    for name, _ in plan.numbers:
        found += [f"variance of {name}", *(f"cell {i} of {name}" for i in range(CELLS))]
    return found + [f"variance of channel {i}" for i in range(plan.channels)]


def contributions(own: OwnData, plan: SurveyPlan, stage: str, around: Sequence[tuple[float, float]]) -> list[float]:
    """A member's part of a sum; `around` has means and deviations by column, in the plan's scales."""
    found: list[float] = []
    if stage == MEANS:
        counts = own.class_counts(plan.classes)
        found += [sum(counts), *counts]
        for name, scale in plan.numbers:
            values = own.present(name) / 2.0**scale
            found += [len(values), float(values.sum()), float((values**2).sum()), own.missing(name)]
        for name, each in plan.categories:
            found += [*own.category_counts(name, each), own.missing(name)]
    else:
        for (name, scale), (centre, width) in zip(plan.numbers, around, strict=False):
            values = own.present(name) / 2.0**scale
            found += [float(((values - centre) ** 2).sum()), *histogram(values, centre, width, own.least).tolist()]
    if plan.shape:
        first, second = replace(own, scale=plan.scale).moments(plan.shape)
        if stage == MEANS:
            found += [len(first), *first.sum(0).tolist()]
        else:
            centres = [centre for centre, _ in around]
            found += (second - 2 * first * centres + [c * c for c in centres]).sum(0).tolist()
    return [float(value) for value in found]


def around_of(plan: SurveyPlan, sums: Sums) -> list[list[float]]:
    """Means and deviations, around which the second sum is taken."""
    if plan.shape:
        count = max(1.0, sums["samples"])
        return [[sums[f"sum of channel {i}"] / count, 1.0] for i in range(plan.channels)]
    found = []
    for name, _ in plan.numbers:
        count = max(1.0, sums[f"rows of {name}"])
        mean = sums[f"sum of {name}"] / count
        variance = sums[f"squares of {name}"] / count - mean * mean
        found.append([mean, max(math.sqrt(max(0.0, variance)), 2.0**-20)])
    return found


def described(kind: str) -> str:
    """A kind of data in a sentence."""
    return "a table" if kind == TABLE else kind[:40]


# -- from forms to a plan ----------------------------------------------------------------------------------------------
@dataclass
class Findings:
    """What fits and what does not, for the organiser."""

    plan: SurveyPlan
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)  # what, kind, who has it, what follows
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # rows by class, once they are summed


def make_plan(forms: Forms, columns: str = "most", size: int | None = None) -> Findings:
    """What is added up, from the members' forms; data of different kinds are an error."""
    kinds = {str(form["kind"]) for form in forms.values()}
    if len(kinds) > 1:
        named = "; ".join(f"{name} has {described(str(form['kind']))}" for name, form in forms.items())
        raise RunError(f"The members' data are of different kinds and cannot be trained on together: {named}.")
    classes, notes = merge_classes(forms)
    (kind,) = kinds
    if kind == TABLE:
        found = plan_table(forms, classes, columns)
    elif kind == IMAGES:
        found = plan_images(forms, classes, size)
    else:
        shapes = {name: tuple(form["shape"]) for name, form in forms.items()}
        if len(set(shapes.values())) > 1:
            raise RunError(
                "The members' arrays are of different shapes: "
                + "; ".join(f"{name} has {' x '.join(map(str, shape))}" for name, shape in shapes.items())
                + "; agree on one, and begin a new survey."
            )
        scale = max(int(form["scale"]) for form in forms.values())
        shape = next(iter(shapes.values()))
        found = Findings(SurveyPlan(kind, classes, shape=shape, scale=scale))
        found.rows.append(("samples", "arrays", "all", " x ".join(map(str, shape))))
    found.notes += notes
    return found


def merge_classes(forms: Forms) -> tuple[tuple[str, ...], list[str]]:
    """All classes that a member names, and what is odd about them."""
    holders: dict[str, list[str]] = {}
    for member, form in forms.items():
        for name in form["classes"]:
            holders.setdefault(str(name), []).append(member)
    if len(holders) < 2:
        raise RunError(f"The members name {len(holders)} classes in all, and a model tells at least two apart.")
    notes = [
        f"Only {names[0]} has the class {name!r}."
        for name, names in sorted(holders.items())
        if len(names) == 1 < len(forms)
    ]
    alike: dict[str, list[str]] = {}
    for name in sorted(holders):
        alike.setdefault("".join(name.casefold().split()), []).append(name)
    for same in alike.values():
        if len(same) > 1:
            named = " and ".join(f"{name!r} ({', '.join(holders[name])})" for name in same)
            notes.append(f"Does not fit: {named} are taken as different classes; if they are one, write them alike.")
    return tuple(sorted(holders)), notes


def plan_table(forms: Forms, classes: tuple[str, ...], columns: str) -> Findings:
    """The columns that enough members have, each as numbers or as categories."""
    if columns not in SHARES:
        raise SettingError(f"columns = {columns!r}: use any, most or all.")
    found = Findings(SurveyPlan(TABLE, classes))
    labels = {str(form["label"]) for form in forms.values()}
    if len(labels) > 1:
        found.notes.append(f"The label's column has different names ({', '.join(sorted(labels))}); that does no harm.")
    numbers, categories = [], []
    for name in dict.fromkeys(str(name) for form in forms.values() for name in form["columns"]):
        told = {member: form["columns"][name] for member, form in forms.items() if name in form["columns"]}
        usable = {member: each for member, each in told.items() if each["kind"] != UNUSABLE}
        lacking = [member for member in forms if member not in usable]
        who = "all" if not lacking else f"all but {', '.join(lacking)}" if usable else "nobody"
        kinds = {str(each["kind"]) for each in usable.values()}
        if (odd := [member for member in told if member not in usable]) and usable:
            found.notes.append(
                f"{', '.join(odd)} must say how {name!r} is read (it was printed there), or it counts as missing there."
            )
        enough = len(usable) > SHARES[columns] * len(forms) or len(usable) == len(forms)
        if name in labels:
            found.rows.append((name, "label", who, "is the label of a member: no input"))
        elif not usable or not enough:
            found.rows.append((name, "/".join(sorted(kinds)) or UNUSABLE, who, f"left out (--columns {columns})"))
        elif kinds == {NUMBER}:
            numbers.append((name, max(int(each["scale"]) for each in usable.values())))
            found.rows.append((name, NUMBER, who, ""))
        else:
            without = [m for m, each in usable.items() if each["kind"] == NUMBER and not each["codes"]]
            if without:
                found.rows.append(
                    (name, "number/category", who, f"left out: numbers at {', '.join(without)}, texts elsewhere")
                )
                continue
            key = {CATEGORY: "values", NUMBER: "codes"}
            values = sorted({str(v) for each in usable.values() for v in each[key[str(each["kind"])]]})
            categories.append((name, tuple(values)))
            found.rows.append((name, CATEGORY, who, ""))
    if not numbers and not categories:
        raise RunError(f"The members' tables have no column in common (--columns {columns}); try --columns any.")
    found.plan = replace(found.plan, numbers=tuple(numbers), categories=tuple(categories))
    return found


def plan_images(forms: Forms, classes: tuple[str, ...], size: int | None) -> Findings:
    """One size for all: of each side the smallest of the members' most frequent ones, as enlarging invents nothing."""
    usual = {member: tuple(form["sizes"][0]) for member, form in forms.items()}
    height, width = (min(MAX_SIDE, *(each[i] for each in usual.values())) for i in (0, 1))
    if size is not None:
        height = width = size
    channels = max(int(form["channels"]) for form in forms.values())
    found = Findings(SurveyPlan(IMAGES, classes, shape=(height, width, channels), scale=8))
    for member, form in forms.items():
        sizes = ", ".join(f"{h}x{w}" for h, w in form["sizes"][:3])
        same = [tuple(each) for each in form["sizes"]] == [(height, width)] and form["channels"] == channels
        colour = "colour" if form["channels"] == 3 else "grey"
        found.rows.append((member, f"{sizes}, {colour}", "", "as it is" if same else "is scaled and converted"))
    found.notes.append(f"Images are agreed to be {height}x{width}, {'colour' if channels == 3 else 'grey'}.")
    return found


# -- from sums to a form -----------------------------------------------------------------------------------------------
def make_form(found: Findings, means: Sums, spreads: Sums, members: int) -> DataSchema:
    """Classes, inputs and normalisation.

    Inputs of tables are centred on the typical row (the median; of categories the most frequent), which is also what a
    missing value becomes, so that it is 0 for the net. An input of its own says that a value was missing.
    """
    plan = found.plan
    if plan.shape:
        count, unit = max(1.0, means["samples"]), 2.0**plan.scale
        centre = [unit * means[f"sum of channel {i}"] / count for i in range(plan.channels)]
        spread = [unit * deviation(spreads[f"variance of channel {i}"], count) or 1.0 for i in range(plan.channels)]
        found.notes.append(
            f"Normalisation: mean {', '.join(f'{c:.4g}' for c in centre[:8])}, deviation "
            f"{', '.join(f'{s:.4g}' for s in spread[:8])}{', ...' if plan.channels > 8 else ''}."
        )
        return DataSchema(plan.classes, plan.shape, None, torch.tensor(centre), torch.tensor(spread))
    columns: list[str] = []
    mean: list[float] = []
    std: list[float] = []
    total = max(1.0, means["rows"])
    for place, (name, kind, who, what) in enumerate(found.rows):
        if what or kind not in (NUMBER, CATEGORY):
            continue
        gone = means[f"missing {name}"]
        inputs = number_inputs(plan, name, means, spreads) if kind == NUMBER else category_inputs(plan, name, means)
        if not inputs:
            found.rows[place] = (name, kind, who, "left out: the same everywhere")
            continue
        typical = inputs[0][1] if kind == NUMBER else next(each[0] for each in inputs if each[1])
        text = f"median {typical:.4g}" if kind == NUMBER else f"{len(inputs)} categories, most frequent {typical}"
        if gone > 0 or who != "all":
            share = min(gone / total, 1.0)
            inputs.append((f"{name}=", 0.0, math.sqrt(share * (1 - share)) or 1.0))
            text += f"; missing {share:.0%}: filled with it, and an input says so"
        found.rows[place] = (name, kind, who, text)
        for column, centre_of, spread_of in inputs:
            columns.append(column)
            mean.append(centre_of)
            std.append(spread_of)
    if not columns:
        raise RunError("All columns that the members share are the same everywhere; a model can learn nothing of them.")
    return DataSchema(plan.classes, (len(columns),), tuple(columns), torch.tensor(mean), torch.tensor(std))


def deviation(squares: float, count: float) -> float:
    """A standard deviation from squared distances; 0 if it is no more than rounding."""
    found = math.sqrt(max(0.0, squares) / max(1.0, count))
    return found if found > 1e-6 else 0.0


def number_inputs(plan: SurveyPlan, name: str, means: Sums, spreads: Sums) -> list[tuple[str, float, float]]:
    """The input of a column of numbers, with its median and its deviation; none if it is constant."""
    scale, count = 2.0 ** dict(plan.numbers)[name], means[f"rows of {name}"]
    spread = deviation(spreads[f"variance of {name}"], count)
    if not count or not spread:
        return []
    place = [each for each, _ in plan.numbers].index(name)
    centre, width = around_of(plan, means)[place]
    cells: Floats = torch.tensor([spreads[f"cell {i} of {name}"] for i in range(CELLS)], dtype=torch.float64).numpy()
    return [(name, scale * median_of(cells, centre, width), scale * spread)]


def category_inputs(plan: SurveyPlan, name: str, means: Sums) -> list[tuple[str, float, float]]:
    """An input per category: 1 is the centre of the most frequent one; none if there is but one."""
    counts = {value: means[f"{name}={value}"] for value in dict(plan.categories)[name]}
    here = {value: count for value, count in counts.items() if count > 0}
    if len(here) < 2:
        return []
    typical, total = max(here, key=lambda value: (here[value], value)), sum(here.values())
    return [
        (f"{name}={value}", float(value == typical), math.sqrt(count / total * (1 - count / total)))
        for value, count in here.items()
    ]
