"""From what is asked for to the plan of a comparison; everything is checked here, before anything is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedframe.api import FROM_PYTHON, Net
from fedframe.comparing.address import Values, joined
from fedframe.comparing.known import known_by
from fedframe.comparing.plan import Plan, Tuning, default_out
from fedframe.comparing.rows import Row, read_rows
from fedframe.comparing.tuning import choose_select
from fedframe.errors import SettingError
from fedframe.folder import read_config

SHARE = 0.2  # of each client's training data, for validation


@dataclass(frozen=True)
class Request:
    """What a person asks for."""

    methods: Sequence[str | Mapping[str, Any]] = ()
    seeds: int | Sequence[int] = 3
    baseline: str | None = None
    target: float | None = None
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    select: str = ""
    tuning_seeds: int | None = None
    data: object = None
    model: Net | None = None
    out: str | Path | None = None
    config: str | Path | None = None
    settings: Values = field(default_factory=dict)


def make_plan(asked: Request) -> Plan:
    """The plan; given settings beat the file's, and `methods` and `sweep` of the file count where none are given."""
    file = read_config(Path(asked.config)) if asked.config is not None else {}
    listed, swept = file.pop("methods", None) or [], file.pop("sweep", None) or {}
    file.pop("method", None)  # a run's own config.yaml names one
    if not isinstance(listed, list) or not isinstance(swept, Mapping):
        raise SettingError(f"{asked.config}: write methods: [fedavg, fedprox] and sweep: {{lr: [0.01, 0.1]}}.")
    rows = read_rows(asked.methods or listed, asked.sweep or swept)
    named = {name: value for name, value in (("data", asked.data), ("model", asked.model)) if value is not None}
    objects = {name: value for name, value in named.items() if not isinstance(value, str)}
    settings = joined(file, asked.settings, named, dict.fromkeys(objects, FROM_PYTHON))
    seeds = seed_list(asked.seeds, settings.pop("seed", 0))
    tuning = make_tuning(asked, rows, seeds, settings)
    known = known_by(objects, settings, seeds[0])
    return Plan(
        rows,
        seeds,
        settings,
        baseline=asked.baseline if asked.baseline is not None else rows[0].label,
        target=asked.target,
        tuning=tuning,
        out=Path(asked.out) if asked.out is not None else default_out(rows, settings, known),
        data=objects.get("data"),
        net=asked.model if "model" in objects else None,
        known_by=known,
    )


def make_tuning(asked: Request, rows: Sequence[Row], seeds: tuple[int, ...], settings: Values) -> Tuning | None:
    """How candidates are compared, if there are any; takes the validation share out of the runs' settings."""
    if not any(len(row.candidates) > 1 for row in rows):
        if asked.select or asked.tuning_seeds is not None:
            raise SettingError("select and tuning_seeds are for sweeps; add one, such as --sweep lr=0.01,0.1")
        return None
    share = float(settings.pop("validate_share", SHARE))
    if not 0 < share < 1:
        raise SettingError(f"validate_share = {share:g} cannot choose between candidates; use validate_share = 0.2.")
    if asked.tuning_seeds is not None and not 1 <= asked.tuning_seeds <= len(seeds):
        raise SettingError(f"tuning_seeds = {asked.tuning_seeds}: use a number from 1 to the {len(seeds)} seeds.")
    return Tuning(choose_select(rows, asked.select), share, seeds[: asked.tuning_seeds])


def seed_list(seeds: int | Sequence[int], start: object) -> tuple[int, ...]:
    """So many seeds from the first on, or those that are listed."""
    try:
        first = int(str(start))
        found = tuple(range(first, first + seeds)) if isinstance(seeds, int) else tuple(seeds)
    except ValueError:
        raise SettingError(f"seed = {start!r} is no whole number; use seed = 0.") from None
    if not found or len(set(found)) < len(found):
        raise SettingError(f"seeds = {seeds!r}: at least one, and none twice; use seeds = 5.")
    return found
