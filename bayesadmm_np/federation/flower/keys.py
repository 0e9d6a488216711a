"""Certificates for TLS and a key pair a site, by `cryptography`."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..spec import as_site_name

__all__ = ["make_keys"]

DAYS = 365
UNUSED = (
    *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("encipher_only", "decipher_only"),
)
"""What neither certificate is for."""


def make_keys(folder: Path, sites: Sequence[str], hosts: Sequence[str] = ("localhost", "127.0.0.1")) -> None:
    """Write a certificate authority, a server certificate for `hosts`, and for each site a private and a public key.

    What is there already is left as it is, so that sites can be added; private files can be read by their owner only.

    Raises
    ------
    ValueError
        When a name cannot be part of a file's name.
    ImportError
        When `cryptography`, which comes with Flower, is not installed.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ImportError("making keys needs cryptography: pip install 'bayesadmm-np[flower]'.") from error

    for name in sites:
        as_site_name(name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "server.pem").exists():
        _make_certificates(folder, hosts)
    for name in sites:
        path = folder / f"site-{name}"
        if path.exists():
            continue
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")
        _write_private(path, key, serialization.PrivateFormat.OpenSSH)


def _make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)

    def certificate(subject: str, key: Any, issuer: str, signer: Any, extensions: Sequence[tuple[Any, bool]]) -> Any:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # clocks differ
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    usage = dict.fromkeys(UNUSED, False)
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = "bayesadmm authority"
    root = certificate(
        name,
        authority,
        name,
        authority,
        [
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (x509.KeyUsage(digital_signature=False, key_cert_sign=True, crl_sign=True, **usage), True),
        ],
    )
    own = certificate(
        hosts[0],
        server,
        name,
        authority,
        [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, **usage), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.SubjectAlternativeName([_alternative(x509, host) for host in hosts]), False),
        ],
    )
    # the authority's key is not kept: nobody can sign for another server
    (folder / "ca.crt").write_bytes(root)
    (folder / "server.pem").write_bytes(own)
    _write_private(folder / "server.key", server, serialization.PrivateFormat.PKCS8)


def _alternative(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_private(path: Path, key: Any, form: Any) -> None:
    from cryptography.hazmat.primitives import serialization

    data = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
