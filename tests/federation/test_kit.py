"""A federation's folder and kits: what is in them, who may read it, and what is refused before anything is made."""

from __future__ import annotations

import ssl
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedframe.errors import DataError, SettingError
from fedframe.federation.agreement import Agreement
from fedframe.federation.create import form_from_description, new_federation
from fedframe.federation.folder import FederationFolder
from fedframe.federation.kit import FILES, Kit
from fedframe.jobs.gather import gather

MEMBERS = ["north", "south", "west"]


def new(path: Path, members: list[str] | None = None, method: str = "fedavg", **settings: Any) -> FederationFolder:
    form = form_from_description("benign, malignant", "8x8x3", "0.5", "0.2,0.3,0.4")
    asked = gather({"method": method, "model": "mlp:16", **settings}, None)
    return new_federation(
        path, MEMBERS if members is None else members, ["fl.example.org", "10.1.2.3"], 9000, form, asked
    )


def test_a_kit_holds_its_own_key_and_no_other(tmp_path: Path) -> None:
    folder = new(tmp_path / "clinic")
    public = folder.public_keys()
    assert list(public) == MEMBERS
    for name in MEMBERS:
        kit = Kit.read(folder.path / "kits" / f"{name}-kit.zip")
        assert (kit.name, kit.agreement.members[kit.number]) == (name, name)
        key = load_ssh_private_key(kit.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        owner = load_ssh_public_key(public[name])
        assert isinstance(owner, ec.EllipticCurvePublicKey)
        assert key.public_key().public_numbers() == owner.public_numbers()
        with zipfile.ZipFile(folder.path / "kits" / f"{name}-kit.zip") as archive:
            assert set(archive.namelist()) == set(FILES)
            content = b"".join(archive.read(member) for member in archive.namelist())
        assert content.count(b"PRIVATE KEY-----") == 2  # one key: its begin and its end
        assert (folder.keys / "ca.key").read_bytes() not in content
        assert folder.secret().encode() not in content


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = new(tmp_path / "clinic")
    secret = [*folder.keys.glob("*.key"), folder.keys / "organiser.secret", *(folder.path / "kits").iterdir()]
    assert len(secret) == 2 + 1 + 3
    for path in secret:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for path in (folder.keys, folder.path / "kits", folder.state):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_the_certificate_is_for_the_names_that_nodes_dial_and_signed_by_the_ca(tmp_path: Path) -> None:
    keys = new(tmp_path / "clinic").keys
    ca, server = (x509.load_pem_x509_certificate((keys / name).read_bytes()) for name in ("ca.pem", "server.pem"))
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "127.0.0.1"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")  # they belong together


def test_the_agreement_is_read_back_as_it_was(tmp_path: Path) -> None:
    folder = new(tmp_path / "clinic", method="fedloge", rounds=7, model="mlp:32")
    first, second = folder.agreement(), Kit.read(folder.path / "kits" / "west-kit.zip").agreement
    assert first.text() == second.text()
    assert first.settings == second.settings
    assert first.form.classes == ("benign", "malignant")
    assert torch.equal(first.form.std, torch.tensor([0.2, 0.3, 0.4]) * 255)
    assert first.settings.rounds == 7


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (["north"], "at least two"),
        (["a", "a"], "two nodes have the same name"),
        (["a", "A"], "two nodes have the same name"),
        (["a", "../b"], "no name"),
        (["a", "1"], "no name"),
    ],
)
def test_names_that_cannot_be_used_are_refused(tmp_path: Path, members: list[str], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        new(tmp_path / "clinic", members)
    assert not (tmp_path / "clinic").exists()


@pytest.mark.parametrize("method", ["central", "ratioloss"])
def test_methods_that_need_data_in_one_place_are_refused_by_name(tmp_path: Path, method: str) -> None:
    with pytest.raises(SettingError, match=method):
        new(tmp_path / "clinic", method=method)
    assert not (tmp_path / "clinic").exists()


def test_a_folder_is_never_overwritten(tmp_path: Path) -> None:
    new(tmp_path / "clinic")
    with pytest.raises(SettingError, match="there already"):
        new(tmp_path / "clinic")


@pytest.mark.slow
def test_what_is_no_kit_is_refused(tmp_path: Path) -> None:
    folder = new(tmp_path / "clinic")
    good = folder.path / "kits" / "west-kit.zip"
    with pytest.raises(DataError, match="There is no kit"):
        Kit.read(tmp_path / "none.zip")
    (tmp_path / "text.zip").write_text("not a zip")
    with pytest.raises(DataError, match="no kit"):
        Kit.read(tmp_path / "text.zip")
    for left_out in FILES[:4]:
        with zipfile.ZipFile(good) as source, zipfile.ZipFile(tmp_path / "part.zip", "w") as target:
            for name in source.namelist():
                if name != left_out:
                    target.writestr(name, source.read(name))
        with pytest.raises(DataError, match="no kit"):
            Kit.read(tmp_path / "part.zip")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as target:
        for name in FILES:
            target.writestr(name, b"0" * (50 << 20))
    with pytest.raises(DataError, match="larger than"):
        Kit.read(tmp_path / "bomb.zip")


@pytest.mark.slow
def test_an_archive_that_is_damaged_anywhere_is_one_sentence(tmp_path: Path) -> None:
    kit = new(tmp_path / "clinic").path / "kits" / "west-kit.zip"
    with zipfile.ZipFile(kit) as source, zipfile.ZipFile(tmp_path / "packed.zip", "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():  # as one gets it from somebody who has unpacked and packed it
            target.writestr(name, source.read(name))
    good = (tmp_path / "packed.zip").read_bytes()
    refused = 0
    for place in range(0, len(good) - 8, 7):
        (tmp_path / "bad.zip").write_bytes(good[:place] + b"\xff" * 8 + good[place + 8 :])
        try:
            Kit.read(tmp_path / "bad.zip")  # a note that nobody needs, such as a date, may be damaged
        except DataError:
            refused += 1
    assert refused > len(good) // 14


def test_a_node_that_has_joined_needs_its_folder_only(tmp_path: Path) -> None:
    folder = new(tmp_path / "clinic")
    archive = folder.path / "kits" / "west-kit.zip"
    kit = Kit.read(archive)
    place = tmp_path / "west-node"
    place.mkdir()
    kit.install(place)
    archive.unlink()
    before = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    again = Kit.read(place)
    assert (again.name, again.key, again.ca) == (kit.name, kit.key, kit.ca)
    assert again.agreement.text() == kit.agreement.text()
    assert stat.S_IMODE((place / "node.key").stat().st_mode) == 0o600
    again.install(place)
    assert {path.name: path.stat().st_mtime_ns for path in place.iterdir()} == before  # the only copy is not touched
    (place / "node.key").unlink()
    with pytest.raises(DataError, match="no folder of a node"):
        Kit.read(place)


def test_a_damaged_agreement_is_one_sentence() -> None:
    for text in ("", "a: 1", "[1]", "{", "federation: x\nhost: h\nport: many\nmembers: [a]\ndata: {}\nsettings: {}"):
        with pytest.raises(DataError, match="no federation's agreement"):
            Agreement.read(text, "this")


@pytest.mark.parametrize(
    ("description", "said"),
    [
        (("one", "8x8x1", "0.5", "0.2"), "classes"), (("a,b", "8x8", "0.5", "0.2"), "shape"),
        (("a,b", "8x8x3", "0.5,0.5", "0.2"), "mean"), (("a,b", "8x8x3", "0.5", "0"), "std"),
        (("a,b", "8x8x3", "half", "0.2"), "mean"), (("a,b", "x", "0.5", "0.2"), "shape"),
    ],
)  # fmt: skip
def test_descriptions_of_no_data_are_refused(description: tuple[str, str, str, str], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        form_from_description(*description)
