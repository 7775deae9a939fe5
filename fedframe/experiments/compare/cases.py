"""What all methods share may be swept as well: each value is a case, a problem of its own with a comparison of its own.

Of a learning rate the better one is chosen, on validation data. Of two partitions neither is the better, and a table
that chose the easier one would mislead. So every method is tuned and scored in each case, and the cases stand side by
side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from fedframe.data.partition import CAPPED, read_partition
from fedframe.errors import SettingError
from fedframe.experiments.compare.address import Values, parts_of
from fedframe.experiments.compare.rows import MOST_SWEPT, MethodSpec, checked_values, method_of, read_method
from fedframe.jobs.gather import setting_names
from fedframe.settings import Settings

ALPHA = "alpha"  # the number behind dirichlet:, the field's own word for it
CASES = (
    ALPHA, "data", "partition", "clients", "min_client_size", "test_share", "data_share", "local_test", "new_clients",
    "model", "rounds", "participation",
)  # fmt: skip

Sweep = Mapping[str, Sequence[Any]]


def split_sweep(sweep: Sweep, methods: Sequence[MethodSpec]) -> tuple[Sweep, Sweep]:
    """The settings that make cases, and those that have candidates to choose from."""
    cases = {name: values for name, values in sweep.items() if name.strip() in CASES}
    if ALPHA in cases:
        refuse_two_meanings(methods)
    if len(cases) > MOST_SWEPT:
        raise SettingError(f"A sweep is over one or two settings, not {', '.join(cases)}; fix some of them.")
    return cases, {name: values for name, values in sweep.items() if name not in cases}


def refuse_two_meanings(methods: Sequence[MethodSpec]) -> None:
    """`alpha` is the partition's; it is refused where a part has a setting of that name."""
    present = parts_of(*(method_of(read_method(each)) for each in methods))
    holders = [name for name, part in present.items() if ALPHA in setting_names(part)]
    if holders:
        raise SettingError(
            f"alpha is the partition's number and a setting of the part {holders[0]!r}; write {holders[0]}.alpha=..., "
            "or partition=dirichlet:0.1,dirichlet:0.5 for the partition's."
        )


def read_cases(sweep: Sweep, settings: Mapping[str, Any]) -> dict[str, Values]:
    """Every combination by its name (`alpha=0.1, clients=10`), as settings; one without a name if nothing is swept."""
    names = [name.strip() for name in sweep]
    columns = [value_labels(checked_values(name, values)) for name, values in sweep.items()]
    found: dict[str, Values] = {}
    for labelled in product(*columns):
        case = dict(zip(names, (value for _, value in labelled), strict=True))
        label = ", ".join(f"{name}={text}" for name, (text, _) in zip(names, labelled, strict=True))
        if ALPHA in case:
            if "partition" in case:
                raise SettingError("alpha is a part of partition; sweep one of them.")
            case["partition"] = with_alpha(settings, case.pop(ALPHA))
        if case.get("partition", "auto") != "auto":
            read_partition(str(case["partition"]))  # refuse a wrong one before anything runs
        found[label] = case
    return found if len(found) > 1 else {"": next(iter(found.values()))}


def value_labels(values: Sequence[Any]) -> list[tuple[str, Any]]:
    """Values with their texts; objects are called after what they are, and numbered where several are called alike."""
    plain = str | int | float | bool | None
    texts = [
        str(each) if isinstance(each, plain) else getattr(each, "__name__", type(each).__name__) for each in values
    ]
    return [
        (text if text not in texts[:i] else f"{text}-{1 + texts[:i].count(text)}", value)
        for i, (text, value) in enumerate(zip(texts, values, strict=True))
    ]


def with_alpha(settings: Mapping[str, Any], alpha: object) -> str:
    """The partition with another number behind `dirichlet:`; a long tail in front of it and a cap behind it stay."""
    now = str(settings.get("partition") or Settings.model_fields["partition"].default)
    before, plus, last = now.rpartition("+")
    if now != "auto" and last.partition(":")[0] != "dirichlet":
        raise SettingError(
            f"alpha is the number of a dirichlet partition, and partition = {now}; leave --partition out, or sweep "
            f"it: --sweep partition={now},iid"
        )
    return f"{before}{plus}dirichlet:{alpha}{CAPPED if last.endswith(CAPPED) else ''}"
