"""A federation of real processes on loopback: the same bits as one process, and strangers gain nothing."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

import torch

from fedframe.network.certificates import make_certificates, make_node_key, write_secret
from fedframe.network.flower.environment import environment
from fedframe.network.flower.local_deployment import start_superlink
from fedframe.network.flower.superlink import HEADER
from fedframe.runs.session import execute
from fedframe.util.files import read_tensors
from fedframe.util.processes import free_ports, wait_for_port
from tests.federation.commands import LONG, until
from tests.helpers import Recorder, comparable_scores, same_file
from tests.network.deployment import Network, make

pytestmark = pytest.mark.slow

METHODS = ["fedavg", "scaffold", "fedetf", "fedloge", "fedrane", "spherefed"]
SECURE = "spherefedsecure"  # SphereFed with sums only: rounds and FFC


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """One network for all tests of this file: starting it is what takes time."""
    runs: dict[str, dict[str, Any]] = {method: {"method": method} for method in METHODS}
    runs[SECURE] = {"method": "spherefed", "secure": True}
    made = Network(tmp_path_factory.mktemp("network"), runs)
    yield made
    made.transport.close()


@pytest.mark.parametrize("method", METHODS)
def test_a_tls_federation_of_three_processes_gives_the_same_bits(network: Network, tmp_path: Path, method: str) -> None:
    there, display = network.execute(method)
    job, here = make(method, tmp_path / "here")
    execute(job, here, Recorder())
    assert same_file(here.path / "model.safetensors", there.path / "model.safetensors")
    assert comparable_scores(here.path) == comparable_scores(there.path)
    assert all(line["dropped"] == 0 for line in there.metrics()), display.notes


def test_secure_aggregation_over_the_network_gives_the_same_model_up_to_rounding(network: Network) -> None:
    """Runs after the plain one of the same method. All nodes are in every sum, and say no more than their shares."""
    there, display = network.execute(SECURE)
    assert there.settings().min_clients == "all"
    assert not any("added up without" in note or "shared model has moved" in note for note in display.notes)
    assert all(line["dropped"] == 0 for line in there.metrics()), display.notes
    plain = read_tensors(network.runs["spherefed"][1].path / "model.safetensors")[0]
    for name, tensor in read_tensors(there.path / "model.safetensors")[0].items():
        assert torch.allclose(tensor, plain[name], atol=1e-5, rtol=1e-3), name


def test_no_process_calls_outside_or_loads_a_pickle(network: Network) -> None:
    """Runs after the others: what all processes of the network have done until now."""
    lines = [line.split(" ", 2) for line in network.audit.read_text().splitlines()]
    started = [what for _, event, what in lines if event == "started"]
    for module, count in (("superlink", 1), ("supernode", 3), ("local_node", 3)):  # all of them were watched
        assert started.count(f"['-m', 'fedframe.network.flower.{module}']") >= count
    called = {what for _, event, what in lines if event.startswith("socket")}
    assert called
    assert not [what for what in called if not what.startswith(("('127.0.0.1'", "('localhost'", "'/", "b'/"))]
    assert not [what for _, event, what in lines if event == "pickle.find_class"]


# -- strangers ---------------------------------------------------------------------------------------------------------
def supernode(network: Network, folder: Path, *options: str) -> str:
    """What a SuperNode says that tries to join; it gives up at the first refusal."""
    assert network.transport.superlink is not None
    address, (port,) = network.transport.superlink.address, free_ports(1)
    command = [sys.executable, "-m", "fedframe.network.flower.supernode", "--superlink", address]
    command += ["--isolation", "process", "--host", "127.0.0.1", "--port", str(port), "--max-retries", "1", *options]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=LONG)
    assert done.returncode != 0
    return done.stdout + done.stderr


def log(network: Network) -> str:
    """What the SuperLink has written down."""
    return (network.folder / "superlink.log").read_text()


def members(network: Network) -> set[str]:
    """Who is registered."""
    assert network.transport.superlink is not None
    return set(network.transport.superlink.nodes())


def test_a_node_with_an_unregistered_key_is_refused(network: Network, tmp_path: Path) -> None:
    make_node_key(tmp_path / "stranger.key", tmp_path / "stranger.pub")
    before, refused = members(network), log(network).count("Refused POST '/v1/fleet/")
    said = supernode(
        network, tmp_path, "--root-certificates", str(network.folder / "ca.pem"),
        "--auth-supernode-private-key", str(tmp_path / "stranger.key"),
    )  # fmt: skip
    assert "Failed to initialize" in said
    assert members(network) == before
    until("it is logged", lambda: log(network).count("Refused POST '/v1/fleet/") > refused)


def test_a_node_without_a_key_is_refused(network: Network, tmp_path: Path) -> None:
    before, refused = members(network), log(network).count("Refused POST '/v1/fleet/")
    supernode(network, tmp_path, "--root-certificates", str(network.folder / "ca.pem"))
    assert members(network) == before
    until("it is logged", lambda: log(network).count("Refused POST '/v1/fleet/") > refused)


def test_a_node_does_not_talk_to_a_server_of_another_ca(network: Network, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], "another")
    key = network.folder / "node-1" / "node.key"
    refused = log(network).count("Refused a connection from 127.0.0.1: no TLS")
    said = supernode(
        network, tmp_path, "--root-certificates", str(tmp_path / "ca.pem"), "--auth-supernode-private-key", str(key)
    )
    assert "certificate" in said.lower()
    until("it is logged", lambda: log(network).count("Refused a connection from 127.0.0.1: no TLS") > refused)


def test_a_node_without_tls_is_refused(network: Network, tmp_path: Path) -> None:
    before, refused = members(network), log(network).count("Refused a connection from 127.0.0.1: no TLS")
    supernode(network, tmp_path, "--insecure")
    assert members(network) == before
    until("it is logged", lambda: log(network).count("Refused a connection from 127.0.0.1: no TLS") > refused)


@pytest.mark.parametrize(
    "path", ["/v1/control/register-node", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs"]
)
@pytest.mark.parametrize("headers", [{}, {HEADER: "guess"}])
def test_nobody_commands_the_superlink_without_the_secret(network: Network, path: str, headers: dict[str, str]) -> None:
    assert network.transport.superlink is not None
    context = ssl.create_default_context(cafile=str(network.folder / "ca.pem"))
    with httpx.Client(verify=context, timeout=LONG) as client:
        answer = client.post(f"https://{network.transport.superlink.address}{path}", content=b"", headers=headers)
    assert answer.status_code == 403
    assert answer.content == b""
    until("it is logged", lambda: f"Refused POST '{path}' from 127.0.0.1" in log(network))


def own_address() -> str | None:
    """An address of this machine that is not loopback, if it has one; nothing is sent to find out."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        found = str(probe.getsockname()[0])
        return None if found.startswith("127.") else found
    return None


def test_the_secret_is_worth_nothing_from_another_address(tmp_path: Path) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    make_certificates(tmp_path, [address], "this")
    write_secret(tmp_path / "organiser.secret", b"right")
    (port,) = free_ports(1)
    child = start_superlink(tmp_path, "0.0.0.0", port)
    try:
        wait_for_port(child, "127.0.0.1", port)
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with httpx.Client(verify=context, headers={HEADER: "right"}, trust_env=False, timeout=LONG) as client:
            there, here = (
                client.post(f"https://{host}:{port}/v1/control/list-nodes", content=b"").status_code
                for host in (address, "127.0.0.1")
            )
    finally:
        child.stop()
    assert there == 403
    assert here != 403
    said = (tmp_path / "superlink.log").read_text()
    assert f"from {address}: only nodes' requests are taken from other machines" in said
