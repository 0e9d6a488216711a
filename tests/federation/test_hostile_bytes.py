"""Whatever bytes arrive, the answer is a message or a refusal in one sentence: structure that is made up, and signed.

CI reads a seeded sample. `HOSTILE=1000000 pytest -m slow tests/federation/test_hostile_bytes.py` reads a million.
"""

import os

import pytest

from bayesadmm_np.federation import Message
from oracles import forgeries


def test_made_up_messages_are_read_or_refused():
    refused, taken, share = forgeries.hostile(400, 0)
    assert refused > 250
    assert share < 1
    assert forgeries.altered(taken) == []


@pytest.mark.parametrize("check", ["signature", "memory"])
def test_what_finds_faults_can_find_them(check, monkeypatch):
    """The twins: a server that opens whatever it is sent, and a reader that believes what is said of sizes."""
    if check == "signature":
        monkeypatch.setattr(forgeries.SERVER.__class__, "signers", None)
        assert forgeries.altered(forgeries.hostile(400, 0)[1])
    else:
        monkeypatch.setattr(Message, "from_bytes", lambda data, *given: bytearray(1 << 28) and Message("x", {}, {}))
        assert forgeries.hostile(4, 0)[2] > 1


@pytest.mark.slow
def test_a_million_made_up_messages():
    count, largest = int(os.environ.get("HOSTILE", "20000")), 0.0
    for seed in range(1000, 1000 + count // 1000):
        _, taken, share = forgeries.hostile(1000, seed, traced=0.05)
        assert forgeries.altered(taken) == []
        largest = max(largest, share)
        assert largest < 1, seed
    print(f"{count} messages, at most {largest:.0%} of the memory that each may take")
