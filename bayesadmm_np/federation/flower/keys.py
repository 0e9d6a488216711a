"""Certificates for TLS and a key pair a site, by `cryptography`."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..._errors import needed_by
from ..spec import as_site_name

DAYS, AUTHORITY_DAYS = 365, 3650
WARN_DAYS = 30
"""So long before its end the server's certificate is renewed."""
UNUSED = (
    *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("encipher_only", "decipher_only"),
)
"""What neither certificate is for."""


def make_keys(
    folder: Path,
    sites: Sequence[str],
    hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    rotate: Sequence[str] = (),
    has_server: bool = True,
) -> list[str]:
    """Write a certificate authority, a server certificate for `hosts`, and for each site a private and a public key.

    What is there already stays, so that sites can be added. The server's certificate is renewed, by the same authority,
    for another host, and before it ends; the keys of sites in `rotate` are made anew. What was there before gets the
    day of today as another ending and is kept. Private files can be read by their owner only.

    Returns
    -------
    list of str
        A sentence for everything that was renewed, or will end.

    Raises
    ------
    ValueError
        When a name cannot be part of a file's name, a key to be rotated is not there, or the authority's key is lost.
    ImportError
        When `cryptography`, which comes with Flower, is not installed.
    """
    with needed_by("making keys needs cryptography", "flower"):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

    for name in sites:
        as_site_name(name)
    for name in rotate:
        if not (folder / f"site-{name}").exists():
            raise ValueError(f"rotate must name sites with keys in {folder}, got {name!r}.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    told = _certified(folder, hosts) if has_server else []
    for name in {**dict.fromkeys(sites), **dict.fromkeys(rotate)}:
        path = folder / f"site-{name}"
        if name in rotate:
            kept = [_set_aside(one) for one in (path, path.with_name(f"{path.name}.pub"))]
            told.append(f"site {name}: a new key; the old one is {kept[0]}: register the new {path.name}.pub")
        elif path.exists():
            continue
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")
        _write_private(path, key, serialization.PrivateFormat.OpenSSH)
    return told


def _set_aside(path: Path) -> str:
    """Give a file another name, which nothing has; return it."""
    today = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")
    for number in itertools.count():
        new = path.with_name(f"{path.name}.until-{today}{f'-{number}' if number else ''}")
        if not new.exists():
            path.rename(new)
            return new.name
    raise AssertionError


def _certified(folder: Path, hosts: Sequence[str]) -> list[str]:
    """Make the certificates that are not there, and renew that of the server; return what is to be said."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    server, authority = folder / "server.pem", folder / "ca.key"
    if not server.exists():
        _make_certificates(folder, hosts)
        return []
    now = datetime.datetime.now(datetime.UTC)
    old, root = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (server, folder / "ca.crt"))
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = [str(name.value) for name in names]
    new = [host for host in hosts if host not in known]
    left, all_left = ((one.not_valid_after_utc - now).days for one in (old, root))
    told = [f"ca.crt ends in {all_left} days: take another folder for new keys"] if all_left < DAYS else []
    if not new and left >= WARN_DAYS:
        return told
    if not authority.exists():
        why = f"is for {', '.join(known)}" if new else f"ends in {left} days"
        raise ValueError(
            f"{server} {why}, and cannot be renewed, because {authority.name} is not there: move {folder} away, make "
            "all keys anew, and give the new ca.crt to all sites."
        )
    key = serialization.load_pem_private_key(authority.read_bytes(), password=None)
    kept = [_set_aside(folder / name) for name in ("server.pem", "server.key")]
    _make_certificates(folder, [*known, *new], key)
    return [
        *told,
        f"server.pem: renewed for {', '.join([*known, *new])}; the old one is {kept[0]}: start the superlink again",
    ]


def _make_certificates(folder: Path, hosts: Sequence[str], known: Any = None) -> None:
    """Write the server's certificate, by a new authority or with the key of a known one."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)

    def certificate(
        subject: str, key: Any, issuer: str, signer: Any, extensions: Sequence[tuple[Any, bool]], days: int = DAYS
    ) -> Any:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # clocks differ
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    usage = dict.fromkeys(UNUSED, False)
    authority, server = known or ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
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
        AUTHORITY_DAYS,
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
    if known is None:  # with its key the server's certificate is renewed, and sites keep their ca.crt
        _write_private(folder / "ca.key", authority, serialization.PrivateFormat.PKCS8)
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
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
