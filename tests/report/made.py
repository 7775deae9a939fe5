"""Run folders that were never run: all files that a page is made from, of any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedframe.core.measures import Predictions
from fedframe.metrics.measure_table import measure_table
from fedframe.settings import Settings


def made_run(
    folder: Path,
    *,
    method: str = "fedavg",
    clients: int = 12,
    classes: int = 6,
    rounds: int = 8,
    seed: int = 0,
    samples: int = 300,
    names: list[str] | None = None,
    client_names: list[str] | None = None,
    **settings: Any,
) -> Path:
    """Write a finished run with every file that a section asks for."""
    draw = np.random.default_rng([seed, *method.encode()])
    folder.mkdir(parents=True)
    given = {
        "method": method,
        "clients": clients,
        "rounds": rounds,
        "seed": seed,
        "partition": "dirichlet:0.1",
        "model": "mlp",
    }
    config = Settings(**{**given, **settings}).model_dump(mode="json")
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    labels = names or [f"class {i}" for i in range(classes)]
    counts = draw.poisson(draw.gamma(0.3, 60, (clients, classes)))
    skill = 0.6 + sum(method.encode()) % 7 / 25
    write_rounds(folder, draw, clients, rounds, skill)
    shared = np.clip(draw.normal(skill, 0.1, clients), 0, 1)
    own = np.clip(shared + abs(draw.normal(0.05, 0.05, clients)), 0, 1)
    who: list[Any] = client_names or [*range(clients)]
    if client_names:
        (folder / "clients.json").write_text(json.dumps(client_names))
    dump(
        folder / "client_scores.json",
        {
            "clients": who,
            "train_samples": counts.sum(1).tolist(),
            "test_samples": (counts.sum(1) // 4).tolist(),
            "client": shared.tolist(),
            "personal": [None, *own.tolist()[1:]] if clients > 1 else own.tolist(),
        },
    )
    confusion = draw.poisson(3, (classes, classes)) + np.diag(draw.poisson(80, classes))
    per_class = (np.diag(confusion) / confusion.sum(1)).tolist()
    dump(folder / "summary.json", summary(config, labels, per_class, counts, shared, own))
    dump(folder / "examination.json", examination(draw, labels, counts, confusion, per_class, samples, client_names))
    return folder


def write_rounds(folder: Path, draw: Any, clients: int, rounds: int, skill: float) -> None:
    """metrics.jsonl and drift.jsonl."""
    metrics, drift = [], []
    for round in range(1, rounds + 1):
        good = skill * (1 - np.exp(-3 * round / rounds)) + draw.normal(0, 0.01)
        metrics.append(
            {
                "round": round,
                "loss": 2 * float(np.exp(-2 * round / rounds)),
                "lr": 0.1,
                "clients": clients,
                "dropped": 0,
                "seconds": 0.2,
                "bytes_up": 10**6,
                "bytes_down": 10**6,
                "generic": float(good),
                "client": float(good + 0.02),
                "nc1": 3.0 / round,
                "nc2_norms": 0.4 / round,
                "nc2_angles": 0.3,
                "nc3": 0.9 - 0.05 * round,
                "nc4": 0.1,
                "drift_cosine": 0.4,
            }
        )
        there = sorted(draw.choice(clients, max(1, (4 * clients) // 5), replace=False).tolist())
        cosines = np.clip(draw.normal(0.3, 0.3, len(there)), -1, 1).tolist()
        drift.append(
            {"round": round, "clients": there, "cosine": cosines, "norm": abs(draw.normal(1, 0.2, len(there))).tolist()}
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (folder / "drift.jsonl").write_text("".join(json.dumps(line) + "\n" for line in drift))


def summary(
    config: dict[str, Any], labels: list[str], per_class: list[float], counts: Any, shared: Any, own: Any
) -> dict[str, Any]:
    """summary.json."""
    mean, personal = float(shared.mean()), float(own.mean())
    return {
        "method": config["method"],
        "rounds": config["rounds"],
        "seed": config["seed"],
        "parameters": 55210,
        "scores": {
            "generic": {"last": mean, "last_five": mean - 0.01, "final": mean},
            "client": {"last": mean, "last_five": mean, "final": mean, "weighted": mean},
            "personal": {"last": None, "last_five": None, "final": personal, "weighted": personal},
        },
        "per_class": dict(zip(labels, per_class, strict=True)),
        "train_per_class": dict(zip(labels, counts.sum(0).tolist(), strict=True)),
        "definitions": {"generic": "accuracy of the shared model on the global test set"},
        "seconds": 12.5,
        "measures": {"generic": made_measures(labels)},
        "cpu_seconds": 20.0,
        "peak_memory_mb": 410.0,
        "bytes_up": 8 * 10**6,
        "bytes_down": 8 * 10**6,
    }


def made_measures(labels: list[str]) -> dict[str, Any]:
    """Measures of a model that knows something."""
    draw = np.random.default_rng(len(labels))
    truth = np.arange(20 * len(labels)) % len(labels)
    p = draw.uniform(0, 1, (len(truth), len(labels))) + np.eye(len(labels))[truth]
    return measure_table(Predictions(p / p.sum(1, keepdims=True), truth), labels, 1, 0.9)


def made_gain(names: list[str]) -> dict[str, Any]:
    """gain.json of clients that gain, one after the other, a little less."""

    def around(value: float) -> dict[str, float]:
        return {"value": value, "low": value - 0.123, "high": value + 0.123}

    rows = [
        {
            "client": name,
            "test_samples": 1234,
            **{kind: around(0.5 + i / 10) for i, kind in enumerate(("alone", "shared", "personal"))},
            "gain": around(0.2 - place / 100),
            "verdict": "gains",
        }
        for place, name in enumerate(names)
    ]
    counts = {"gains": len(names), "loses": 0, "no clear difference": 0}
    return {"clients": rows, "mean": around(0.19), "counts": counts, "metric": "accuracy"}


def examination(
    draw: Any,
    labels: list[str],
    counts: Any,
    confusion: Any,
    per_class: list[float],
    samples: int,
    client_names: list[str] | None,
) -> dict[str, Any]:
    """examination.json."""
    classes, clients = len(labels), len(counts)
    vectors = draw.normal(0, 1, (classes, 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    points = draw.integers(0, classes, samples)
    edges = np.linspace(0, 1, 11)
    few = min(clients, 50)
    heads = draw.uniform(0.2, 1, (few, few))
    return {
        "classes": labels,
        "confusion": confusion.tolist(),
        "per_class": per_class,
        "groups": {"many": 0.9, "medium": 0.8, "few": 0.6},
        "ece": {
            "error": 0.041,
            "bins": [
                {"from": a, "to": b, "count": 30, "confidence": (a + b) / 2, "accuracy": (a + b) / 2 * 0.9}
                for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
            ],
        },
        "partition": {
            "clients": list(range(clients)),
            "names": client_names or [str(i) for i in range(clients)],
            "counts": counts.tolist(),
            "sizes": counts.sum(1).tolist(),
        },
        "gram": {
            "cosines": (vectors @ vectors.T).tolist(),
            "ideal": -1 / max(1, classes - 1),
            "norms": [1.0] * classes,
        },
        "collapse": {"nc1": 0.4, "nc2_norms": 0.1, "nc2_angles": 0.2, "nc3": 0.5, "nc4": 0.03},
        "degeneration": {
            "ranks": list(range(0, 128, 2)),
            "sorted_means": [[], *np.sort(draw.exponential(1, (classes - 1, 64)))[:, ::-1].tolist()],
            "mean": np.geomspace(3, 0.01, 64).tolist(),
            "variance": [0.1] * 64,
            "pruning": [
                {"kept": k / 10, "accuracy": 0.9 * k / 10, "smallest_kept": 0.9 * (k / 10) ** 3} for k in range(1, 11)
            ],
        },
        "embedding": {
            "method": "tsne",
            "x": draw.normal(points, 0.4).tolist(),
            "y": draw.normal(points % 3, 0.4).tolist(),
            "class": points.tolist(),
            "client": draw.integers(0, clients, samples).tolist(),
        },
        "classifier_drift": {
            "clients": list(range(few)),
            "cosine": heads.tolist(),
            "norm_difference": (1 - heads).tolist(),
        },
        "cka": {"clients": [0, 1], "layers": ["layers.0", "logits"], "similarity": [0.97, 0.8]},
        "prototypes": {"shared": 0.9, "own": 0.8},
        "cost": {
            "flops_per_sample": 110_000,
            "parameters": 55210,
            "bytes_up": 8 * 10**6,
            "bytes_down": 8 * 10**6,
            "by_part": {"model": {"up": 7 * 10**6, "down": 8 * 10**6}, "gmv": {"up": 10**6, "down": 0}},
            "cpu_seconds": 20.0,
            "seconds": 12.5,
            "peak_memory_mb": 410.0,
        },
    }


def made_comparison(
    folder: Path, methods: tuple[str, ...] = ("fedavg", "fedprox", "fedetf"), seeds: int = 3, **more: Any
) -> Path:
    """Write the folder of a comparison: runs and comparison.json."""
    entries = []
    for method in methods:
        room = folder / "runs" / method
        paths = [made_run(room / f"seed-{seed}", method=method, seed=seed, **more) for seed in range(seeds)]
        finals = [json.loads((path / "summary.json").read_text())["scores"]["generic"]["final"] for path in paths]
        mean = float(np.mean(finals))
        entry: dict[str, Any] = {
            "name": method,
            "label": method,
            "runs": [path.relative_to(folder).as_posix() for path in paths],
            "scores": {"generic.final": {"values": finals, "mean": mean, "low": mean - 0.03, "high": mean + 0.03}},
        }
        if method != methods[0]:
            entry["difference"] = {
                "generic.final": {
                    "mean": 0.02,
                    "low": 0.01,
                    "high": 0.03,
                    "p": 0.012,
                    "p_holm": 0.024,
                    "test": "paired t test",
                }
            }
        entries.append(entry)
    dump(
        folder / "comparison.json",
        {
            "command": f"fedframe compare {' '.join(methods)} --seeds {seeds}",
            "baseline": methods[0],
            "seeds": list(range(seeds)),
            "methods": entries,
            "definitions": {},
        },
    )
    return folder


def made_cases(folder: Path, methods: tuple[str, ...], alphas: tuple[str, ...] = ("0.1", "0.5")) -> Path:
    """Write the folder of a comparison with a case per alpha, two seeds each."""
    cases = {}
    for alpha in alphas:
        case = f"alpha={alpha}"
        made_comparison(folder / case, methods, 2, partition=f"dirichlet:{alpha}")
        found = json.loads((folder / case / "comparison.json").read_text())
        for method in found["methods"]:
            method["runs"] = [f"{case}/{run}" for run in method["runs"]]
        cases[case] = found
    dump(folder / "comparison.json", {"command": "fedframe compare", "cases": cases})
    return folder


def dump(path: Path, value: object) -> None:
    """Write JSON."""
    path.write_text(json.dumps(value))
