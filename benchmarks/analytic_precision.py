"""What short numbers cost the closed form: `python -m benchmarks.analytic_precision --data-dir DIR`.

Samples are dealt to 20 clients. Features are made in float32 and, as `analytic` does on processors that have units for
it, in bfloat16; each client's sums, of features minus about their mean, are rounded as they are sent: to float32 if
features are many. Beside them stands the solution of the pooled samples from sums in float64 all the way. Accuracy
is that on training samples which were held out; all fits have the ridge that generalised cross-validation chooses for
the pooled ones. The seed draws the map and who is held out. What is in docs/results/analytic-precision.json of other
data and seeds stays there.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.analytic_maps import SIZES, batches
from benchmarks.origin import command_line, origin
from fedframe.data import Source, load_source
from fedframe.methods.closed_form.ridge import Problem, fit_ridge, standardise
from fedframe.methods.closed_form.sums import Sums, stream_sums
from fedframe.methods.parts.analytic import is_exact
from fedframe.models import feature_maps
from fedframe.models.feature_maps import FeatureMap, make_map
from fedframe.util.files import read_json, write_json

RESULTS = Path("docs/results/analytic-precision.json")
CLIENTS = 20


def embed(features: FeatureMap, source: Source, rows: Tensor, bfloat16: bool) -> tuple[Tensor, Tensor]:
    """Features (n, dim) of these samples, and their labels."""
    with mock.patch.object(feature_maps, "has_bfloat16_units", return_value=bfloat16):
        made = [(features(inputs), labels) for inputs, labels in batches(source, rows)]
    return torch.cat([z for z, _ in made]), torch.cat([labels for _, labels in made])


def scores(problem: Problem, ridge: float | None, features: Tensor) -> tuple[Tensor, float]:
    """Least squares' scores of these features, in float64, and the ridge."""
    fit = fit_ridge(problem, ridge)
    weight, bias = problem.head(fit.coefficients)
    return torch.cat([some.double() @ weight.T + bias for some in features.split(1024)]), fit.ridge  # type: ignore[no-untyped-call]


@torch.no_grad()
def measure(data: str, data_dir: Path, samples: int, seed: int) -> dict[str, Any]:
    """One data set and seed."""
    count, test, width = SIZES[data]
    count, test = min(count, samples), min(test, samples // 2)
    source = load_source(data, data_dir=data_dir, seed=0)
    order = torch.randperm(len(source.train), generator=torch.Generator().manual_seed(1 + seed))
    train, held_out = order[:count], order[count : count + test]
    torch.manual_seed(seed)
    features = make_map(source.input_shape, math.prod(source.input_shape), width, "fixed")
    for name, tensor in features.fit(torch.zeros(0, dtype=torch.float64)).items():
        getattr(features, name).copy_(tensor)
    middle = features.usual().double()
    classes, found = len(source.classes), dict[str, Any]()
    exact, ridge = torch.empty(0), None
    as_it_is = is_exact(features.dim)
    wire = "float64" if as_it_is else "float32"
    for name, bfloat16 in (("float32", False), ("bfloat16", True)):
        z, y = embed(features, source, train, bfloat16)
        z_test, y_test = embed(features, source, held_out, bfloat16)
        if not bfloat16:
            blocks = ((some.double(), labels) for some, labels in zip(z.split(512), y.split(512), strict=True))  # type: ignore[no-untyped-call]
            exact, ridge = scores(standardise(stream_sums(blocks, features.dim, classes)), None, z_test)
            found["pooled, float64"] = {"accuracy": float((exact.argmax(1) == y_test).double().mean())}
        total = Sums.zeros(features.dim, classes)
        for rows in torch.arange(count).tensor_split(CLIENTS):
            own = stream_sums([(z[rows].double() - middle, y[rows])], features.dim, classes)
            total.add_(own if as_it_is else own.rounded())
        sent, _ = scores(standardise(total, shortened=not as_it_is), ridge, z_test.double() - middle)
        apart = (sent - exact).abs()
        found[f"features in {name}, sums sent in {wire}"] = {
            "accuracy": float((sent.argmax(1) == y_test).double().mean()),
            "largest_difference_of_scores": float(apart.max()),
            "mean_difference_of_scores": float(apart.mean()),
            "other_predictions": int((sent.argmax(1) != exact.argmax(1)).sum()),
        }
    sizes = {"train": count, "held_out": test, "clients": CLIENTS, "features": features.dim}
    return {"data": data, "seed": seed, **sizes, "ridge": ridge, "found": found}


def main() -> None:
    """All data sets and seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", default=",".join(SIZES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--samples", type=int, default=1 << 20, help="at most so many of a data set")
    given = parser.parse_args()
    for data in given.data.split(","):
        for seed in map(int, given.seeds.split(",")):
            found = measure(data, given.data_dir, given.samples, seed)
            print(json.dumps(found), flush=True)
            fits = read_json(given.results)["fits"] if given.results.exists() else []
            others = [each for each in fits if (each["data"], each.get("seed", seed)) != (data, seed)]
            fits = [*others, {"command": command_line(), **origin(), **found}]
            write_json(given.results, {"about": f"python -m benchmarks.{Path(__file__).stem}", "fits": fits})


if __name__ == "__main__":
    main()
