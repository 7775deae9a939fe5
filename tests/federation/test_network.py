"""A federation of real processes on loopback: the same bits as one process, and strangers gain nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")

from fedframe.core.files import read_json
from fedframe.engines.flower.calm import environment
from fedframe.engines.flower.superlink import HEADER
from fedframe.federation.certificates import make_certificates, make_node_key
from fedframe.session import execute
from tests.federation.network import Network, make
from tests.helpers import Recorder, same_file

METHODS = ["fedavg", "scaffold", "fedetf", "fedloge", "fedrane", "spherefed"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """One network for all tests of this file: starting it is what takes time."""
    made = Network(tmp_path_factory.mktemp("network"), {method: {"method": method} for method in METHODS})
    yield made
    made.post.close()


@pytest.mark.parametrize("method", METHODS)
def test_a_tls_federation_of_three_processes_gives_the_same_bits(network: Network, tmp_path: Path, method: str) -> None:
    there, display = network.execute(method)
    job, here = make(method, tmp_path / "here")
    execute(job, here, Recorder())
    assert same_file(here.path / "model.safetensors", there.path / "model.safetensors")
    first, second = (read_json(run.path / "summary.json") for run in (here, there))
    assert first["scores"] == second["scores"]
    assert all(line["dropped"] == 0 for line in there.metrics()), display.notes


# -- strangers ---------------------------------------------------------------------------------------------------------
def supernode(network: Network, folder: Path, *options: str) -> str:
    """What a SuperNode says that tries to join; it gives up at the first refusal."""
    assert network.post.link is not None
    command = [sys.executable, "-m", "fedframe.engines.flower.supernode", "--superlink", network.post.link.address]
    command += ["--isolation", "process", "--host", "127.0.0.1", "--port", "19123", "--max-retries", "1", *options]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=180)
    assert done.returncode != 0
    return done.stdout + done.stderr


def members(network: Network) -> set[str]:
    """Who is registered."""
    assert network.post.link is not None
    return set(network.post.link.nodes())


def test_a_node_with_an_unregistered_key_is_refused(network: Network, tmp_path: Path) -> None:
    make_node_key(tmp_path / "stranger.key", tmp_path / "stranger.pub")
    before = members(network)
    said = supernode(
        network, tmp_path, "--root-certificates", str(network.folder / "ca.pem"),
        "--auth-supernode-private-key", str(tmp_path / "stranger.key"),
    )  # fmt: skip
    assert "Failed to initialize" in said
    assert members(network) == before
    assert "activate-node" in (network.folder / "superlink.log").read_text()


def test_a_node_without_a_key_is_refused(network: Network, tmp_path: Path) -> None:
    before = members(network)
    supernode(network, tmp_path, "--root-certificates", str(network.folder / "ca.pem"))
    assert members(network) == before


def test_a_node_does_not_talk_to_a_server_of_another_ca(network: Network, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], "another")
    key = network.folder / "node-1" / "node.key"
    said = supernode(
        network, tmp_path, "--root-certificates", str(tmp_path / "ca.pem"), "--auth-supernode-private-key", str(key)
    )
    assert "certificate" in said.lower()


def test_a_node_without_tls_is_refused(network: Network, tmp_path: Path) -> None:
    before = members(network)
    supernode(network, tmp_path, "--insecure")
    assert members(network) == before


@pytest.mark.parametrize(
    "path", ["/v1/control/register-node", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs"]
)
@pytest.mark.parametrize("headers", [{}, {HEADER: "guess"}])
def test_nobody_commands_the_superlink_without_the_secret(network: Network, path: str, headers: dict[str, str]) -> None:
    assert network.post.link is not None
    with httpx.Client(verify=str(network.folder / "ca.pem")) as client:
        answer = client.post(f"https://{network.post.link.address}{path}", content=b"", headers=headers)
    assert answer.status_code == 403
    assert answer.content == b""
    assert f"Refused POST '{path}' from 127.0.0.1" in (network.folder / "superlink.log").read_text()


def test_an_order_without_training_takes_seconds(network: Network) -> None:
    engine = network.engine("fedavg")
    for _ in range(5):
        engine.hello(3)
    print(f"median of an order without training: {statistics.median(engine.seconds[1:]):.2f} s")
    assert statistics.median(engine.seconds[1:]) < 60  # a bound that only a hang breaks; the figure is in docs/results
