"""What a node prints before it joins: the names and sizes of what then leaves it, for every kind of method."""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from fedframe.core.engine import Engine
from fedframe.core.message import LAST
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import DataError, RunError, SettingError
from fedframe.federation.agreement import Agreement
from fedframe.federation.create import form_from_description, new_federation
from fedframe.federation.join import Limits, Membership, make_node, read_peers
from fedframe.federation.kit import Kit
from fedframe.jobs.gather import gather
from fedframe.network.compatibility import price_of_smaller_sums
from fedframe.network.envelope import decode_envelope
from fedframe.network.masker import Masker
from fedframe.network.masks import MaskingGroup, fingerprint, mask_context
from fedframe.network.node_data import federation_without_data
from fedframe.network.node_request import PROTOCOL, NodeRequest
from fedframe.settings import check

METHODS = [
    "fedavg",
    "scaffold",
    "fednova",
    "fedloge",
    "fedavg+etf+gmv",
    "spherefed",
    "fedrane",
    "ditto",
    "fednh",
    "moon",
]
SINGLE = ("fednova", "fedrane")  # need single updates, and are refused with secure aggregation


def member(folder: Path, method: str, **settings: Any) -> Membership:
    draw = np.random.default_rng(0)
    np.savez(
        folder / "own.npz", x=draw.normal(0, 1, (40, 6)).astype(np.float32), y=np.array(["a", "b"])[np.arange(40) % 2]
    )
    form = form_from_description("a,b,c", "6", "0", "1")
    asked = gather({"method": method, "model": "mlp:16", "rounds": 2, **settings}, None)
    made = new_federation(folder / "clinic", ["north", "south"], ["127.0.0.1"], 9000, form, asked)
    kit = Kit.read(made.path / "kits" / "south-kit.zip")
    (folder / "node").mkdir()
    return Membership(kit, f"npz:{folder / 'own.npz'}", folder / "node", None, None)


@pytest.mark.parametrize(
    ("method", "secure"),
    [(method, False) for method in METHODS] + [(method, True) for method in METHODS if method not in SINGLE],
)
def test_what_is_printed_is_what_leaves(tmp_path: Path, method: str, secure: bool) -> None:
    node = member(tmp_path, method, secure=secure)
    assert any("the data fit" in line for line in node.check())
    lines = node.describe_outgoing()
    assert [path.name for path in (tmp_path / "node").iterdir()] == []  # the test replies leave nothing behind
    form = node.kit.agreement.form
    job = node.maker.make(tmp_path / "server")
    federation = federation_without_data(form, node.kit.agreement.members, [30, 30], [10, 10], None)
    server = Server(type(job)(job.settings, job.method, federation, job.template, job.folder), NoEngine(), print)
    assert ("at the end  " in "\n".join(lines[:-3])) == (method == "spherefed")  # FFC's sums, beside the last scores
    for kind, when in (("train", "each round"), ("statistics", "at the end")):
        if kind == "statistics" and method != "spherefed":
            continue
        request = server.build_request(kind, 1 if kind == "train" else 3)  # after 2 rounds
        group = None
        if secure:
            keys = {0: "22" * 64, 1: node.masker(print).public}
            group = MaskingGroup(keys, mask_context("run1", request, keys, [kind])).to_json()
        node.request_handler(print)(NodeRequest("run1", request, {kind: [1]}, {}, group).to_bytes())
        log = (tmp_path / "node" / "leaves.log").read_text()
        (sent,) = [line for line in log.splitlines() if f" {kind}: " in line]
        tensors = {
            name: ast.literal_eval(shape) for name, shape in re.findall(r"(\S+) (?:float|int)\d\d (\([\d, ]*\))", sent)
        }
        printed = {
            name: int(np.prod([int(n) for n in shape.split(" x ")]))
            for name, shape in re.findall(rf"{when}  (\S+): ([\d x]+) numbers, ", "\n".join(lines))
        }
        assert printed == {name: int(np.prod(shape)) for name, shape in tensors.items()}
        numbers = re.findall(r"(\S+)=", sent.partition("; ")[2])
        assert f"  {when}  numbers: {', '.join(numbers)}" in lines


def test_the_log_of_what_leaves_has_the_value_of_single_numbers(tmp_path: Path) -> None:
    node = member(tmp_path, "fedavg")
    request = Server(node.maker.make(tmp_path / "server"), NoEngine(), print).build_request("train", 1)
    content = node.request_handler(print)(NodeRequest("run1", request, {"client": [1], "train": [1]}).to_bytes())
    scores, _ = decode_envelope(content)[0]
    assert scores.tensors
    scored, trained, total = (tmp_path / "node" / "leaves.log").read_text().splitlines()
    for name, tensor in scores.tensors.items():
        assert f"{name} int64 () = {int(tensor)}" in scored
    assert re.search(r"update float32 \(\d+,\); samples=30, ", trained)
    assert total.endswith(f"message of {len(content):,} bytes")


@pytest.mark.parametrize("secure", [True, False])
def test_a_nodes_key_is_printed_before_any_request(tmp_path: Path, secure: bool) -> None:
    said: list[str] = []
    node = member(tmp_path, "fedavg", secure=secure)
    make_node(node, said.append)
    assert (tmp_path / "node" / "masks.key").exists() == secure
    assert [text.partition(":")[0] for text in said] == ["This node's key for secure aggregation"] * secure
    if secure:
        assert fingerprint(Masker(tmp_path / "node", print).public) in said[0]


def test_a_node_that_takes_part_already_is_left_as_it_is(tmp_path: Path) -> None:
    node = member(tmp_path, "fedavg")
    make_node(node, print)
    key = (tmp_path / "node" / "node.key").read_bytes()
    other = Membership(replace(node.kit, key=b"another"), f"npz:{tmp_path / 'own.npz'}", node.folder, None, None)
    with pytest.raises(RunError, match=f"Process {os.getpid()} takes part with .*node already"):
        make_node(other, print)
    assert (tmp_path / "node" / "node.key").read_bytes() == key


def test_the_last_request_is_the_end_and_what_to_do_then_comes_after_it(tmp_path: Path) -> None:
    node, said = member(tmp_path, "fedavg"), []  # type: Membership, list[str]
    answer = node.request_handler(said.append)
    server = Server(node.maker.make(tmp_path / "server"), NoEngine(), print)
    first, last = server.build_request("train", 1), server.build_request("train", 3)  # of 2 rounds
    answer(NodeRequest("run1", first, {"train": [1]}, number=1).to_bytes())
    last = replace(last, kind="client", numbers={**last.numbers, LAST: 1})
    answer(NodeRequest("run1", last, {"client": [1], "personalise": [1]}, number=2).to_bytes())
    assert [text[:18] for text in said] == [
        "round 1: train in ",
        "the end: client, p",
        "The run is over. P",
        "This node's own sc",
    ]


@pytest.mark.slow
def test_a_run_that_is_started_again_gets_the_same_noise(tmp_path: Path) -> None:
    """Fresh noise on the same update would be averaged away by starting often enough."""
    pytest.importorskip("dp_accounting")
    private = {"privacy_clip": 1.0, "privacy_noise": 1.0, "privacy_at": "node", "weighting": "uniform"}
    node = member(tmp_path, "fedavg", **private)
    request = Server(node.maker.make(tmp_path / "server"), NoEngine(), print).build_request("train", 1)
    answer = node.request_handler(print)
    first, second = (
        decode_envelope(answer(NodeRequest(run, request, {"train": [1]}).to_bytes()))[0][0].tensors["update"]
        for run in ("a", "b")
    )
    assert torch.equal(first, second)
    assert (tmp_path / "node" / "privacy.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("metric", "secure", "said"),
    [
        ("accuracy", False, "test data"),
        ("auroc", False, "test data, and AUROC with its standard error"),
        ("auroc", True, "test data, and AUROC, which only the sum over clients shows"),
        ("auto", False, "test data, and balanced accuracy with its standard error if the organiser's scores are that"),
    ],
)
def test_every_score_that_leaves_is_named(tmp_path: Path, metric: str, secure: bool, said: str) -> None:
    node = member(tmp_path, "fedavg", metric=metric, secure=secure)
    lines = node.describe_outgoing()
    assert f"  each round  right predictions and samples of this node's {said}" in lines
    assert (
        sum(line.startswith("  at the end  the same of this node's own model, and histograms") for line in lines) == 1
    )


PRIVATE: dict[str, Any] = {
    "privacy_clip": 1.0, "privacy_noise": 1.0, "privacy_at": "node", "weighting": "uniform",
}  # fmt: skip


def test_what_is_printed_is_what_leaves_where_noise_is_promised(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    node = member(tmp_path, "fedavg", **PRIVATE)
    lines = node.describe_outgoing()
    assert "  each round  numbers: none" in lines
    assert any("No loss, no number of samples and no score" in line for line in lines)
    assert not any("right predictions" in line for line in lines)


@pytest.mark.slow
def test_the_ledger_of_a_node_is_printed_and_outlives_it(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    said: list[str] = []
    node = member(tmp_path, "fedavg", **PRIVATE)
    shared = tmp_path / "elsewhere" / "ledger.jsonl"
    limits = Limits(epsilon=9.0, ledger=shared)
    data = f"npz:{tmp_path / 'own.npz'}"
    request = Server(node.maker.make(tmp_path / "server"), NoEngine(), print).build_request("train", 1)

    def join(folder: str) -> Callable[[bytes], bytes]:
        (tmp_path / folder).mkdir(exist_ok=True)
        return Membership(node.kit, data, tmp_path / folder, limits=limits).request_handler(said.append)

    join("node")(NodeRequest("a", request, {"train": [1]}, number=1).to_bytes())
    assert said[0].startswith("Privacy spent in all runs: epsilon 0 of 9 for delta 1e-05")
    assert re.search(r"round 1: train in .* bytes back, epsilon 4\.\d", said[1])
    join("another")(NodeRequest("a", request, {"train": [1]}, number=1).to_bytes())  # of the same name, elsewhere
    spent = float(re.findall(r"epsilon ([\d.]+)", said[-1])[0])
    assert 6 < spent < 9
    with pytest.raises(DataError, match="own limit of privacy is reached"):
        join("node")(NodeRequest("b", request, {"train": [1]}, number=1).to_bytes())
    shutil.rmtree(tmp_path / "node")
    with pytest.raises(DataError, match="own limit of privacy is reached"):
        join("node")(NodeRequest("a", request, {"train": [1]}, number=1).to_bytes())


def test_limits_that_could_not_hold_are_refused(tmp_path: Path) -> None:
    node = member(tmp_path, "fedavg")
    for limits, said in (
        (Limits(epsilon=3.0), "no epsilon bounds"),
        (Limits(runs=0), "1 or more"),
        (Limits(peers={"north": "AAAA"}), "which is not agreed"),
        (Limits(peers={"east": "AAAA"}), "use north=CODE"),
    ):
        with pytest.raises(SettingError, match=said):
            limits.check(node.kit)
    code = "-".join(["AB12"] * 6)
    assert read_peers(f"south={code.lower()}, west={code}") == {"south": code, "west": code}
    with pytest.raises(SettingError, match="is no member with its code"):
        read_peers("south=AB12")


def test_an_agreement_of_a_newer_protocol_is_refused_and_an_older_one_is_read(tmp_path: Path) -> None:
    text = member(tmp_path, "fedavg").kit.agreement.text()
    line = f"protocol: {PROTOCOL}\n"
    assert f"\n{line}" in text
    for older in ("", "protocol: 3\n"):
        assert Agreement.read(text.replace(line, older), "kit").members == ("north", "south")
    with pytest.raises(DataError, match=f"protocol {PROTOCOL + 1}, and this Fedframe speaks {PROTOCOL}"):
        Agreement.read(text.replace(line, f"protocol: {PROTOCOL + 1}\n"), "kit")


def test_what_smaller_secure_sums_cost_is_said_before_a_node_joins(tmp_path: Path) -> None:
    """All is what holds where nobody says otherwise; an agreement of before goes on to mean what it meant."""
    cases: list[dict[str, Any]] = [{}, {"min_clients": "all"}, {"min_clients": 3}]
    for least in cases:
        assert price_of_smaller_sums(check({"secure": True, **least}), 3) is None
    price = price_of_smaller_sums(check({"secure": True, "min_clients": 2}), 3)
    assert price is not None
    assert "of 2 of 3" in price
    assert "min_clients = all rules that out" in price
    drawn = price_of_smaller_sums(check({"secure": True, "participation": 0.5}), 6)
    assert drawn is not None
    assert "participation = 1 and min_clients = all" in drawn
    node = member(tmp_path, "fedavg", secure=True)
    assert price not in node.describe_outgoing()
    node.kit = replace(node.kit, agreement=replace(node.kit.agreement, members=("north", "south", "west")))
    node.settings = node.settings.model_copy(update={"min_clients": 2})
    assert price in node.describe_outgoing()
    text = node.kit.agreement.text().replace("min_clients: all", "min_clients: null")
    assert "min_clients: null" in text
    for old in (text, text.replace("  min_clients: null\n", "")):  # of before, and of long before
        assert Agreement.read(old, "kit").settings.min_clients is None
        assert Agreement.read(Agreement.read(old, "kit").text(), "kit").settings.min_clients is None


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [("fedavg", {}, ""), ("fedavg+fedaws", {}, "fedaws"), ("fedavg", {"step_bound": 0}, "step_bound = 0")],
)
def test_a_node_says_what_it_cannot_bound(tmp_path: Path, method: str, settings: dict[str, Any], said: str) -> None:
    node = member(tmp_path, method, **settings)
    lines = [line for line in node.describe_outgoing() if "cannot tell how far" in line]
    assert len(lines) == bool(said)
    assert not said or said in lines[0]


class NoEngine(Engine):
    """Nobody is asked anything."""

    def run(self, request: Any, units: Any) -> Any:
        raise AssertionError


def test_data_that_do_not_fit_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    node = member(tmp_path, "fedavg")
    np.savez(tmp_path / "odd.npz", x=np.zeros((4, 5), np.float32), y=np.array(["a"] * 4))
    np.savez(tmp_path / "other.npz", x=np.zeros((4, 6), np.float32), y=np.array(["z"] * 4))
    for name, said in (("odd", "shape"), ("other", "'z' is no class")):
        with pytest.raises(DataError, match=said):
            Membership(node.kit, f"npz:{tmp_path / name}.npz", tmp_path / "new", None, None)
    assert not (tmp_path / "new").exists()


def test_a_node_chooses_its_own_device(tmp_path: Path) -> None:
    node = member(tmp_path, "scaffold")
    data = f"npz:{tmp_path / 'own.npz'}"
    with pytest.raises(SettingError, match="device = 'abacus' is not available on this machine; use cpu"):
        Membership(node.kit, data, tmp_path / "new", device="abacus")
    (tmp_path / "new").mkdir()
    other = Membership(node.kit, data, tmp_path / "new", device="cpu:0")
    assert other.make_job("a").settings.device == "cpu:0"
    assert other.check() == node.check()
    handlers = [member.request_handler(print) for member in (node, other)]
    server = Server(node.make_job("a"), InlineEngine(node.make_job("a")), print)
    payload = NodeRequest("a", server.build_request("train", 1), {"train": [node.kit.number]}).to_bytes()
    assert handlers[0](payload) == handlers[1](payload)
