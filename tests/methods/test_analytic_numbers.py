"""`analytic` where numbers are predicted: ridge regression of the pooled data, here, securely and over a network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error, r2_score

import fedframe
from fedframe.core.server import Server
from fedframe.errors import SettingError
from fedframe.methods.closed_form.head import closed_form
from fedframe.methods.closed_form.numbers import fit_personal_numbers, number_problem, stream_numbers
from fedframe.methods.closed_form.ridge import RIDGES, ByEigenvalues, fit_ridge
from fedframe.methods.parts.analytic_numbers import AnalyticNumbers
from fedframe.methods.recipes import make_method
from fedframe.runs.predictor import Predictor
from fedframe.util.files import read_json
from tests.data.conftest import sentence
from tests.helpers import Recorder, make_job
from tests.methods.test_analytic import concluded
from tests.network.in_process import clock as clock
from tests.network.in_process import remote_engine

X, Y = load_diabetes(return_X_y=True)
X = X.astype(np.float32)
SETTINGS: dict[str, Any] = {
    "method": "analytic", "model": "raw", "rounds": 0, "min_client_size": 1, "task": "regression",
}  # fmt: skip


def diabetes(rows: Any = slice(0, 360)) -> dict[str, Any]:
    """scikit-learn's patients, at four sites of unequal size; the last 82 are the test set."""
    site = np.minimum(np.arange(442) // 60, 3)
    return {"x_train": X[rows], "y_train": Y[rows], "x_test": X[360:], "y_test": Y[360:], "user_train": site[rows]}


def solution(server: Server) -> tuple[torch.Tensor, torch.Tensor]:
    head = closed_form(server.net())
    return head.weight.double(), head.bias.double()


# -- the mathematics ---------------------------------------------------------------------------------------------------
def drawn(n: int = 40, dim: int = 6, outputs: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(3)
    x = draw.normal(2, 3, (n, dim)) * np.arange(1, dim + 1)
    y = x @ draw.normal(0, 1, (dim, outputs)) + draw.normal(0, 2, (n, outputs)) + 50
    return torch.from_numpy(x), torch.from_numpy(y)


def test_sums_of_any_split_give_scikit_learns_ridge() -> None:
    x, y = drawn()
    parts = [stream_numbers([(x[i::3], y[i::3])], 6, 2) for i in range(3)]
    total, squares = parts[0]
    for sums, more in parts[1:]:
        total.add_(sums)
        squares += more
    problem = number_problem(total, squares)
    fit = fit_ridge(problem, 0.03)
    z = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
    reference = Ridge(alpha=0.03 * len(x)).fit(z, y.numpy())
    np.testing.assert_allclose(fit.coefficients.T.numpy(), reference.coef_, rtol=1e-9)
    np.testing.assert_allclose((problem.counts / problem.total).numpy(), reference.intercept_, rtol=1e-12)
    assert problem.spread == pytest.approx(float((y - y.mean(0)).square().sum()), rel=1e-9)


@pytest.mark.parametrize("ridge", [1e-3, 0.1])
def test_cross_validation_is_that_of_the_pooled_rows(ridge: float) -> None:
    x, y = drawn()
    found = ByEigenvalues(number_problem(*stream_numbers([(x, y)], 6, 2))).gcv(ridge)
    z = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
    hat = z @ np.linalg.solve(z.T @ z + ridge * len(z) * np.eye(6), z.T) + 1 / len(z)
    residual = np.square(y.numpy() - hat @ y.numpy()).sum()
    assert found == pytest.approx(residual / len(z) / (1 - np.trace(hat) / len(z)) ** 2, rel=1e-8)


def test_the_scale_of_the_numbers_changes_nothing() -> None:
    x, y = drawn()
    ridges = [
        fit_ridge(number_problem(*stream_numbers([(x, each)], 6, 2))).ridge for each in (y, (y - y.mean()) / y.std())
    ]
    assert ridges[0] == ridges[1] in RIDGES


def test_an_own_regression_is_chosen_by_left_out_samples() -> None:
    x, y = drawn(12, 4, 1)
    x = (x - x.mean(0)) / x.std(0, correction=0)
    weight, bias = torch.zeros(1, 4), torch.full((1,), 40.0)
    own = fit_personal_numbers(x.float(), y, weight, bias)
    assert own.error < own.shared_error
    rows, shared = np.hstack([x.float().numpy(), np.ones((12, 1))]).astype(float), np.r_[np.zeros(4), 40.0][:, None]
    penalty = own.mu * np.square(rows).sum(1).mean() * np.eye(5)
    errors = []
    for left in range(12):
        rest = np.arange(12) != left
        a, b = rows[rest], y.numpy()[rest]
        w = shared + np.linalg.solve(a.T @ a + penalty, a.T @ (b - a @ shared))
        errors.append(float((y.numpy()[left] - rows[left] @ w)[0]))
    assert own.error == pytest.approx(np.square(errors).mean(), rel=1e-6)
    nobody = fit_personal_numbers(x[:0].float(), y[:0], weight, bias)
    assert nobody.bias.tolist() == [40.0]


# -- runs --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("knows", ["fixed", "data"])
def test_the_model_is_the_same_on_any_partition(knows: str, tmp_path: Path) -> None:
    found = []
    for number, site in enumerate((np.arange(360) // 120, np.zeros(360, int), np.arange(360) % 9)):
        settings = {**SETTINGS, "local_test": 0.0, "set": {"analytic": {"map": knows}}}
        job = make_job(tmp_path / str(number), {**diabetes(), "user_train": site}, **settings)
        server = concluded(job)
        test = job.federation.source.test
        assert test is not None
        with torch.no_grad():
            inputs = job.federation.source.batch(test, torch.arange(len(test)))
            found.append(server.job.method.logits(server.net(), inputs))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedframe.Result:
    folder = tmp_path_factory.mktemp("numbers")
    return fedframe.run(
        "analytic", data=diabetes(), task="regression", partition="user", local_test=0.0, workers=1, progress=False,
        set={"analytic": {"width": 0}}, out=folder / "run",
    )  # fmt: skip


def test_scores_beside_scikit_learns_ridge_on_the_pooled_data(run: fedframe.Result) -> None:
    model = Predictor.load(run.folder)
    own = model.probabilities(X[360:]).numpy()[:, 0]
    x = X[:360].astype(float)
    z = (x - x.mean(0)) / x.std(0)
    errors = {}
    for ridge in RIDGES:
        fitted = Ridge(alpha=ridge * len(z)).fit(z, Y[:360])
        errors[ridge] = fitted.predict((X[360:] - x.mean(0)) / x.std(0))
    chosen = min(errors, key=lambda ridge: float(np.abs(errors[ridge] - own).max()))
    np.testing.assert_allclose(own, errors[chosen], rtol=1e-3)  # one of the ridges, to rounding
    measures = run.summary["measures"]["generic"]
    assert measures["mae"]["value"] == pytest.approx(mean_absolute_error(Y[360:], errors[chosen]), rel=1e-3)
    assert measures["r2"]["value"] == pytest.approx(r2_score(Y[360:], errors[chosen]), rel=1e-3)
    assert measures["r2"]["value"] > max(r2_score(Y[360:], each) for each in errors.values()) - 0.03


def test_a_client_is_forgotten_and_joins_again(run: fedframe.Result, tmp_path: Path) -> None:
    """The numbers' own mean and deviation know nothing of it any more, either."""
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    display = Recorder()
    fedframe.forget(folder, 1, run_data=diabetes(), progress=display)
    rest = np.flatnonzero(diabetes()["user_train"] != 1)
    alone = fedframe.run(
        "analytic", data=diabetes(rest), task="regression", partition="user", local_test=0.0, workers=1,
        progress=False, set={"analytic": {"width": 0}}, out=tmp_path / "alone",
    )  # fmt: skip
    after, wanted = Predictor.load(folder), Predictor.load(alone.folder)
    np.testing.assert_allclose(after.probabilities(X[360:]), wanted.probabilities(X[360:]), rtol=1e-4)
    assert after.target is not None
    assert after.target.mean is not None
    assert float(after.target.mean) == pytest.approx(Y[rest].mean(), rel=1e-5)
    said = next(text for text in display.notes if text.startswith("The shared model: generic "))
    assert "%" not in said  # an error in the numbers' unit
    back = {"x": X[60:120], "y": Y[60:120]}
    fedframe.join(folder, back, name="again", test_share=0.0, run_data=diabetes(), progress=False)
    np.testing.assert_allclose(
        Predictor.load(folder).probabilities(X[360:]), Predictor.load(run.folder).probabilities(X[360:]), rtol=2e-3
    )


@pytest.mark.parametrize("secure", [False, True])
def test_over_a_network_and_in_secure_sums(secure: bool, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    settings = {**SETTINGS, "local_test": 0.0, "set": {"analytic": {"width": 0}}}
    here = solution(concluded(make_job(tmp_path / "here", diabetes(), **settings)))
    job = make_job(tmp_path / "there", diabetes(), **settings, secure=secure, engine="flower")
    engine = remote_engine(job, tmp_path, nodes=4)
    server = Server(job, engine, lambda text: None)
    server.conclude(lambda done, total: None)
    engine.close()
    for mine, theirs in zip(here, solution(server), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"set": {"analytic": {"tail": "normalised"}}}, "analytic.tail = 'normalised' is about classes"),
        ({"set": {"analytic": {"balance": 0.5}}}, "analytic.balance = 0.5 is about classes"),
        ({"set": {"analytic": {"send": "means"}}}, "analytic.send = 'means' is about classes"),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "weighting": "uniform", "set": {"analytic": {"map": "fixed"}}},
         "numbers have no such bound"),
    ],
)  # fmt: skip
def test_what_is_about_classes_is_refused(settings: dict[str, Any], part: str, tmp_path: Path) -> None:
    assert part in sentence(lambda: make_job(tmp_path, diabetes(), **{**SETTINGS, **settings}), SettingError)


def test_after_rounds_it_fits_on_the_nets_features(tmp_path: Path) -> None:
    result = fedframe.run(
        "fedavg+analytic", data=diabetes(), task="regression", partition="user", workers=1, progress=False,
        model="mlp:16", rounds=2, lr=0.03, out=tmp_path / "run",
    )  # fmt: skip
    assert read_json(result.folder / "summary.json")["measures"]["generic"]["r2"]["value"] > 0.2
    made = make_method("fedavg+analytic", {}, "regression").slot("server_stage")
    assert isinstance(made, AnalyticNumbers)
