"""Every recipe with numbers and with several labels: it learns them, or is refused by the name of the part."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, make_multilabel_classification
from torch import Tensor, nn

import fedframe
from fedframe.core import ClientContext, Part
from fedframe.core.part import CLASS_HOOKS, tasks_of
from fedframe.data import load_source
from fedframe.data.target import TASKS, Task
from fedframe.errors import RunError, SettingError
from fedframe.methods.parts import PARTS
from fedframe.methods.parts.linear_head import LinearHead
from fedframe.methods.parts.task_losses import BinaryCrossEntropy, SquaredDistance
from fedframe.methods.recipes import RECIPES, outline_method
from tests.data.conftest import sentence

SEES_CLASSES = {"labels", "class_counts", "class_sums", "classes", "one_hot"}


def numbers() -> dict[str, Any]:
    x, y = load_diabetes(return_X_y=True)
    return {"x": x[:160].astype(np.float32), "y": y[:160].astype(np.float64) + 0.5}


def several() -> dict[str, Any]:
    x, y = make_multilabel_classification(160, 10, n_classes=3, random_state=0)
    return {"x": x.astype(np.float32), "y": y}


def run(method: str, data: Any, folder: Path, **settings: Any) -> fedframe.Result:
    usual = {"rounds": 2, "epochs": 1, "clients": 3, "partition": "iid", "workers": 1, "model": "mlp:8", "lr": 0.05}
    return fedframe.run(method, data=data, out=folder, progress=False, **{**usual, **settings})


def batch_normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU())


def able(method: str, task: str) -> bool:
    """Whether all parts of a recipe say that they can be used for a task; the loss that nobody chose suits any."""
    made = outline_method(method, {}, task)
    return all(task in tasks_of(type(part)) for part in made.parts if part.name not in made.defaults)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "multilabel"])
@pytest.mark.parametrize("method", sorted(RECIPES))
def test_a_recipe_learns_a_task_or_is_refused_by_name(method: str, task: str, tmp_path: Path) -> None:
    data = numbers() if task == "regression" else several()
    if not able(method, task):
        said = sentence(lambda: run(method, data, tmp_path / "run"), SettingError)
        assert f"cannot be used for task = {task}" in said
        assert not (tmp_path / "run").exists()
        return
    special: dict[str, dict[str, Any]] = {"fedbn": {"model": batch_normalised}, "fedrep": {"epochs": 2}}
    needs = special.get(method, {})
    summary = run(method, data, tmp_path / "run", **needs).summary
    assert summary["task"] == task
    assert summary["metric"] == {"regression": "mae", "multilabel": "auroc"}[task]
    found = summary["scores"]["personal"]["final"]
    assert found is not None
    assert 0 < found < (200 if task == "regression" else 1.0001)


def test_most_methods_that_know_no_classes_can_learn_numbers() -> None:
    can = {method for method in RECIPES if able(method, "regression")}
    assert {"fedavg", "fedprox", "scaffold", "fednova", "fedadam", "feddyn", "moon", "ditto", "local", "fedsam"} <= can
    assert not can & {"fedetf", "fedloge", "spherefed", "fedproto", "fedrs", "ccvr", "fedrod", "fedavg_etf", "fedaws"}


def test_parts_that_read_labels_or_classes_do_not_claim_other_tasks() -> None:
    for part in PARTS.values():
        if part in (LinearHead, SquaredDistance, BinaryCrossEntropy) or tasks_of(part) == ("classification",):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        # A projection is at least as wide as there are outputs; FedBabU's and others' sizes are no labels.
        assert not read & SEES_CLASSES - ({"classes"} if part.name in ("projection", "frozen") else set()), part.name


def test_what_a_part_overrides_says_what_it_can_be_used_for() -> None:
    @dataclass(frozen=True)
    class Harmless(Part):
        name: ClassVar[str] = "harmless"

        def correct(self, context: ClientContext) -> None:
            """Change nothing."""

    @dataclass(frozen=True)
    class Looks(Part):
        name: ClassVar[str] = "looks"

        def penalty(self, context: ClientContext) -> Tensor:
            return context.logits.sum() * 0

    @dataclass(frozen=True)
    class Declares(Looks):
        name: ClassVar[str] = "declares"
        tasks: ClassVar[tuple[Task, ...] | None] = TASKS

    @dataclass(frozen=True)
    class Changes(Declares):
        name: ClassVar[str] = "changes"

        def penalty(self, context: ClientContext) -> Tensor:
            return context.logits.square().sum() * 0

    assert tasks_of(Harmless) == TASKS
    assert tasks_of(Looks) == ("classification",)
    assert tasks_of(Declares) == TASKS
    assert tasks_of(Changes) == ("classification",)  # what the base has declared is of another penalty
    assert "penalty" in CLASS_HOOKS


@dataclass(frozen=True)
class Counts(Part):
    """Asks for counts by class in a hook that does not say so."""

    name: ClassVar[str] = "counts"

    def finish(self, context: ClientContext) -> None:
        """Look at what there is not."""
        context.class_counts.sum()


def test_a_part_that_asks_for_classes_where_there_are_none_is_told_so(tmp_path: Path) -> None:
    said = sentence(lambda: run_with(Counts(), tmp_path), RunError)
    assert "context.class_counts is about classes, and the task is regression" in said


def run_with(part: Part, folder: Path) -> None:
    fedframe.run(["fedavg", part], data=numbers(), out=folder / "run", progress=False, rounds=1, clients=2, workers=1)


@pytest.mark.parametrize(("task", "data"), [("regression", numbers()), ("multilabel", several())])
def test_one_client_and_one_step_are_plain_gradient_descent(task: str, data: Any, tmp_path: Path) -> None:
    result = run(
        "fedavg", data, tmp_path / "run", clients=1, rounds=1, steps=1, batch=1000, local_test=0.0, personal=False
    )
    made = fedframe.run(
        "fedavg", data=data, out=tmp_path / "start", progress=False, clients=1, rounds=0, local_test=0.0,
        personal=False, partition="iid", workers=1, model="mlp:8",
    )  # fmt: skip
    model = made.model.model.double()
    source = load_source(data, seed=0)
    inputs, wanted = source.batch(source.train, torch.arange(len(source.train))).double(), source.train.targets.double()
    logits = model.head(model(inputs))
    if task == "regression":
        total = sum((logits[i, c] - wanted[i, c]) ** 2 for i in range(len(wanted)) for c in range(wanted.shape[1]))
    else:
        p = 1 / (1 + torch.exp(-logits))
        total = -(wanted * p.log() + (1 - wanted) * (1 - p).log()).sum()
    (total / wanted.numel()).backward()
    after = dict(result.model.model.named_parameters())
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        expected = weight.detach() - 0.05 * weight.grad
        torch.testing.assert_close(after[name].detach().double(), expected, atol=2e-6, rtol=1e-4)


def test_digits_by_what_they_have_in_common(tmp_path: Path) -> None:
    digits = load_digits()
    y = np.stack([digits.target % 2 == 0, digits.target >= 5, np.isin(digits.target, (0, 6, 8, 9))], axis=1)
    data = {"x": digits.images.astype(np.uint8), "y": y.astype(np.int64)}
    result = run("fedprox", data, tmp_path / "run", rounds=6, lr=0.3, partition="dirichlet:0.5", model="mlp:64")
    assert result.scores["generic"]["final"] > 0.9  # type: ignore[operator]
    table = result.summary["measures"]["generic"]
    assert set(table["per_label"]) == {"0", "1", "2"}
    p = result.model.probabilities(digits.images[:20].astype(np.uint8))
    assert result.model.predict(digits.images[:20].astype(np.uint8)) == [
        [str(c) for c in range(3) if row[c] >= 0.5] for row in p.tolist()
    ]
