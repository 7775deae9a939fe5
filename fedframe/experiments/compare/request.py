"""From what is asked for to the plan of a comparison; everything is checked here, before anything is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedframe.errors import SettingError
from fedframe.experiments.compare.address import Values, joined
from fedframe.experiments.compare.cases import read_cases, split_sweep
from fedframe.experiments.compare.object_names import known_by
from fedframe.experiments.compare.plan import Plan, Tuning, default_out
from fedframe.experiments.compare.rows import Row, read_rows
from fedframe.experiments.compare.tuning import choose_select
from fedframe.experiments.grid.naming import slug
from fedframe.jobs.build import FROM_PYTHON, Net
from fedframe.settings import read_config

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


def make_plans(asked: Request) -> list[Plan]:
    """A plan per case; given settings beat the file's, and its `methods` and `sweep` count where none are given."""
    file = read_config(Path(asked.config)) if asked.config is not None else {}
    listed, swept = file.pop("methods", None) or [], file.pop("sweep", None) or {}
    file.pop("method", None)  # a run's own config.yaml names one
    if not isinstance(listed, list) or not isinstance(swept, Mapping):
        raise SettingError(f"{asked.config}: write methods: [fedavg, fedprox] and sweep: {{lr: [0.01, 0.1]}}.")
    methods = asked.methods or listed
    shared, own = split_sweep(asked.sweep or swept, methods)
    rows = read_rows(methods, own)
    named = {name: value for name, value in (("data", asked.data), ("model", asked.model)) if value is not None}
    objects = {name: value for name, value in named.items() if not isinstance(value, str)}
    refuse_swept_objects(shared, objects)
    settings = joined(file, asked.settings, named, dict.fromkeys(objects, FROM_PYTHON))
    seeds = seed_list(asked.seeds, settings.pop("seed", 0))
    tuning = make_tuning(asked, rows, seeds, settings)
    cases = {case: joined(settings, values) for case, values in read_cases(shared, settings).items()}
    known = {case: known_by(objects, values, seeds[0]) for case, values in cases.items()}
    out = asked.out
    if out is None:
        everything = [text for texts in known.values() for text in texts]
        out = default_out(rows, settings if len(cases) > 1 else cases[""], everything, [case for case in cases if case])
    folders = case_folders(Path(out), [*cases])
    return [
        Plan(
            rows,
            seeds,
            values,
            baseline=asked.baseline if asked.baseline is not None else rows[0].label,
            target=asked.target,
            tuning=tuning,
            out=folders[case],
            data=objects.get("data"),
            net=asked.model if "model" in objects else None,
            known_by=known[case],
            case=case,
        )
        for case, values in cases.items()
    ]


def case_folders(out: Path, cases: Sequence[str]) -> dict[str, Path]:
    """A folder per case, named after it; the only one has all to itself."""
    if len(cases) == 1:
        return {cases[0]: out}
    names = [slug(case) for case in cases]
    return {  # two names may become one, where characters that no folder should have are left out
        case: out / (name if names.count(name) == 1 else f"{name}-{number}")
        for number, (case, name) in enumerate(zip(cases, names, strict=True), start=1)
    }


def make_plan(asked: Request) -> Plan:
    """The plan of a single comparison; what asks for several is refused."""
    plans = make_plans(asked)
    if len(plans) > 1:
        raise SettingError(
            f"This sweep asks for {len(plans)} comparisons ({plans[0].case}; ...); fedframe.compare_each makes them."
        )
    return plans[0]


def refuse_swept_objects(swept: Iterable[str], objects: Mapping[str, object]) -> None:
    """Data and nets from Python are there once."""
    for name in swept:
        if name.strip() in objects:
            raise SettingError(f"{name.strip()} came from Python and cannot be swept; compare once per {name.strip()}.")


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
