"""Attacks against plain formulas: what attackers send, who they are, and that nobody else is touched."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor

from fedframe.core.message import Message
from fedframe.core.round_merge import prepared
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.attack import BRIGHT, CLAIM, Attack, attackers, largest_z, moments, stamped
from fedframe.methods.parts.coordinate_median import CoordinateMedian
from fedframe.methods.recipes import make_method
from fedframe.settings import REMOTE_DATA, Settings
from tests.helpers import nothing
from tests.methods.plain import difference, plain_model, train_locally
from tests.methods.toy import job_of, trained, uneven


def replies_of(folder: Path, *parts: Any) -> tuple[Server, dict[int, Message]]:
    """A server, and the replies of its clients in the first round."""
    job = job_of(folder, *parts, data=uneven(5, 120))
    engine = InlineEngine(job)
    server = Server(job, engine, nothing)
    return server, {r.unit: r for r in engine.run(server.build_request("train", 1), range(5))}


def bad_of(server: Server, share: float = 0.4) -> frozenset[int]:
    return attackers(server.job.settings.seed, 5, share)


@pytest.mark.parametrize(
    ("kind", "strength", "factor"),
    [("sign_flip", None, -4.0), ("sign_flip", 10.0, -10.0), ("scale", None, 10.0), ("scale", 3.0, 3.0)],
)
def test_attackers_send_a_multiple_and_nobody_else_does(
    tmp_path: Path, kind: Any, strength: float | None, factor: float
) -> None:
    _, honest = replies_of(tmp_path / "a")
    server, found = replies_of(tmp_path / "b", Attack(kind, 0.4, strength))
    for client, reply in found.items():
        expected = honest[client].tensors["update"] * (factor if client in bad_of(server) else 1.0)
        assert torch.equal(reply.tensors["update"], expected)
    assert len(bad_of(server)) == 2


def test_flipped_labels_are_what_attackers_train_on(tmp_path: Path) -> None:
    server, found = replies_of(tmp_path, Attack("label_flip", 0.4))
    job = server.job
    shared = plain_model(job)
    for client, reply in found.items():
        source = job.federation.source
        labels = source.train.y.clone()
        if client in bad_of(server):
            source.train.y.copy_(2 - labels)  # of three classes
        model = train_locally(job, shared, 1, client)
        source.train.y.copy_(labels)
        views = job.roles.layout.views(reply.tensors["update"])
        sent = torch.cat([views[name].flatten() for name, _ in job.template.named_parameters()])
        torch.testing.assert_close(sent.double(), difference(model, shared), atol=2e-5, rtol=1e-4)


def test_overclaiming_attackers_say_a_thousand_million(tmp_path: Path) -> None:
    server, found = replies_of(tmp_path, Attack("overclaim", 0.4))
    assert {client for client, reply in found.items() if reply.numbers["samples"] == CLAIM} == bad_of(server)


@pytest.mark.parametrize("kind", ["alie", "ipm"])
def test_colluding_attackers_send_what_the_formulas_say(tmp_path: Path, kind: Any) -> None:
    server, found = replies_of(tmp_path, Attack(kind, 0.4))
    sent = dict.fromkeys(found, 1.0)
    changed = prepared(server, [(reply, sent[client]) for client, reply in found.items()])
    bad = bad_of(server)
    honest = [reply.tensors["update"].double().tolist() for client, reply in found.items() if client not in bad]
    mu = [sum(column) / 3 for column in zip(*honest, strict=True)]
    sigma = [math.sqrt(sum((x - m) ** 2 for x in c) / 3) for c, m in zip(zip(*honest, strict=True), mu, strict=True)]
    z = NormalDist().inv_cdf((5 - 2 - (3 - 2)) / (5 - 2))  # s = 1 honest client must be persuaded
    agreed = [m - z * s for m, s in zip(mu, sigma, strict=True)] if kind == "alie" else [-10 * m for m in mu]
    for reply, _ in changed:
        if reply.unit in bad:
            torch.testing.assert_close(reply.tensors["update"], torch.tensor(agreed), atol=1e-6, rtol=1e-6)
        else:
            assert reply is found[reply.unit]


def test_z_is_what_the_paper_gives_for_fifty_workers() -> None:
    """Baruch et al.: n = 50, m = 24 leave s = 2 to persuade, and Phi(z) = 24 / 26."""
    assert largest_z(50, 24) == pytest.approx(NormalDist().inv_cdf(24 / 26))
    assert largest_z(4, 3) >= 0


def test_moments_are_those_of_torch() -> None:
    updates = [torch.randn(7, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    mean, deviation = moments(updates)
    stacked = torch.stack(updates).double()
    torch.testing.assert_close(mean, stacked.mean(0))
    torch.testing.assert_close(deviation, stacked.std(0, correction=0))


@pytest.mark.slow
def test_nobody_attacks_with_a_share_of_zero(tmp_path: Path) -> None:
    for kind in ("label_flip", "sign_flip", "alie", "backdoor"):
        server = trained(job_of(tmp_path / kind, Attack(kind, 0.0)), 2)
        assert torch.equal(server.model, trained(job_of(tmp_path / f"{kind}-none"), 2).model)


def test_larger_share_has_the_same_attackers_and_more() -> None:
    assert attackers(3, 20, 0.1) < attackers(3, 20, 0.2)
    assert len(attackers(3, 20, 0.2)) == 4
    assert attackers(3, 20, 0.2) != attackers(4, 20, 0.2)


# -- the backdoor ------------------------------------------------------------------------------------------------------
def test_stamp_is_a_bright_corner_and_leaves_the_rest() -> None:
    pictures, vectors = torch.zeros(2, 1, 8, 8), torch.zeros(2, 16)
    assert int((stamped(pictures) == BRIGHT).sum()) == 2 * 4
    assert bool((stamped(pictures)[:, :, -2:, -2:] == BRIGHT).all())
    assert stamped(vectors).nonzero()[:, 1].tolist() == [14, 15] * 2
    assert not bool(pictures.any())


def test_backdoor_batches_are_stamped_and_labelled_and_its_success_is_counted(tmp_path: Path) -> None:
    clean = trained(job_of(tmp_path / "a", Attack("backdoor", 0.0, target=1), data=uneven(5, 120)), 5)
    server = trained(job_of(tmp_path / "b", Attack("backdoor", 0.4, 3.0, target=1), data=uneven(5, 120)), 5)
    assert 0 <= clean.figures["attack/success"] < server.figures["attack/success"] <= 1
    source = server.job.federation.source
    assert source.test is not None
    others = source.test.y != 1
    net = server.net()
    inputs: Tensor = source.batch(source.test, torch.nonzero(others)[:, 0])
    with torch.no_grad():
        predicted = server.job.method.logits(net, stamped(inputs)).argmax(1)
    assert server.figures["attack/success"] == pytest.approx(float((predicted == 1).double().mean()))


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["alie", "ipm"])
def test_collusion_over_a_network_is_refused(kind: Any) -> None:
    with pytest.raises(SettingError, match=rf"attack.kind = '{kind}' needs the honest clients' updates"):
        Attack(kind).check_settings(Settings(engine="flower"))
    Attack("sign_flip").check_settings(Settings(engine="flower"))


def test_attack_on_a_real_federation_is_refused() -> None:
    with pytest.raises(SettingError, match="'attack' is for simulations"):
        Attack().check_settings(Settings(data=REMOTE_DATA))


def test_share_of_nobody_and_a_class_that_is_none_are_refused(tmp_path: Path) -> None:
    model = job_of(tmp_path).template
    with pytest.raises(SettingError, match=r"attack.share = 0.1 of 3 clients is less than half a client; use 0.33"):
        Attack(share=0.1).check_model(model, 3)
    with pytest.raises(SettingError, match=r"attack.target = 3: classes are 0 to 2"):
        Attack("backdoor", 0.4, target=3).check_model(model, 3)


def test_backdoor_needs_a_shared_model() -> None:
    with pytest.raises(SettingError, match="'backdoor' is into a shared model"):
        make_method("fedper+attack", {"attack": {"kind": "backdoor"}})
    make_method("fedper+attack", {})


def test_defence_sees_what_colluding_attackers_have_agreed_on(tmp_path: Path) -> None:
    """With a huge agreed update the mean is lost, and the median of five is not."""
    poisoned = trained(job_of(tmp_path / "a", Attack("ipm", 0.4, 1e4), data=uneven(5, 120), update_bound=0), 1)
    guarded = trained(
        job_of(tmp_path / "b", Attack("ipm", 0.4, 1e4), CoordinateMedian(), data=uneven(5, 120), update_bound=0), 1
    )
    assert float(poisoned.model.norm()) > 100 * float(guarded.model.norm())
