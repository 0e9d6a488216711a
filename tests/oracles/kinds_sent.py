"""All that leaves a site or a server, by kind and part, as the library's own tables and records say it."""

from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import get_args, get_type_hints

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.cli import COMMANDS, site
from bayesadmm_np.estimators.evaluation import Header as CountsHeader
from bayesadmm_np.federation import GLMTask, messages, refusals
from bayesadmm_np.federation.glm_messages import GLMReplyHeader, SolvedHeader, SumsHeader
from bayesadmm_np.federation.glm_server import GLMServer
from bayesadmm_np.federation.glm_spec import require_sums
from bayesadmm_np.glm.questions import QUESTIONS
from bayesadmm_np.splitting.messages import Ask
from bayesadmm_np.splitting.methods import TABLE
from oracles.couriers import introduce, started
from oracles.problems import team


def parts(record, name):
    """Fields of a record and of the records in it."""
    hints = get_type_hints(record)
    for item in fields(record):
        inner = [one for one in [hints[item.name], *_within(hints[item.name])] if is_dataclass(one)]
        yield f"{name}: {item.name}"
        for one in inner:
            yield from parts(one, f"{name}.{item.name}")


def _within(hint):
    for one in get_args(hint):
        yield one
        yield from _within(one)


def subclasses(kind):
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def steps():
    """Rows of the table that may cross between sites, plain, guarded and accelerated."""
    for name in TABLE:
        row = getattr(ba.methods, name)()
        for wrap in (lambda step: step, ba.Guarded, lambda step: ba.Guarded(ba.Accelerated(step)), ba.Sketched):
            try:
                step = wrap(row)
                require_sums(step)
            except ValueError:
                continue
            yield step


def reply_vectors():
    """Names of arrays in the replies of all rows, families and asks."""
    found, dim = set(), 3
    sites = introduce(team("logistic", sizes=(5, 5)))
    solved = SolvedHeader(ba.clients.ClientStatus.CONVERGED.name, 1, 0.0, 0.0, True)
    header = GLMReplyHeader("run", 1, "A", "digest", 0.0, 0.0, solved, SumsHeader(1.0, 0.0, True))
    for step in steps():
        for family in (ba.families.FullGaussian, ba.families.DiagonalGaussian, ba.families.FixedPrecisionGaussian):
            try:
                spec = started(sites, GLMTask(step, family(np.zeros(dim), 1.0))).spec
            except ValueError:
                continue
            for ask in get_args(Ask):
                served = SimpleNamespace(certify=True, ask=ask)
                found |= set(GLMServer(spec).reply_fields(header, served))
    return found


def kinds_sent(questions=QUESTIONS):
    """Return every kind of part, as "kind: part"; those of networks where torch is there."""
    with suppress(ImportError):
        import_module("bayesadmm_np.torch.federated")
    found = [f"ask: {one}" for one in get_args(Ask)]
    found += parts(messages.HelloHeader, "hello")
    for record in (messages.AnswerHeader, messages.LostHeader, *subclasses(messages.ReplyHeader)):
        found += parts(record, record.__name__.removesuffix("Header").lower())
    for record in (messages.BroadcastHeader, messages.FinalHeader, messages.CopyHeader):
        found += [f"{record.__name__.removesuffix('Header').lower()}: {item.name}" for item in fields(record)]
    found += [f"vector: {name}" for name in reply_vectors()]
    found += [f"{name}: {part}" for name, entry in questions.items() for part in entry.said]
    for codes in (refusals.RULES, refusals.PLACES, refusals.REASONS, refusals.NOTES):
        found += [f"code: {code}" for code in codes]
    found += [f"counts: {item.name}" for item in fields(CountsHeader)] + ["counts: spans"]
    found += [f"command: {name}" for name in (*COMMANDS, *(f"site {name}" for name in site.__all__))]
    return set(found)
