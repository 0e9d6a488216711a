"""Keys of sites for the tests, and lies that a site signs with its own."""

from bayesadmm_np.federation import site_key

KEYS = {}


def own_key(folder):
    """The key of a site's folder, which `lied` knows too."""
    key = site_key(folder)
    KEYS[key.identity] = key
    return key


def lied(message, old):
    """The message as the writer of an old one would seal it."""
    return message.sealed(KEYS.get(old.signer))
