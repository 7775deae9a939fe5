from __future__ import annotations

import numpy as np
import pytest
import torch

from fedframe.methods.closed_form.long_tail import bias_at_mean, class_weights, equal_priors, normalised_columns
from fedframe.methods.closed_form.means_only import sums_from_means
from fedframe.methods.closed_form.ridge import fit_ridge, standardise
from fedframe.methods.closed_form.sums import Sums
from tests.methods.closed_form.plain import draw
from tests.methods.closed_form.test_sums import of, scores


def test_balanced_samples_weigh_as_much_together_and_each_class_alike() -> None:
    counts = torch.tensor([100, 10, 0, 40])
    weights = class_weights(counts, 1.0)
    totals = weights * counts
    assert float(totals.sum()) == pytest.approx(150)
    assert totals[counts > 0].tolist() == pytest.approx([50.0] * 3)
    assert class_weights(counts, 0.0).tolist() == [1.0] * 4


def test_balanced_sums_are_those_of_repeated_samples() -> None:
    features, labels = draw(0, 30, 4, 2)
    order = labels.argsort()
    features, labels = features[order][:24], torch.tensor([0] * 18 + [1] * 6)
    weights = class_weights(torch.tensor([18, 6]), 1.0)
    repeated = torch.cat([features, features[18:], features[18:]])
    wanted = scores(of(repeated, torch.cat([labels, labels[18:], labels[18:]]), 2), features)
    torch.testing.assert_close(scores(of(features, labels, 2, weights), features), wanted, rtol=0, atol=1e-6)


def test_equal_priors_are_the_gaussian_classifier_of_a_loop_over_samples() -> None:
    features, labels = draw(1, 120, 5, 3)
    problem = standardise(of(features.double(), labels, 4))
    columns, bias = equal_priors(problem, 0.05)
    x = ((features.double() - features.double().mean(0)) / features.double().std(0, correction=0)).numpy()
    means = np.stack([x[labels.numpy() == c].mean(0) for c in range(3)])
    scatter = np.zeros((5, 5))
    for row, label in zip(x, labels.tolist(), strict=True):
        scatter += np.outer(row - means[label], row - means[label]) / 120
    wanted = np.linalg.solve(scatter + 0.05 * np.eye(5), means.T)
    np.testing.assert_allclose(columns[:, :3].numpy(), wanted, rtol=1e-8)
    np.testing.assert_allclose(bias[:3].numpy(), -0.5 * (means.T * wanted).sum(0), rtol=1e-8)
    assert columns[:, 3].abs().max() == 0
    assert bias[3] < bias[:3].min()


def test_normalised_columns_are_equally_long_and_agree_at_the_mean_of_class_means() -> None:
    features, labels = draw(2, 100, 6, 3)
    problem = standardise(of(features, labels, 4))
    columns, bias = normalised_columns(problem, fit_ridge(problem, 0.01).coefficients)
    lengths = columns[:, :3].norm(dim=0)
    torch.testing.assert_close(lengths, lengths.mean().expand(3))
    middle = (problem.cross[:, :3] / problem.counts[:3]).mean(1)
    torch.testing.assert_close(middle @ columns[:, :3] + bias[:3], torch.full((3,), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(bias, bias_at_mean(problem, columns))
    assert columns[:, 3].abs().max() == 0


def test_rare_classes_gain_from_each_of_the_three_ways() -> None:
    features, labels = draw(3, 4000, 10, 4)
    rare = torch.cat([(labels == c).nonzero().flatten()[: 800 if c < 3 else 15] for c in range(4)])
    rest = torch.ones(4000, dtype=torch.bool)
    rest[rare] = False
    test = rest & (labels == 3)
    sums = of(features[rare], labels[rare], 4)
    problem = standardise(sums)
    fit = fit_ridge(problem)
    balanced = of(features[rare], labels[rare], 4, class_weights(sums.counts, 1.0))
    plain = scores(sums, features[test], fit.ridge).argmax(1)
    ways = {"balanced": scores(balanced, features[test], fit.ridge)}
    for name, (columns, bias) in {
        "normalised": normalised_columns(problem, fit.coefficients),
        "equal priors": equal_priors(problem, fit.ridge),
    }.items():
        weight, start = problem.head(columns, bias)
        ways[name] = features[test].double() @ weight.T + start
    before = float((plain == 3).double().mean())
    for name, found in ways.items():
        assert float((found.argmax(1) == 3).double().mean()) > before, name


# -- class means only --------------------------------------------------------------------------------------------------
def class_means(parts: list[tuple[torch.Tensor, torch.Tensor]], classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    counts = torch.stack([torch.bincount(y, minlength=classes) for _, y in parts]).double()
    means = torch.zeros(len(parts), classes, parts[0][0].shape[1], dtype=torch.float64)
    for k, (z, y) in enumerate(parts):
        for c in y.unique().tolist():  # type: ignore[no-untyped-call]
            means[k, c] = z[y == c].double().mean(0)
    return counts, means


def test_means_of_single_samples_give_the_exact_sums_but_for_the_degrees_of_freedom() -> None:
    features, labels = draw(4, 60, 4, 2)
    parts = [(features[i : i + 1], labels[i : i + 1]) for i in range(60)]
    found = sums_from_means(*class_means(parts, 2), shrinkage=0.0)
    torch.testing.assert_close(found.matrix(), of(features.double(), labels, 2).matrix())
    torch.testing.assert_close(found.cross, of(features.double(), labels, 2).cross)


def test_means_alone_come_close_to_the_whole_sums_when_clients_are_alike() -> None:
    features, labels = draw(5, 6000, 4, 3)
    parts = list(zip(features.split(20), labels.split(20), strict=True))  # type: ignore[no-untyped-call]
    found, wanted = sums_from_means(*class_means(parts, 3), shrinkage=0.0), of(features, labels, 3)
    torch.testing.assert_close(found.matrix()[-1], wanted.matrix()[-1], rtol=1e-4, atol=1e-2)
    assert float((found.matrix() - wanted.matrix()).norm() / wanted.matrix().norm()) < 0.05
    agree = scores(found, features).argmax(1) == scores(wanted, features).argmax(1)
    assert float(agree.double().mean()) > 0.97


def test_means_of_one_client_and_a_class_that_nobody_has_do_no_harm() -> None:
    features, labels = draw(6, 30, 4, 2)
    found = sums_from_means(*class_means([(features, labels)], 3))
    assert isinstance(found, Sums)
    assert bool(scores(found, features).isfinite().all())
