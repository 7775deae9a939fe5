"""`analytic` alone over nodes: added up securely, with nodes that go, and as one release under privacy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography")

from fedframe.core.privacy import epsilon
from fedframe.core.server import Server
from fedframe.methods.closed_form.head import closed_form
from fedframe.network.envelope import decode_envelope
from fedframe.runs.session import execute
from fedframe.util.files import read_json
from tests.helpers import Recorder, nothing
from tests.network.in_process import InProcessTransport, clock, make, remote_engine

__all__ = ["clock"]
ALONE: dict[str, Any] = {"model": "raw", "rounds": 0}


def concluded(folder: Path, away: str = "", spoil: Any = None, **settings: Any) -> Server:
    """A server that has fitted its model from the sums of four nodes, or of three."""
    job, _ = make("analytic", folder / "run", **{**ALONE, **settings})
    engine = remote_engine(job, folder / "nodes", 4, spoil)
    assert isinstance(engine.transport, InProcessTransport)
    engine.transport.away |= {away} - {""}
    server = Server(job, engine, nothing)
    server.conclude(nothing)
    return server


def scores(server: Server) -> torch.Tensor:
    """Of the test samples."""
    source = server.job.federation.source
    assert source.test is not None
    with torch.no_grad():
        return server.job.method.logits(server.net(), source.batch(source.test, torch.arange(len(source.test))))


@pytest.mark.slow
@pytest.mark.parametrize("knows", ["fixed", "data"])
def test_sums_that_were_added_securely_give_the_model_of_plain_sums(tmp_path: Path, knows: str) -> None:
    sent: list[set[str]] = []

    def look(node: str, content: bytes) -> bytes:
        sent.extend(set(message.tensors) for message in decode_envelope(content)[0] if message.kind == "statistics")
        return content

    part = {"analytic": {"map": knows, "width": 180}}
    plain = scores(concluded(tmp_path / "plain", set=part))
    secure = concluded(tmp_path / "secure", spoil=look, secure=True, set=part)
    torch.testing.assert_close(scores(secure), plain, rtol=1e-5, atol=1e-5)
    assert sent == [{"masked", "shares"}] * 4 * (1 if knows == "fixed" else 2)
    assert not (tmp_path / "secure" / "run" / "sums").exists()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after its masked sums"])
def test_a_node_that_goes_is_in_the_securely_added_sums_whole_or_not_at_all(tmp_path: Path, when: str) -> None:
    gone: list[str] = []

    def cut(node: str, content: bytes) -> bytes | str:
        (kind,) = {message.kind for message in decode_envelope(content)[0]}
        gone.extend([kind] if node == "node2" else [])
        return "cut" if node == "node2" and kind != "statistics" and "statistics" in gone else content

    part = {"analytic": {"width": 180}}
    if when == "before":
        plain = concluded(tmp_path / "plain", "node2", set=part)
        secure = concluded(tmp_path / "secure", "node2", secure=True, min_clients=2, set=part)
    else:
        plain = concluded(tmp_path / "plain", set=part)
        secure = concluded(tmp_path / "secure", spoil=cut, secure=True, min_clients=2, set=part)
        assert "unmask" in gone[gone.index("statistics") :]
    torch.testing.assert_close(scores(secure), scores(plain), rtol=1e-5, atol=1e-5)
    samples = int(closed_form(secure.net()).counts.sum())
    sizes = [len(secure.job.federation.train[client]) for client in range(4)]
    assert samples == sum(sizes) - (sizes[2] if when == "before" else 0)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "secure"), [("server", False), ("node", True)])
def test_privacy_over_a_network_is_one_release_whatever_else_is_asked(tmp_path: Path, where: str, secure: bool) -> None:
    pytest.importorskip("dp_accounting")
    asked: Counter[tuple[str, str]] = Counter()

    def look(node: str, content: bytes) -> bytes:
        asked.update((node, message.kind) for message in decode_envelope(content)[0])
        return content

    private = {"privacy_clip": 1.0, "privacy_noise": 1.0, "privacy_at": where, "weighting": "uniform"}
    job, run = make("analytic", tmp_path / "run", **ALONE, secure=secure, **private)
    execute(job, run, Recorder(), lambda job, note: remote_engine(job, tmp_path / "nodes", 4, look))
    spent = read_json(run.path / "summary.json")["privacy"]
    assert {asked[f"node{k}", "statistics"] for k in range(4)} == {1}
    assert spent["epsilon"] == pytest.approx(epsilon(1.0, 1e-5, 1, 4, 4, where == "node"), rel=1e-6)
    assert not (run.path / "sums").exists()
