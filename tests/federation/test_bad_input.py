"""What a person may type wrong at `federation new`, `join` and `serve`: one sentence each, and nothing is made."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip("flwr")

from cryptography import x509

from fedframe.cli import app
from fedframe.errors import FedframeError
from fedframe.federation.folder import FederationFolder
from fedframe.federation.kit import FILES
from fedframe.util.processes import free_ports, require_free_port

NEW = {"--nodes": "north,south", "--host": "127.0.0.1", "--classes": "a,b", "--shape": "6", "--model": "mlp:8"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*arguments: str) -> str:
    """The sentence with which a command ends."""
    done = CliRunner().invoke(app, ["federation", *arguments])
    assert isinstance(done.exception, FedframeError), (done.exception, done.output)
    text = str(done.exception)
    assert "\n" not in text
    assert "Errno" not in text
    return text


def new(folder: str = "clinic", **given: str) -> list[str]:
    options = NEW | {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    return ["new", folder, *(word for pair in options.items() for word in pair)]


def made(folder: str = "clinic", **given: str) -> FederationFolder:
    done = CliRunner().invoke(app, ["federation", *new(folder, **given)])
    assert done.exit_code == 0, (done.exception, done.output)
    return FederationFolder(Path(folder))


# -- new ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("host", "dialled", "names", "addresses"),
    [
        ("münchen.de", "xn--mnchen-3ya.de:8443", ["xn--mnchen-3ya.de", "localhost"], ["127.0.0.1"]),
        ("straße.de", "xn--strae-oqa.de:8443", ["xn--strae-oqa.de", "localhost"], ["127.0.0.1"]),
        ("10.1.2.3", "10.1.2.3:8443", ["localhost"], ["10.1.2.3", "127.0.0.1"]),
        ("2001:db8::1", "[2001:db8::1]:8443", ["localhost"], ["2001:db8::1", "127.0.0.1"]),
        ("server1", "server1:8443", ["server1", "localhost"], ["127.0.0.1"]),
        ("fl_server", "fl_server:8443", ["fl_server", "localhost"], ["127.0.0.1"]),
        ("localhost", "localhost:8443", ["localhost"], ["127.0.0.1"]),
        ("a.b.example.org, 10.1.2.3,münchen.de", "a.b.example.org:8443",
         ["a.b.example.org", "xn--mnchen-3ya.de", "localhost"], ["10.1.2.3", "127.0.0.1"]),
        ("fl.example.org.", "fl.example.org:8443", ["fl.example.org", "localhost"], ["127.0.0.1"]),
    ],
)  # fmt: skip
def test_names_and_addresses_that_can_be_dialled(
    host: str, dialled: str, names: list[str], addresses: list[str]
) -> None:
    folder = made(host=host)
    assert folder.agreement().address == dialled
    server = x509.load_pem_x509_certificate((folder.keys / "server.pem").read_bytes())
    held = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert held.get_values_for_type(x509.DNSName) == names
    assert list(map(str, held.get_values_for_type(x509.IPAddress))) == addresses


@pytest.mark.parametrize(
    ("host", "instead"),
    [
        ("https://fl.example.org", "--host fl.example.org --port 9001"),
        ("https://fl.example.org:8443/flower", "--host fl.example.org --port 8443"),
        ("fl.example.org:8443", "--host fl.example.org --port 8443"),
        ("[2001:db8::1]:8443", "--host 2001:db8::1 --port 8443"),
        *((host, "--host fl.example.org --port 9001") for host in (
            "bad host", "a" * 300, "a." * 150 + "org", "*.example.org", "a..b", "-a.org", "300.1.2.3", "10.1.2",
            "0.0.0.0", "::", "fe80::1%eth0", "ü" * 100, "fl.example.org:99999", "127.0.0.1,bad host",
        )),
    ],
)  # fmt: skip
def test_hosts_that_cannot_be_dialled(host: str, instead: str) -> None:
    said = refused(*new(host=host, port="9001"))
    assert said.startswith("host = ")
    assert said.endswith(f"such as {instead}.")
    assert not Path("clinic").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "said", "instead"),
    [
        ({"shape": "99999999"}, "shape = ", "such as 64x64x3"),
        ({"shape": "9999999", "model": "mlp"}, "the net mlp would have 2,000,040,200 numbers", "--shape 1000"),
        ({"shape": "5000x5000x1", "model": "cnn"}, "the net cnn would have", "--shape 64x64x3"),
        ({"model": "mlp:9999999999999x9999999999999"}, "is too large for this machine", "such as mlp:64"),
        ({"model": "mlp:30000x30000"}, "numbers, more than 500,000,000", "--model mlp:64"),
        ({"mean": "nan"}, "mean = 'nan'", "such as 0.5"),
        ({"mean": "0,0,0,0,0,inf"}, "mean = ", "such as 0.5"),
        ({"mean": "1e38", "shape": "8x8x3"}, "mean = ", "such as 0.5"),
        ({"std": "inf"}, "std = 'inf'", "such as 0.5"),
        ({"std": "0"}, "std = '0'", "such as 0.25"),
        ({"std": "-1"}, "std = '-1'", "such as 0.25"),
        ({"std": "1e-60"}, "std = '1e-60'", "such as 0.25"),
        ({"min_clients": "9"}, "min_clients = 9: there are 2 clients", "min_clients = 2"),
        ({"nodes": "a,b,c,d", "participation": "0.5", "min_clients": "3"}, "0.5 of 4 clients", "min_clients = 2"),
    ],
)
def test_settings_with_which_no_federation_works(given: dict[str, str], said: str, instead: str) -> None:
    text = refused(*new(**given))
    assert said in text
    assert instead in text
    assert not Path("clinic").exists()


@pytest.mark.slow
def test_as_many_clients_as_there_are_may_be_asked_for() -> None:
    assert made(min_clients="2").agreement().settings.min_clients == 2


# -- join --------------------------------------------------------------------------------------------------------------
def join(kit: Path | str, *more: str) -> str:
    np.savez("own.npz", x=np.random.default_rng(0).normal(0, 1, (40, 6)).astype(np.float32), y=np.arange(40) % 2)
    return refused("join", str(kit), "--data", "npz:own.npz", *more)


@pytest.mark.slow
def test_a_folder_of_another_federation_is_refused_before_data_are_loaded() -> None:
    first, second = (made(name).path / "kits/north-kit.zip" for name in ("clinic", "trial"))
    with zipfile.ZipFile(first) as archive:
        archive.extractall("north-node")
    key = Path("north-node/node.key").read_bytes()
    said = refused("join", str(second), "--data", "npz:none.npz")
    assert "belongs to the node north of the federation clinic" in said
    assert said.endswith("use --out north-node-2.")
    assert Path("north-node/node.key").read_bytes() == key
    said = refused("join", str(second), "--data", "npz:none.npz", "--check")  # keeps nothing, so needs no folder
    assert "none.npz" in said


@pytest.mark.slow
def test_a_file_in_the_place_of_the_folder() -> None:
    kit = made().path / "kits/north-kit.zip"
    Path("letter").write_text("dear")
    assert "out = letter: cannot be this node's folder (letter is a file)" in join(kit, "--out", "letter")
    assert Path("letter").read_text() == "dear"


def test_a_folder_that_is_not_ours_to_write() -> None:
    kit = made().path / "kits/north-kit.zip"
    Path("shut").mkdir(mode=0o500)
    if os.access("shut", os.W_OK):
        pytest.skip("this user may write anywhere")
    assert "out = shut/north: cannot be this node's folder (Permission denied)" in join(kit, "--out", "shut/north")


@pytest.mark.slow
def test_what_is_no_kit_says_what_a_kit_is() -> None:
    with zipfile.ZipFile("other.zip", "w") as archive:
        archive.writestr("holiday.txt", "sun")
    Path("text.zip").write_text("not a zip")
    for kit, why in (("other.zip", "it has no ca.pem"), ("text.zip", "it is no zip archive")):
        said = join(kit)
        assert said.startswith(f"{kit} is no kit, for {why}; ")
        assert said.endswith("such as north-kit.zip.")
    assert join("none.zip").startswith("There is no kit none.zip; ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("ca.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "ca.pem is no certificate"),
        ("ca.pem", b"", "ca.pem is no certificate"),
        ("node.key", b"", "node.key is no key"),
        ("node.key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n", "no key"),
        ("federation.yaml", b"\xff\xfe", "federation.yaml is no federation's agreement"),
        ("federation.yaml", b"[" * 5000, "federation.yaml is no federation's agreement"),
        ("node.txt", b"east", "'east', which is no member"),
    ],
)
def test_a_kit_with_a_damaged_file(name: str, content: bytes, said: str) -> None:
    assert said in join(changed(made().path / "kits/north-kit.zip", name, content))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("port", 99999, "host and port"), ("port", float("inf"), "no federation's agreement"),
        ("host", "https://x", "host and port"), ("members", ["north"], "at least two"),
        ("settings", {"rounds": -1}, "federation.yaml: rounds"), ("shape", [0], "shape"), ("shape", [], "shape"),
        ("mean", [float("nan")] * 6, "mean"), ("std", [0.0] * 6, "std"), ("std", [1e400] * 6, "std"),
    ],
)  # fmt: skip
def test_a_kit_whose_agreement_cannot_work(key: str, value: object, said: str) -> None:
    folder = made()
    agreed = yaml.safe_load((folder.path / "federation.yaml").read_text())
    (agreed["data"] if key in agreed["data"] else agreed)[key] = value
    text = join(changed(folder.path / "kits/north-kit.zip", "federation.yaml", yaml.safe_dump(agreed).encode()))
    assert "bad.zip: federation.yaml" in text
    assert said in text


def changed(kit: Path, name: str, content: bytes) -> Path:
    """A copy of a kit with another content of one file."""
    with zipfile.ZipFile(kit) as source, zipfile.ZipFile("bad.zip", "w") as target:
        for each in FILES:
            target.writestr(each, content if each == name else source.read(each))
    return Path("bad.zip")


# -- serve -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bind", ["nowhere.invalid", "bad host", "", "0.0.0.0:8443", "a..b", "ü" * 80, "https://x"])
def test_an_address_to_listen_at_that_is_none(bind: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(FedframeError) as error:
        require_free_port(bind, port)
    assert str(error.value).startswith(f"bind = {bind!r}: ")
    assert "use --bind 0.0.0.0" in str(error.value)
    assert "Errno" not in str(error.value)
