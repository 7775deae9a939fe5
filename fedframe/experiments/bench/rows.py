"""The rows of a bench: those of the scene or of the command, and the controls that stand in every table.

A row is a method with settings of its parts. Nothing of the run (schedule, decay, epochs, batch, ...) may differ; the
rate is tuned on the same grid for all. The controls that need something else say so in their labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.resources import files
from typing import Any

import yaml

from fedframe.core.part import ALL_DATA
from fedframe.errors import SettingError, nearest
from fedframe.experiments.bench.scene import Scene
from fedframe.experiments.compare.address import Address, Values, find_address, merge_layers, parts_of
from fedframe.experiments.compare.rows import MethodRow, flatten, method_of, read_method
from fedframe.methods.recipes import make_method, method_label, recipe_defaults
from fedframe.methods.tuning import exists, main_setting, rate_factor
from fedframe.util.allowed_code import allow_typed

UNTRAINED: Values = {"lr": 1e-30, "rounds": 1, "steps": 1}  # in float32 a step of this length moves no weight
OWN_KEYS = ("method", "label", "why", "like", "set")
CONTROL_KEYS = ("schedule", "untrained", "untuned")


@dataclass(frozen=True)
class BenchRow:
    """A row of the table and how it is tuned."""

    row: MethodRow
    why: str = ""
    control: bool = False
    tuned: bool = True
    like: str = ""  # the label of a row whose choice it takes over
    main: tuple[Address, tuple[Any, ...]] | None = None  # the setting beside the rate, and values beside its default
    rate_factor: float = 1.0


def bench_rows(
    scene: Scene, methods: Sequence[str] = (), patterns: Sequence[str] = (), controls: bool = True
) -> tuple[list[BenchRow], list[str]]:
    """The baseline, the chosen rows, the controls; and a sentence per control that is left out.

    `methods` that the scene has are chosen by name, others are rows of their own; `patterns` choose among the scene's.
    """
    fixed, left_out = control_rows(scene)
    baseline, others = fixed[0], fixed[1:] if controls else []
    taken = {each.row.label for each in fixed}
    listed = [each for each in (read_bench_row(scene, given) for given in scene.rows) if each.row.label not in taken]
    chosen = [each for each in listed if not patterns or any(matches(each, pattern) for pattern in patterns)]
    for pattern in patterns:
        if not any(matches(each, pattern) for each in (*listed, *fixed)):
            raise SettingError(f"There is no row {pattern!r}; {nearest(pattern, [each.row.label for each in listed])}")
    if methods:
        known = [each for each in chosen if any(matches(each, method) for method in methods)]
        new = [method for method in methods if not any(matches(each, method) for each in (*listed, *fixed))]
        chosen = known + [read_bench_row(scene, method) for method in new]
        others += [each for each in fixed[1:] if not controls and any(matches(each, method) for method in methods)]
    rows = [baseline, *chosen, *others]
    check_labels(rows)
    return [with_original(each, rows) for each in rows], left_out if controls else []


def matches(row: BenchRow, pattern: str) -> bool:
    """Whether a pattern (* stands for anything) names a row by its label or its method."""
    return any(fnmatch(name.casefold(), pattern.strip().casefold()) for name in (row.row.label, row.row.method))


def with_original(row: BenchRow, rows: Sequence[BenchRow]) -> BenchRow:
    """A row whose `like` is among the rows; where that one was not chosen, it is tuned by itself."""
    labels = {each.row.label for each in rows if not each.like}
    if not row.like or row.like in labels:
        return row
    return BenchRow(row.row, row.why, row.control, row.tuned, "", row.main, row.rate_factor)


def check_labels(rows: Sequence[BenchRow]) -> None:
    """Refuse two rows of one name."""
    labels = [each.row.label for each in rows]
    for label in labels:
        if labels.count(label) > 1:
            raise SettingError(f"Two rows are called {label!r}; name one of them: label: another name.")


def control_rows(scene: Scene) -> tuple[list[BenchRow], list[str]]:
    """The controls that this version has, and a sentence on each that it has not."""
    found, left_out = [], []
    for given in yaml.safe_load((files(__package__) / "controls.yaml").read_text()):
        if not exists(given["method"]):
            left_out.append(f"The control {given['method']} is left out: this version has no such method.")
            continue
        found.append(read_bench_row(scene, given, control=True))
    return found, left_out


def read_bench_row(scene: Scene, given: str | Mapping[str, Any], control: bool = False) -> BenchRow:
    """A row; whatever is no setting of its parts is refused."""
    values = read_method(given)
    method = method_of(values)
    allow_typed(scene.settings.get("model"))
    own = parts_of(method)
    common = {part: each for part, each in (scene.settings.get("set") or {}).items() if part in own}
    settings: Values = {"set": common} if common else {}
    special = {key: values.pop(key) for key in CONTROL_KEYS if control and key in values}
    rest = flatten({key: value for key, value in values.items() if key == "set" or key not in OWN_KEYS})
    main: tuple[Address, tuple[Any, ...]] | None = None
    fixed = []
    for name, value in rest.items():
        address = part_address(name, method)
        if isinstance(value, list):
            main = (address, tuple(value))
        else:
            settings = merge_layers(settings, address.value(value))
            fixed.append(address)
    if main is None:
        known = main_setting(method)
        if known is not None and (address := Address(known.name, known.part)) not in fixed:
            main = (address, known.values)
    if special.get("schedule") == "rate_cut":
        settings = {**settings, "lr_schedule": scene.rate_cut}
    if special.get("untrained"):
        settings = {**settings, **UNTRAINED}
    if special.get("untuned"):  # with the rounds and the net that its recipe brings: it may have none of either
        settings = {**recipe_defaults(method), **settings}
    shown = ", ".join(f"{name}={value}" for name, value in rest.items() if not isinstance(value, list))
    label = str(values.get("label") or f"{method_label(method)} {shown}".strip())
    tuned = not (special.get("untrained") or special.get("untuned"))
    like = str(values.get("like", ""))
    row = MethodRow(method, label, settings)
    return BenchRow(row, str(values.get("why", "")), control, tuned, like, main if tuned else None, rate_factor(method))


def part_address(name: str, method: str) -> Address:
    """The setting of a part; one of the run is refused."""
    address = find_address(name, [method])
    if not address.part:
        raise SettingError(
            f"{method}: {name} is the same for all rows of a bench; a row differs in its method and its parts' "
            "settings only. Put it into the scene's settings (lr: into tuning.rates)."
        )
    return address


def for_case(row: BenchRow, settings: Mapping[str, Any], samples: float | None) -> MethodRow:
    """The row in a case: pooled training sees as many samples a round as the drawn clients have together.

    Otherwise one place would train on all data in a round in which a tenth of the clients takes part.
    """
    if (
        not pools_data(row.row.method)
        or samples is None
        or settings.get("steps") is not None
        or settings.get("participation", 1) == 1
    ):
        return row.row
    steps = max(1, round(samples * settings["participation"] * settings["epochs"] / settings["batch"]))
    return MethodRow(row.row.method, row.row.label, {**row.row.settings, "steps": steps})


def pools_data(method: str) -> bool:
    """Whether a method trains on all clients' data in one place: a bound, not a rival."""
    return any(part.server_samples == ALL_DATA for part in make_method(method, {}).parts)
