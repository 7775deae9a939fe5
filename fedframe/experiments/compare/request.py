"""From what is asked for to the plan of a comparison; everything is checked here, before anything is run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedframe.errors import SettingError
from fedframe.experiments.compare.address import Values, merge_layers
from fedframe.experiments.compare.cases import read_cases, split_sweep
from fedframe.experiments.compare.plan import Plan, Tuning, default_out
from fedframe.experiments.compare.rows import MethodRow, MethodSpec, check_labels, read_rows
from fedframe.experiments.compare.tuning import choose_select
from fedframe.experiments.grid.naming import slug
from fedframe.jobs.build import Net, make_clients
from fedframe.jobs.gather import named_settings
from fedframe.settings import FROM_PYTHON, check, read_config
from fedframe.util.allowed_code import allow_typed

SHARE = 0.2  # of each client's training data, for validation


@dataclass(frozen=True)
class ComparisonRequest:
    """The arguments of `fedframe.compare`, unchecked."""

    methods: Sequence[MethodSpec] = ()
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


def make_plans(asked: ComparisonRequest) -> list[Plan]:
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
    refuse_swept_objects(shared, named)
    names = [row.method for row in rows]
    layers = [{**each, "set": named_settings(each.get("set") or {}, *names)} for each in (file, asked.settings)]
    settings = merge_layers(*layers, named)
    rows = [row.relabelled(settings.get("set") or {}) for row in rows]
    check_labels(rows)
    seeds = seed_list(asked.seeds, settings.pop("seed", 0))
    tuning = make_tuning(asked, rows, seeds, settings)
    problems = {
        case: CaseData(merge_layers(settings, values), seeds[0])
        for case, values in read_cases(shared, settings).items()
    }
    allow_typed(*(problem.settings.get("model") for problem in problems.values()))
    out = asked.out
    if out is None:
        first = settings if len(problems) > 1 else problems[""].settings
        texts = [text for problem in problems.values() for text in problem.known_by]
        out = default_out(rows, as_names(first), texts, [case for case in problems if case])
    folders = case_folders(Path(out), [*problems])
    return [
        Plan(
            rows,
            seeds,
            problem.settings,
            baseline=asked.baseline if asked.baseline is not None else rows[0].label,
            target=asked.target,
            tuning=tuning,
            out=folders[case],
            data=problem.objects.get("data"),
            net=problem.objects.get("model"),
            known_by=problem.known_by,
            case=case,
        )
        for case, problem in problems.items()
    ]


class CaseData:
    """The settings of one case, with the data and the net that exist only in Python taken out of them."""

    def __init__(self, values: Values, seed: int) -> None:
        self.objects = objects_in(values)
        self.settings = as_names(values)
        digests = {"data": data_digest, "model": net_digest}
        self.known_by = tuple(digests[name](each, self.settings, seed) for name, each in self.objects.items())


def objects_in(values: Values) -> dict[str, Any]:
    """The data and the net among settings that are objects and not names."""
    return {name: values[name] for name in ("data", "model") if not isinstance(values.get(name), str | None)}


def as_names(values: Values) -> Values:
    """Settings whose data and net are texts, whatever they were."""
    return {**values, **dict.fromkeys(objects_in(values), FROM_PYTHON)}


def data_digest(data: object, settings: Mapping[str, Any], seed: int) -> str:
    """A digest of the clients that data from Python become: labels, split and normalisation."""
    checked = check({**{name: value for name, value in settings.items() if name != "set"}, "seed": seed})
    clients = make_clients(checked, data)
    source = clients.source
    digest = hashlib.blake2b(digest_size=8)
    tests = () if source.test is None else (source.test.targets,)
    rows = (clients.train.offsets, clients.train.values, clients.local_test.values)
    for values in (source.train.targets, *tests, *rows, source.mean, source.std):
        digest.update(values.contiguous().numpy().tobytes())
    return f"data {digest.hexdigest()}"


def net_digest(net: object, settings: Mapping[str, Any], seed: int) -> str:
    """A digest of a net's structure and weights; a function that makes a net goes by its name."""
    if not isinstance(net, nn.Module):
        return f"net {getattr(net, '__qualname__', type(net).__qualname__)}"
    digest = hashlib.blake2b(repr(net).encode(), digest_size=8)
    for tensor in net.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return f"net {digest.hexdigest()}"


def case_folders(out: Path, cases: Sequence[str]) -> dict[str, Path]:
    """A folder per case, named after it; an only case has the whole folder."""
    if len(cases) == 1:
        return {cases[0]: out}
    names = [slug(case) for case in cases]
    return {  # two names may become one, where characters that no folder should have are left out
        case: out / (name if names.count(name) == 1 else f"{name}-{number}")
        for number, (case, name) in enumerate(zip(cases, names, strict=True), start=1)
    }


def make_plan(asked: ComparisonRequest) -> Plan:
    """The plan of a single comparison; what asks for several is refused."""
    plans = make_plans(asked)
    if len(plans) > 1:
        raise SettingError(
            f"This sweep asks for {len(plans)} comparisons ({plans[0].case}; ...); fedframe.compare_each makes them."
        )
    return plans[0]


def refuse_swept_objects(swept: Iterable[str], given: Mapping[str, object]) -> None:
    """Refuse a sweep over data or nets of which one object is given as well."""
    for name in (name.strip() for name in swept):
        if not isinstance(given.get(name, ""), str):
            raise SettingError(f"{name} came from Python and cannot be swept; compare once per {name}.")


def make_tuning(
    asked: ComparisonRequest, rows: Sequence[MethodRow], seeds: tuple[int, ...], settings: Values
) -> Tuning | None:
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
