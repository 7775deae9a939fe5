"""Keys and certificates of a federation: a CA of its own, the server's certificate, and a key pair per node.

The CA certifies one server and nothing else; nodes trust this CA only, not the system's. A node proves its identity by
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

VALID_YEARS = 5
LOOPBACK = ("127.0.0.1", "localhost")
Key = ec.EllipticCurvePrivateKey


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, at once: no other user and no half-written file is ever exposed."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # before the name is given: a power cut must not leave an empty key under it
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def make_certificates(folder: Path, hosts: Sequence[str], name: str) -> None:
    """Make a CA (ca.pem, ca.key) and a server certificate (server.pem, server.key) for these names and addresses."""
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Fedframe federation {name}"[:64])])
    ca = (
        _builder(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *LOOPBACK))]
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    server = (
        _builder(server_name, ca_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    write_secret(folder / "ca.key", _private_bytes(ca_key, PrivateFormat.PKCS8))
    write_secret(folder / "server.key", _private_bytes(server_key, PrivateFormat.PKCS8))
    (folder / "ca.pem").write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(Encoding.PEM))


def make_node_key(private: Path, public: Path) -> None:
    """Make a node's key pair, in the form that Flower reads."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private, _private_bytes(key, PrivateFormat.OpenSSH))
    public.parent.mkdir(parents=True, exist_ok=True)
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def public_key_of(private: bytes) -> bytes | None:
    """The public key of a node's private one, whatever the line breaks of its file; None if it is no such key."""
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


def _private_bytes(key: Key, form: PrivateFormat) -> bytes:
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
        .not_valid_after(now + datetime.timedelta(days=365 * VALID_YEARS))
    )


def _usage(certificates: bool) -> x509.KeyUsage:
    signs = not certificates
    return x509.KeyUsage(signs, False, False, False, False, certificates, certificates, False, False)


def _general_name(host: str) -> x509.GeneralName:
    """A name or an address that nodes dial, as certificates hold it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
