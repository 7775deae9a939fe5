"""Ditto, pFedMe and Fed-RoD against plain loops in float64, and the limits in which they are other methods."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedframe.core.evaluation import score_round
from fedframe.core.job import Job
from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.ditto import Ditto
from fedframe.methods.parts.fedrod import FedRoD
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.parts.losses import BalancedCrossEntropy
from fedframe.methods.parts.pfedme import THETA, Mix, PFedMe
from fedframe.methods.parts.scaffold import Scaffold
from fedframe.methods.recipes import make_method
from fedframe.settings import Settings
from tests.helpers import nothing
from tests.methods.plain import average, batches, plain_model, same
from tests.methods.toy import job_of, trained


def kept(job: Job, part: str, client: int) -> dict[str, torch.Tensor]:
    """A client's own model, by the plain model's names."""
    found = {n: t for n, t in job.store.load(client, before=99).items() if n.startswith(f"{part}/")}
    return {name.replace(f"{part}/backbone.", "0.").replace(f"{part}/head.", "1."): t for name, t in found.items()}


def same_own(job: Job, part: str, client: int, reference: nn.Sequential) -> None:
    """Whether a client's own model is the plain one."""
    found = kept(job, part, client)
    assert found.keys() == reference.state_dict().keys()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(found[name].double(), value, atol=3e-5, rtol=1e-4)


# -- Ditto -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("parts", [(), (Scaffold(),), (SimplexETF(),)])
def test_shared_side_of_ditto_is_that_of_the_method_it_joins_bit_for_bit(
    tmp_path: Path, parts: tuple[Part, ...]
) -> None:
    ours = trained(job_of(tmp_path / "a", *parts, Ditto(lam=0.3)), 3)
    theirs = trained(job_of(tmp_path / "b", *parts), 3)
    assert torch.equal(ours.model, theirs.model)
    assert score_round(ours).generic == score_round(theirs).generic


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.0, 0.8])
def test_ditto_equals_a_plain_loop(tmp_path: Path, lam: float) -> None:
    """With lambda 0 the server's model does not come into it: the own model is trained alone."""
    job = job_of(tmp_path, Ditto(lam=lam, epochs=3), epochs=2, momentum=0.5)
    server = trained(job, 3)
    shared = plain_model(job)
    own = [copy.deepcopy(shared) for _ in range(3)]
    for round in (1, 2, 3):
        locals_, weights = [], []
        for client in range(3):
            model, anchor = copy.deepcopy(shared), list(copy.deepcopy(shared).parameters())
            found = batches(job, round, client, epochs=5)  # two epochs of the shared model, then three of the own
            first = len(found) * 2 // 5
            for net, some, pull in ((model, found[:first], 0.0), (own[client], found[first:], lam)):
                optimizer = torch.optim.SGD(net.parameters(), lr=job.settings.lr, momentum=0.5)
                for x, y in some:
                    far = sum(((a - b.detach()) ** 2).sum() for a, b in zip(net.parameters(), anchor, strict=True))
                    optimizer.zero_grad()
                    (F.cross_entropy(net(x), y) + pull / 2 * far).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            locals_.append(model)
            weights.append(float(len(job.federation.train[client])))
        average(locals_, weights, shared)
    same(job, server, shared)
    for client in range(3):
        same_own(job, "ditto", client, own[client])


@pytest.mark.slow
def test_ditto_is_scored_with_its_own_models_between_rounds_and_at_the_end(tmp_path: Path) -> None:
    job = job_of(tmp_path, Ditto(), epochs=2)
    server = trained(job, 4)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    runtime.perform(server.build_request("own", 5), 1)
    for name, value in kept(job, "ditto", 1).items():
        full = ("backbone." if name.startswith("0.") else "head.") + name[2:]
        assert torch.equal(runtime.model.state_dict()[full], value)
    assert score_round(server).personal is not None
    assert server.conclude(nothing).personal_count == 3


def test_client_that_was_in_no_round_gets_an_own_model_near_the_shared_one(tmp_path: Path) -> None:
    job = job_of(tmp_path, Ditto(), participation=0.34)
    server = Server(job, InlineEngine(job), nothing)
    server.run_round(1, nothing)
    server.round = 1
    absent = next(client for client in range(3) if client not in server.select_clients(1))
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    runtime.perform(server.build_request("own", 2), absent)
    assert torch.equal(runtime.flat, server.model)  # between rounds it has the shared one
    runtime.load_personal(runtime.begin(server.build_request("personalise", 2), absent))
    assert not torch.equal(runtime.flat, server.model)


def test_client_that_was_in_no_round_is_pulled_towards_the_shared_model(tmp_path: Path) -> None:
    far = []
    for lam in (0.0, 9.0):
        job = job_of(tmp_path / str(lam), Ditto(lam=lam), participation=0.34, epochs=3)
        server = trained(job, 1)
        absent = next(client for client in range(3) if client not in server.select_clients(1))
        runtime = server.engine.runtime  # type: ignore[attr-defined]
        runtime.load_personal(runtime.begin(server.build_request("personalise", 2), absent))
        far.append(float((runtime.flat - server.model).norm()))
    assert far[1] < 0.5 * far[0]


def test_ditto_has_a_personal_head_of_its_own_and_leaves_the_round_with_its(tmp_path: Path) -> None:
    """Fed-RoD's phi_k twice: that of the shared side as without Ditto, bit for bit, and one in the own model."""
    both, alone = job_of(tmp_path / "a", FedRoD(), Ditto()), job_of(tmp_path / "b", FedRoD())
    trained(both, 2)
    trained(alone, 2)
    for client in range(3):
        memory, expected = both.store.load(client, before=3), alone.store.load(client, before=3)
        own = memory["ditto/extras.fedrod.weight"]
        assert torch.equal(memory["model/extras.fedrod.weight"], expected["model/extras.fedrod.weight"])
        assert float(own.abs().max()) > 0
        assert not torch.equal(own, memory["model/extras.fedrod.weight"])


# -- pFedMe ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_pfedme_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, PFedMe(lam=4.0, steps=3, eta=0.1), Mix(beta=0.7), epochs=2, lr=0.1)
    server = trained(job, 3)
    shared = plain_model(job)
    own: list[nn.Sequential] = [copy.deepcopy(shared) for _ in range(3)]
    for round in (1, 2, 3):
        locals_, weights = [], []
        for client in range(3):
            w = copy.deepcopy(shared)
            for x, y in batches(job, round, client):
                theta = copy.deepcopy(w)
                for _ in range(3):
                    far = sum(
                        ((a - b.detach()) ** 2).sum() for a, b in zip(theta.parameters(), w.parameters(), strict=True)
                    )
                    theta.zero_grad()
                    (F.cross_entropy(theta(x), y) + 4.0 / 2 * far).backward()  # type: ignore[no-untyped-call]
                    with torch.no_grad():
                        for p in theta.parameters():
                            p.sub_(0.1 * p.grad)  # type: ignore[operator]
                with torch.no_grad():
                    for a, b in zip(w.parameters(), theta.parameters(), strict=True):
                        a.sub_(0.1 * 4.0 * (a - b))
                own[client] = theta
            locals_.append(w)
            weights.append(float(len(job.federation.train[client])))
        before, mean = shared.state_dict(), copy.deepcopy(shared)
        average(locals_, weights, mean)
        shared.load_state_dict({name: 0.3 * before[name] + 0.7 * value for name, value in mean.state_dict().items()})
    same(job, server, shared)
    for client in range(3):
        same_own(job, "pfedme", client, own[client])


def test_pfedme_with_one_inner_step_is_fedavg_with_another_rate(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", PFedMe(lam=5.0, steps=1, eta=0.1), lr=0.2), 3)
    theirs = trained(job_of(tmp_path / "b", lr=0.2 * 5.0 * 0.1), 3)
    torch.testing.assert_close(ours.model, theirs.model, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_pfedme_with_one_inner_step_that_is_taken_whole_is_fedavg_bit_for_bit(tmp_path: Path, momentum: float) -> None:
    settings = {"epochs": 2, "lr": 0.1, "momentum": momentum, "participation": 0.67}
    ours = trained(job_of(tmp_path / "a", PFedMe(lam=8.0, steps=1, eta=1 / 8), Mix(), **settings), 3)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", **settings), 3).model)


def test_loss_of_pfedme_is_that_of_the_model_before_its_step(tmp_path: Path) -> None:
    losses = []
    for name, parts in (("a", (PFedMe(),)), ("b", ())):
        job = job_of(tmp_path / name, *parts, steps=1)
        losses.append(Server(job, InlineEngine(job), nothing).run_round(1, nothing).loss)
    assert losses[0] == losses[1]


def test_client_that_was_in_no_round_of_pfedme_gets_theta_of_its_own_steps(tmp_path: Path) -> None:
    job = job_of(tmp_path, PFedMe(lam=4.0, eta=0.1), participation=0.34)
    server = trained(job, 1)
    absent = next(client for client in range(3) if client not in server.select_clients(1))
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    runtime.perform(server.build_request("own", 2), absent)
    assert torch.equal(runtime.flat, server.model)  # between rounds it has the shared one
    context = runtime.begin(server.build_request("personalise", 2), absent)
    runtime.load_personal(context)
    assert not torch.equal(runtime.flat, server.model)
    for name, value in context.scratch[THETA].items():
        assert torch.equal(dict(runtime.model.named_parameters())[name], value)


def test_mix_of_one_is_the_mean_bit_for_bit(tmp_path: Path) -> None:
    assert torch.equal(trained(job_of(tmp_path / "a", Mix())).model, trained(job_of(tmp_path / "b")).model)


def test_mix_goes_beta_times_as_far(tmp_path: Path) -> None:
    start = trained(job_of(tmp_path), 0).model
    once, twice = (trained(job_of(tmp_path / str(b), Mix(beta=b)), 1).model - start for b in (1.0, 2.0))
    torch.testing.assert_close(twice, 2 * once, atol=1e-6, rtol=1e-4)


# -- what they refuse --------------------------------------------------------------------------------------------------
def test_two_own_models_are_refused_by_name() -> None:
    with pytest.raises(SettingError, match=r"'ditto' and 'pfedme'.* both claim the load_personal slot"):
        make_method("ditto+pfedme", {})


def test_scaffold_and_pfedme_are_refused() -> None:
    with pytest.raises(SettingError, match=r"'scaffold' reads gradients.*leave one of them out"):
        make_method("scaffold+pfedme", {})


@pytest.mark.parametrize(
    ("part", "value", "sentence"),
    [
        ("ditto", {"lam": -1}, r"ditto.lam = -1.*the default is 1.0"),
        ("pfedme", {"lam": 0}, r"pfedme.lam = 0.*the default is 15"),
        ("pfedme", {"steps": 0}, r"pfedme.steps = 0.*the default is 5"),
    ],
)
def test_bad_setting_is_one_sentence(part: str, value: dict[str, float], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        make_method(part, {part: value})


@pytest.mark.parametrize("part", [Ditto(lam=20.0), PFedMe(lam=20.0)])
def test_pull_that_would_diverge_is_refused_with_one_that_works(part: Part) -> None:
    with pytest.raises(
        SettingError, match=rf"{part.name}.lam = 20 is too strong a pull for lr = 0.1.*lam = 10 or lr = 0.05"
    ):
        part.check_settings(Settings())
    part.check_settings(Settings(lr=0.05))
    part.check_settings(Settings(optimizer="adam"))


# -- Fed-RoD -----------------------------------------------------------------------------------------------------------
def test_generic_side_of_fedrod_without_the_balanced_loss_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    ours, theirs = trained(job_of(tmp_path / "a", FedRoD()), 3), trained(job_of(tmp_path / "b"), 3)
    for name in theirs.job.template.state_dict():
        assert torch.equal(ours.tensor(name), theirs.tensor(name)), name
    assert score_round(ours).generic == score_round(theirs).generic


@pytest.mark.slow
def test_fedrod_brings_the_balanced_loss_and_without_its_counts_its_generic_side_is_fedavg(tmp_path: Path) -> None:
    assert make_method("fedrod", {}).slot("loss") == BalancedCrossEntropy()
    ours = trained(job_of(tmp_path / "a", FedRoD(), BalancedCrossEntropy(gamma=0.0)), 2)
    balanced = trained(job_of(tmp_path / "b", FedRoD(), BalancedCrossEntropy()), 2)
    theirs = trained(job_of(tmp_path / "c"), 2)
    assert torch.equal(ours.tensor("head.weight"), theirs.tensor("head.weight"))
    assert not torch.equal(balanced.tensor("head.weight"), theirs.tensor("head.weight"))


def test_personal_head_of_fedrod_equals_a_plain_loop_and_predicts_with_the_sum(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedRoD(), epochs=2)
    server = trained(job, 2)
    shared = plain_model(job)
    heads = [nn.Linear(8, 3).double() for _ in range(3)]
    for head in heads:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    for round in (1, 2):
        locals_, weights = [], []
        for client in range(3):
            model = copy.deepcopy(shared)
            optimizer = torch.optim.SGD([*model.parameters(), *heads[client].parameters()], lr=job.settings.lr)
            for x, y in batches(job, round, client):
                z = model[0](x)
                optimizer.zero_grad()
                F.cross_entropy(model[1](z), y).backward()  # type: ignore[no-untyped-call]
                own = F.cross_entropy(model[1](z).detach() + heads[client](z.detach()), y)
                own.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            locals_.append(model)
            weights.append(float(len(job.federation.train[client])))
        average(locals_, weights, shared)
    same(job, server, shared)
    inputs = job.federation.source.batch(job.federation.source.train, torch.arange(9))
    runtime, z = server.engine.runtime, shared[0](inputs.double())  # type: ignore[attr-defined]
    runtime.load(server.build_request("score", 3).tensors, {})
    generic, personal = shared[1](z), shared[1](z) + heads[1](z)
    torch.testing.assert_close(job.method.logits(runtime.model, inputs).double(), generic, atol=1e-4, rtol=1e-4)
    runtime.begin(server.build_request("own", 3), 1)
    torch.testing.assert_close(job.method.logits(runtime.model, inputs).double(), personal, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fedrod+ffc", "'fedrod' adds to the logits of the rounds' classifier"),
        ("fedrod+auxiliary_heads", "both claim the predict slot"),
    ],
)
def test_another_classifier_in_the_place_of_the_rounds_is_refused(method: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        make_method(method, {})
