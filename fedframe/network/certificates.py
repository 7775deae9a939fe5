"""Keys and certificates of a federation: a CA of its own, the server's certificate, and a key pair per node.

The CA vouches for one server and nothing else; nodes trust this CA only, not the system's. A node proves who it is by
signing with its private key, which only its kit holds.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

YEARS = 5  # that certificates last
LOOPBACK = ("127.0.0.1", "localhost")
Key = ec.EllipticCurvePrivateKey


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read; others never see it, and nobody sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # before the name is given: a power cut must not leave an empty key under it
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def make_certificates(folder: Path, hosts: Sequence[str], name: str) -> None:
    """A CA (ca.pem, ca.key) and a server certificate (server.pem, server.key) for these names and addresses."""
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Fedframe federation {name}"[:64])])
    ca = (
        _builder(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    server = (
        _builder(named, ca_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_place(h) for h in dict.fromkeys((*hosts, *LOOPBACK))]), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    write_secret(folder / "ca.key", _private(ca_key, PrivateFormat.PKCS8))
    write_secret(folder / "server.key", _private(server_key, PrivateFormat.PKCS8))
    (folder / "ca.pem").write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(Encoding.PEM))


def make_node_key(private: Path, public: Path) -> None:
    """A node's key pair, in the form that Flower reads."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private, _private(key, PrivateFormat.OpenSSH))
    public.parent.mkdir(parents=True, exist_ok=True)
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def public_of(private: bytes) -> bytes | None:
    """The public key of a node's private one: the same key is the same here, however its file is wrapped."""
    try:
        key = load_ssh_private_key(private, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return None
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def is_certificate(content: bytes) -> bool:
    """Whether this is a certificate that can be read."""
    try:
        x509.load_pem_x509_certificate(content)
    except ValueError:
        return False
    return True


def _private(key: Key, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _builder(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
    )


def _usage(certificates: bool) -> x509.KeyUsage:
    signs = not certificates
    return x509.KeyUsage(signs, False, False, False, False, certificates, certificates, False, False)


def _place(host: str) -> x509.GeneralName:
    """A name or an address that nodes dial."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
