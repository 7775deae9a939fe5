"""A scene: a problem with all that is the same for every row, the rows, and how they are tuned; read from a YAML file.

Recipes bring run settings of their own (a cosine schedule, batches of 8, ...). Here a scene names them once, for every
row, and a row may differ in its method and its parts' settings only.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from fedframe.data.files import data_root
from fedframe.data.load import read_spec
from fedframe.errors import SettingError, nearest
from fedframe.experiments.compare.address import METHOD_SETTINGS, Values
from fedframe.experiments.compare.request import SHARE
from fedframe.experiments.grid.scores import check_score, is_accuracy
from fedframe.experiments.papers.cell_grid import Strict
from fedframe.settings import Settings
from fedframe.util.schedule import Schedule

# What recipes set as they like and what decides on a comparison: a scene has to say it.
NAMED = ("rounds", "epochs", "batch", "lr_schedule", "momentum", "weight_decay", "clip")
NOT_HERE = ("method", "seed", "lr", "validate_share", "data_dir", "workers", "engine", "log", "device")
DATA_FOLDER = "{data_dir}"  # in `data`: the folder of --data-dir, wherever that is on this machine
FEWEST_RATES, FEWEST_SEEDS = 5, 3
Share = Annotated[float, Field(gt=0, lt=1)]


class TuningSpec(Strict):
    """How a row's rate and main setting are chosen, on a share of the training data; the same for all rows."""

    mode: Literal["full", "halving"] = (
        "full"  # candidates have all rounds; or a few, and the better half has twice as many
    )
    start: Share = 0.1  # halving: the first share of the rounds
    rates: tuple[Annotated[float, Field(gt=0)], ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    extend: Annotated[int, Field(ge=0, le=10)] = 3  # most rates that are added where the best is the first or the last
    refine: Annotated[int, Field(ge=0, le=6)] = 2  # further candidates: the main setting's, or rates beside the best
    seeds: Annotated[int, Field(ge=1)] = 1  # candidates are run with the first of the seeds
    share: Share = SHARE
    select: str = "generic"  # for rows without a shared model it is personal.final

    @field_validator("rates")
    @classmethod
    def _rates_are_a_grid(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        if len(rates) < FEWEST_RATES or sorted(set(rates)) != [*rates]:
            raise SettingError(
                f"tuning.rates = {[*rates]}: at least {FEWEST_RATES} in rising order; use [0.01, 0.03, 0.1, 0.3, 1]."
            )
        return rates

    @field_validator("select")
    @classmethod
    def _select_is_an_accuracy(cls, select: str) -> str:
        if select != "generic" and not is_accuracy(check_score(select)):
            raise SettingError(f"tuning.select = {select!r} is no accuracy; use generic or personal.final.")
        return select

    def rungs(self, rounds: int) -> list[int]:
        """The numbers of rounds that candidates are compared after, one after the other."""
        if self.mode == "full":
            return [rounds]
        found, share = [], self.start
        while share < 1:
            found.append(max(1, round(share * rounds)))
            share *= 2
        return [*dict.fromkeys([*found, rounds])]


class Scene(Strict):
    """All that a bench needs to know."""

    name: str
    title: str
    settings: Values  # of every row
    cases: dict[str, Values] = Field(default_factory=dict)  # settings by which the problems of a scene differ
    rows: list[str | Values]
    rate_cut: str = "step:0.1@0.9"  # the schedule of the one control that may have another
    tuning: TuningSpec = TuningSpec()
    seeds: Annotated[int, Field(ge=FEWEST_SEEDS)] = FEWEST_SEEDS
    scores: list[str] = Field(default_factory=list)  # accuracies to report beside the usual ones
    samples: int | None = None  # training samples of data whose size is not known before they are read, for estimates
    shape: tuple[int, ...] | None = None  # and the shape of a sample
    notes: list[str] = Field(default_factory=list)

    @field_validator("rate_cut")
    @classmethod
    def _cut_is_a_schedule(cls, text: str) -> str:
        Schedule.read(text)
        return text

    @field_validator("scores")
    @classmethod
    def _scores_exist(cls, names: list[str]) -> list[str]:
        for name in names:
            if not is_accuracy(check_score(name)):
                raise SettingError(f"scores: {name!r} is no accuracy; costs are in every table anyway.")
        return names

    @model_validator(mode="after")
    def _settings_are_complete(self) -> Self:
        for values in (self.settings, *self.cases.values()):
            for name in values:
                if name not in Settings.model_fields:
                    raise SettingError(f"There is no setting {name!r}; {nearest(str(name), Settings.model_fields)}")
                if name in NOT_HERE:
                    raise SettingError(f"{name!r} does not belong into a scene's settings; leave it out.")
        missing = [name for name in NAMED if name not in self.settings]
        if missing:
            raise SettingError(
                f"settings: {', '.join(missing)} must be named, because recipes bring their own; "
                f"for example {missing[0]}: {Settings.model_fields[missing[0]].default}."
            )
        for name in NAMED:
            if any(name in values for values in self.cases.values()):
                raise SettingError(f"cases: {name} is the same in all of a scene; put it into settings.")
        if self.tuning.seeds > self.seeds:
            raise SettingError(f"tuning.seeds = {self.tuning.seeds}: use at most the {self.seeds} seeds of the scene.")
        return self

    def problem(self, case: str) -> Values:
        """Every run setting of a case but the rate: what the scene leaves out is Fedframe's default, not a recipe's."""
        defaults = {name: Settings.model_fields[name].default for name in METHOD_SETTINGS if name != "lr"}
        return {**defaults, **self.settings, **self.cases.get(case, {})}

    @property
    def case_names(self) -> list[str]:
        """The problems by name; an only one may have none."""
        return [*self.cases] or [""]


def place_data(values: Mapping[str, Any], data_dir: str | None) -> Values:
    """Settings in which `{data_dir}` is the data folder of this machine."""
    data = str(values.get("data", Settings.model_fields["data"].default))
    if DATA_FOLDER in data:
        root = data_root(read_spec(data, Path(data_dir) if data_dir else None))
        data = data.replace(DATA_FOLDER, str(root.absolute()))
    return {**values, "data": data, "data_dir": data_dir}


def scene_names() -> list[str]:
    """The scenes that come along, the one to try first in front."""
    found = [path.name for path in (files(__package__) / "scenes").iterdir() if path.name.endswith(".yaml")]
    return sorted((name.removesuffix(".yaml") for name in found), key=lambda name: (name != "quick", name))


def load_scene(name: str) -> Scene:
    """A scene that comes along, by name, or a file of your own."""
    own = Path(name)
    if own.suffix in (".yaml", ".yml"):
        if not own.is_file():
            raise SettingError(f"There is no file {own}; 'fedframe bench --list' lists the scenes that come along.")
        return read_scene(own.stem, own.read_text(), str(own))
    if name not in scene_names():
        raise SettingError(f"There is no scene {name!r}; {nearest(name, scene_names())}")
    return read_scene(name, (files(__package__) / "scenes" / f"{name}.yaml").read_text(), f"{name}.yaml")


def read_scene(name: str, text: str, where: str) -> Scene:
    """A scene from the text of its file; an error is one sentence."""
    try:
        content = yaml.safe_load(text)
        if not isinstance(content, dict):
            raise SettingError(f"{where} must hold a scene: title, settings and rows.")
        return Scene(**{"name": name, **content})
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise SettingError(f"{where}: {place}: {problem['msg'].removeprefix('Value error, ')}.") from error
    except (yaml.YAMLError, TypeError) as error:
        raise SettingError(f"{where} cannot be read: {' '.join(str(error).split())}.") from error
