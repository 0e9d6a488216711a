"""Signatures: a key pair says who wrote a file, by a seal behind the file's last byte.

A seal is a mark, the public key, and the Ed25519 signature (RFC 8032, by `cryptography`) of the SHA-256 of all bytes
before it. The bytes before the seal are those of the file without one. The same file and key make the same seal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ._errors import needed_by

MARK = b"bayesadmm Ed25519\n"
KEY_SIZE = 32
SEAL_SIZE = len(MARK) + KEY_SIZE + 64
CONTEXT = b"bayesadmm archive\n"
"""Begins what is signed: the key signs nothing else."""
SCHEME = "ed25519:"


@dataclass(frozen=True)
class SigningKey:
    """A private key of Ed25519, and the public text by which others know it.

    Parameters
    ----------
    secret : bytes
        32 of them, of which the key is made; from `os.urandom` or a file.

    Examples
    --------
    >>> from bayesadmm_np.federation import Message, SigningKey
    >>> key = SigningKey(bytes(32))  # anybody's: for an example only
    >>> key.identity[:20]
    'ed25519:3b6a27bcceb6'
    >>> signed = Message("hello", {"site": "A"}, {}).sealed(key)
    >>> Message.from_bytes(signed.to_bytes()).signer == key.identity
    True
    """

    secret: bytes

    def __repr__(self) -> str:
        return f"SigningKey({shown(self.identity)})"

    @cached_property
    def _key(self) -> Any:
        return _ed25519().Ed25519PrivateKey.from_private_bytes(self.secret)

    @cached_property
    def identity(self) -> str:
        """The public key as text."""
        return SCHEME + self._key.public_key().public_bytes_raw().hex()

    def seal(self, digest: bytes) -> bytes:
        """Return the seal of a file with this SHA-256."""
        return MARK + bytes.fromhex(self.identity.removeprefix(SCHEME)) + bytes(self._key.sign(CONTEXT + digest))


def is_seal(data: bytes) -> bool:
    """Return whether the last bytes of a file are a seal, right or wrong."""
    return len(data) == SEAL_SIZE and data.startswith(MARK)


def is_identity(text: str) -> bool:
    """Return whether a text is a public key."""
    digits = text.removeprefix(SCHEME)
    return text.startswith(SCHEME) and len(digits) == 2 * KEY_SIZE and set(digits) <= set("0123456789abcdef")


def identity_of(seal: bytes) -> str:
    """Return the public key that a seal names."""
    return SCHEME + seal[len(MARK) : len(MARK) + KEY_SIZE].hex()


def verify(seal: bytes, digest: bytes) -> bool:
    """Return whether a seal is that of a file with this SHA-256, by the key that it names."""
    from cryptography.exceptions import InvalidSignature

    public, signature = seal[len(MARK) : len(MARK) + KEY_SIZE], seal[len(MARK) + KEY_SIZE :]
    try:
        _ed25519().Ed25519PublicKey.from_public_bytes(public).verify(signature, CONTEXT + digest)
    except InvalidSignature:
        return False
    return True


def shown(identity: str | None) -> str:
    """Return an identity as an error names it: enough of it for two people to compare."""
    return "no signature" if identity is None else f"the key {identity[:40]}"


def _ed25519() -> Any:
    with needed_by("signed messages need cryptography", "cli"):
        from cryptography.hazmat.primitives.asymmetric import ed25519
    return ed25519
