"""What is said and kept about a client that came after the training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.settings import short_method
from fedframe.util.text import duration, percent, plural

DEFINITIONS = {
    "client": "accuracy of the shared model on the client's own test samples",
    "personal": "accuracy of the client's own model on the same samples",
    "none": "null means not measured: there are no test samples, or the method has no shared model",
}


def summarise(job: Job, name: str, data: str, replies: Mapping[str, Message]) -> dict[str, Any]:
    """Scores with their definitions, and what they were made with; the same for the same run, data and seed."""
    federation, stage = job.federation, job.method.slot("client_stage")
    personal, shared = replies["personalise"].tensors, replies.get("own")
    tests, trains = personal["samples"].tolist(), federation.class_counts(0).tolist()
    hits = {
        "client": shared.tensors["hits"].tolist() if shared is not None else None,
        "personal": personal["hits"].tolist(),
    }
    held = [i for i in range(len(tests)) if trains[i] or tests[i]]
    return {
        "name": name,
        "data": data,
        "scores": {score: ratio(sum(right), sum(tests)) if right else None for score, right in hits.items()},
        "definitions": DEFINITIONS,
        "samples": {"training": sum(trains), "test": sum(tests)},
        "per_class": {
            federation.source.classes[i]: {
                "training": trains[i],
                "test": tests[i],
                **{score: ratio(right[i], tests[i]) if right else None for score, right in hits.items()},
            }
            for i in held
        },
        "method": job.settings.method,
        "stage": {stage.name: dataclasses.asdict(stage)},
        "seed": job.settings.seed,
    }


def ratio(hits: int, total: int) -> float | None:
    """A share, or None where there is nothing to count."""
    return hits / total if total else None


def headline(job: Job, name: str) -> str:
    """What is done, in one line."""
    federation, stage = job.federation, job.method.slot("client_stage")
    classes = f"{int((federation.class_counts(0) > 0).sum())} of the run's {len(federation.source.classes)} classes"
    chosen = ", ".join(f"{key}={value}" for key, value in dataclasses.asdict(stage).items() if value is not None)
    return (
        f"{short_method(job.settings.method)}, a personal model for {name}: "
        f"{len(federation.train.values):,} training and {len(federation.local_test.values):,} test samples, {classes}; "
        f"client stage {stage.name} ({chosen})"
    )


def closing_lines(summary: Mapping[str, Any], folder: Path, path: Path, seconds: float) -> list[str]:
    """The result in words that a newcomer understands."""
    name, scores = summary["name"], summary["scores"]
    tests = plural(summary["samples"]["test"], "test sample")
    lines = [""]
    if summary["samples"]["test"]:
        shared = f"accuracy of the shared model on {name}'s own {tests}"
        if scores["client"] is None:
            shared = f"not measured: {short_method(summary['method'])} has no shared model"
        lines += [
            f"  {'client':9}{percent(scores['client']):>7}  {shared}",
            f"  {'personal':9}{percent(scores['personal']):>7}  accuracy of {name}'s own model on the same samples, "
            "which were held out of its training",
        ]
        if scores["client"] is not None and scores["personal"] < scores["client"]:
            lines.append(f"  Here the shared model does better than {name}'s own: predict without --client.")
    else:
        lines.append("  There are no test samples, so there is no score: the data are too few, or test_share is 0.")
    return [
        *lines,
        "",
        f"  {duration(seconds)}. The model is {path}: try 'fedframe predict {folder} INPUT --client {name}'.",
    ]
