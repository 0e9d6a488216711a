"""Messages of an honest kind in which one or two fields are hostile values of their type, and what their reading costs.

Whoever sends them has all keys and digests right: a stranger before a run begins, a server that lies, a site that lies,
or whoever could write a state or a model file. A message is of some ten kilobytes at most.
"""

import json
import random
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.design.agreement import needed_columns
from bayesadmm_np.design.terms import parse
from bayesadmm_np.estimators import FederatedGLM, load_model, save_model
from bayesadmm_np.estimators.summary import as_dict, summarise
from bayesadmm_np.estimators.term_tests import term_table
from bayesadmm_np.families.base import FAMILIES
from bayesadmm_np.federation import Coordinator, GLMData, GLMTable, GLMTask, Message, Site, final_result
from bayesadmm_np.federation.messages import read_hello
from bayesadmm_np.federation.spec import ENGINES, run_of
from bayesadmm_np.glm.questions import QUESTIONS
from bayesadmm_np.splitting.newton import Newton
from bayesadmm_np.splitting.settings import REGISTRIES
from bayesadmm_np.splitting.status import Status
from oracles.overrides import ALLOWED
from oracles.problems import team

M = ba.methods
LARGEST = 10_000
"""Bytes of a message."""
NAMES = "ABC"
FORMULA = "died ~ age + dose + ward"


# --- Honest messages, and who receives them --------------------------------------------------------------------


def full(dim):
    return ba.families.FullGaussian(np.zeros(dim), 1.0)


def flat(dim):
    return ba.families.FullGaussian(np.zeros(dim), 0.0)


def isotropic(dim):
    return ba.families.IsotropicGaussian(np.zeros(dim), 1.0)


def diagonal(dim):
    return ba.families.DiagonalGaussian(np.zeros(dim), 1.0)


def blocks(dim):
    return ba.families.BlockDiagonalGaussian(np.zeros(dim), 1.0, blocks=[dim - 1, 1])


def table(k, n=40):
    rng = np.random.default_rng(k)
    columns = {"age": rng.normal(size=n), "dose": rng.normal(size=n), "ward": [*"abc" * n][:n]}
    columns |= {"died": [int(value) for value in rng.random(n) < 0.5], "count": rng.poisson(2.0, n).tolist()}
    return columns | {"where": [*"xyxz" * n][:n]}


def sites_of(data):
    return [Site(name, data(k), rules=ALLOWED) for k, name in enumerate(NAMES)]


def tabled(formula=FORMULA, **settings):
    return sites_of(lambda k: GLMTable(table(k), formula, **settings))


def numbered():
    losses = team("logistic", sizes=(25, 28, 21))
    return sites_of(lambda k: GLMData(losses[k]))


def followed(doors, run, sites, task):
    """Enter every kind of message of a run with the door that receives it."""
    new, others = list(sites), [site.hello() for site in sites[1:]]
    server = Coordinator.start([site.hello() for site in sites], task)

    def enter(kind, message, door):
        doors.setdefault(f"{run}: {kind}", (message, door))

    enter("hello", sites[0].hello(), lambda message: Coordinator.start([read_hello(message), *others], task))
    while server.outcome is None:
        message, is_new = server.broadcast(), server.number < 4
        what = message.header.get("name", "")
        if is_new or what:
            enter(f"{message.kind} {what or server.number}", message, sites[0].step)
            enter(f"{message.kind} {what} to a new site", message, new[0].step)
        sites, replies = map(list, zip(*(site.step(message) for site in sites), strict=True))
        if is_new or what:
            step = partial(lambda step, replies, message: step([message, *replies]), server.step, replies[1:])
            enter(f"{replies[0].kind} {what or server.number}", replies[0], step)
        server = server.step(replies)
        if server.number in (2, 3) and server.question is None:
            enter(f"server {server.number}", server.save(), partial(revived, task.model))
            if sites[0].kept is not None:
                enter(f"site {server.number}", sites[0].save(), new[0].restore)
                if not getattr(server.spec, "sums_only", False):
                    enter("copy", server.copy_of("A"), partial(new[0].adopt, server.spec))
    enter("server ended", server.save(), partial(revived, task.model))
    final = server.broadcast()
    enter("final", final, partial(ended, task.model))
    enter("final to a site", final, sites[0].step)


def ended(model, message):
    """What a final message is read for."""
    if model is None:
        return final_result(message)
    from bayesadmm_np.torch import final_model

    return final_model(message, model)


def networks(found):
    """Enter a run of a network, where torch is there."""
    try:
        import torch
    except ImportError:
        return
    from bayesadmm_np.torch import IVONADMM, MLP, IVONSteps, NetworkData, NetworkTask, Rows

    torch.manual_seed(0)
    model, X = MLP((4, 5, 3)), torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    y = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
    sites = sites_of(lambda k: NetworkData(Rows(X[8 * k : 8 * k + 8], y[8 * k : 8 * k + 8]), model))
    followed(found, "network", sites, NetworkTask(IVONADMM(), model, solver=IVONSteps(epochs=1, lr=0.1), rounds=3))


def revived(model, message):
    """What a server's state is read for."""
    server = Coordinator.restore(message, model)
    return server.signers, server.rows, server.missing_rows, server.reply_limit, server.broadcast(), server.save()


def loaded(folder, message):
    """What `bayesadmm summary` makes of a model file."""
    message.write(folder / "model.npz")
    model = load_model(folder / "model.npz")
    said = summarise(
        model, covariance=model.record.shown, tests=term_table(model, "wald", model.record.shown, "II", None)
    )
    return str(said), as_dict(model, covariance=model.record.shown)


@cache
def doors(has_networks=False):
    """Return by its name each honest message, and the door that receives it."""
    found, folder = {}, Path(tempfile.mkdtemp())
    if has_networks:
        networks(found)
        return found
    newton = ba.Guarded(Newton())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        followed(found, "posterior", numbered(), GLMTask(M.PVI(), full, tol=1e-4))
        followed(found, "accelerated", numbered(), GLMTask(ba.Guarded(ba.Accelerated(M.PVI(), 3)), full, tol=1e-4))
        followed(found, "isotropic", numbered(), GLMTask(M.ADMM(), isotropic, rounds=4, expectation=ba.losses.Delta(1)))
        followed(found, "newton", numbered(), GLMTask(newton, flat))
        followed(found, "sums", numbered(), GLMTask(newton, flat, sums_only=True))
        for kind in ("full", ba.losses.LowRank(1)):
            row = ba.Guarded(ba.Sketched(M.PVI(), kind))
            followed(found, f"sketched {type(kind).__name__}", numbered(), GLMTask(row, diagonal, rounds=4))
        softmax = tabled("where ~ age + ward", kind="softmax")
        followed(found, "softmax", softmax, GLMTask(newton, flat, tol=1e-8, asks=True))
        followed(found, "blocks", tabled(), GLMTask(M.BLR(0.5), blocks, rounds=3))
        solver, rule = ba.clients.VON(steps=3, samples=2), ba.losses.GaussHermite(8)
        followed(found, "solver", numbered(), GLMTask(M.PVI(), diagonal, solver=solver, expectation=rule, rounds=3))
        followed(found, "intercepts", tabled(), GLMTask(M.PVI(), full, tol=1e-3, choices={"site_intercepts": True}))
        asked = {"logistic": FORMULA, "poisson": "count ~ age + ward", "linear": "dose ~ age * ward"}
        for kind, formula in asked.items():
            tests = {"tests": "lr"} if kind == "logistic" else {}
            followed(found, kind, tabled(formula, kind=kind), GLMTask(newton, flat, tol=1e-8, asks=True, **tests))
        followed(found, "firth", tabled(), GLMTask(newton, flat, tol=1e-8, asks=True, penalty="firth"))
        for kind, formula in (("logistic", FORMULA), ("linear", "dose ~ age * ward")):
            model = FederatedGLM.from_formula(formula, {name: table(k) for k, name in enumerate(NAMES)}, kind=kind)
            save_model(folder / "honest.npz", model.fitted_)
            found[f"{kind}: model"] = Message.read(folder / "honest.npz"), partial(loaded, folder)
    return found


# --- Hostile values --------------------------------------------------------------------------------------------

INTEGERS = [0, -1, 1, 2, 3, 7, 100, 4096, 25_000, 2**26, 2**31, 2**53, 2**63, 10**30, -(10**30), 10**400, -(2**63)]
FLOATS = [0.0, -0.0, -1.0, 1.0, 1e-300, 5e-324, 1e30, 1e154, 1e200, 1e308, -1e308, np.nan, np.inf, -np.inf]
SHAPES = [[], [0], [1], [3], [25_000], [1 << 26], [2, 2], [2, 3], [700, 700], [25_000] * 2, [10**30], [-1], [2] * 40]
KNOWN = [*FAMILIES, *(name for registry in REGISTRIES for name in registry), *ENGINES, *QUESTIONS, *Status.__members__]
WORDS = ["", "A", "Z", "\x00\x1b[2J", "x" * 5000, "NaN", "\ud800", "a\udcffb", "../a", "__proto__", "١", "e\u0301"]
WORDS += ["intercept", "ward", "died", "number", "factor", "text", *KNOWN]


def bomb(rng):
    """Return a formula of a grammar of which many are large, deep or slow."""
    columns = ["age", "dose", "ward", *(f"v{k}" for k in range(rng.choice([1, 8, 40])))]

    def factor():
        name = rng.choice(columns)
        degree = rng.choice([1, 3, 16, 64, 65, 10**6])
        knots = ", ".join(str(k / 100) for k in range(rng.choice([0, 3, 30, 400])))
        number = rng.choice(["2", "1e308", "1e999", "9" * 400, "0", "64", "0.5"])
        return rng.choice(
            [
                name,
                name,
                f"C({name})",
                f"poly({name}, {degree}, raw=True)",
                f"bs({name}, knots=({knots},), degree={degree}, lower_bound=-{number}, upper_bound={number})",
                f"bs({name}, df={degree})",
                f"C({name}, {rng.choice(['Poly', 'Helmert', 'Sum', 'Diff', 'Treatment'])})",
                f"C({name}, Treatment({number}))",
                f"C({name}, Poly(scores=({knots},)))",
                f"I({name} ** {number})",
                f"I({'(' * 90}{name}{')' * 90})",
                f"I({'-' * rng.choice([9, 300, 900])}{name})",
                f"I({name} + {number})",
                f"I({'*'.join([name] * rng.choice([2, 300]))})",
                f"I({'+'.join(f'I(`v{k}`)' for k in range(rng.choice([2, 300])))})",
                f"offset({name} * {number})",
                f"standardize({name})",
                f"log({name})",
            ]
        )

    def term(depth):
        if depth == 0 or rng.random() < 0.3:
            return factor()
        count = rng.choice([2, 2, 3, 9, 26])
        joined = rng.choice([":", "*", " + ", "/", " - ", "%in%"]).join(term(depth - 1) for _ in range(count))
        return rng.choice([joined, f"({joined})", f"({joined})**{rng.choice([2, 9, 30, 64, 10**9])}"])

    return term(rng.randrange(4))[: rng.choice([300, 4000])]


def other(rng, value, path):
    """Return a hostile value of about the type of another."""
    if "shapes" in path and rng.random() < 0.7:
        return [rng.choice(SHAPES) for _ in range(rng.choice([1, 2, 2, 2, 5]))]
    if rng.random() < 0.05:
        return rng.choice([None, [], {}, "", 0, 1.5, True, [[[]]], {"type": "Method"}])
    if isinstance(value, bool) or value is None:
        return rng.choice([True, False, None, 1, 1.0, "x"])
    if isinstance(value, int):
        return rng.choice(INTEGERS)
    if isinstance(value, float):
        return rng.choice([*FLOATS, *FLOATS, 10**400])
    if isinstance(value, str):
        if "~" in value:
            base = rng.choice(["died", "count", "age", value.split("~")[0]]) + " ~ "
            return rng.choice([base + bomb(rng), f"{value} + {bomb(rng)}", f"{value} + client:{bomb(rng)}"])
        return rng.choice([*WORDS, value * 100])
    if isinstance(value, list):
        if not value:
            return [rng.choice([*INTEGERS, *FLOATS, "x", None])] * rng.choice([1, 3, 300])
        shape = rng.randrange(7)
        if shape == 0:
            return value * rng.choice([2, 30, 300])
        if shape == 1:
            return value[: rng.randrange(len(value))]
        if shape == 2:
            return value[::-1]
        if shape == 3:
            return [other(rng, one, path) for one in value]
        if shape == 4 and isinstance(value[0], str):
            return [f"{value[0]}{k}" for k in range(rng.choice([2, 50, 900]))]
        if shape == 5:
            for _ in range(rng.choice([2, 31, 300, 3000])):
                value = [value]
            return value
        return [*value[:-1], other(rng, value[-1], path)]
    changed = dict(value)
    how = rng.randrange(4)
    if how == 0 and changed:
        del changed[rng.choice(sorted(changed))]
    elif how == 1 and changed:
        entry = changed[rng.choice(sorted(changed))]
        changed |= {f"k{k}": entry for k in range(rng.choice([1, 30, 300]))}
    elif how == 2:
        return {}
    else:
        changed |= {name: other(rng, one, path) for name, one in changed.items() if rng.random() < 0.3}
    return changed


def places(value, prefix=()):
    """Return the path of every value inside of a header."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in [(*prefix, key), *places(inner, (*prefix, key))]]


def settled(rng, agreement):
    """Make columns and transforms of an agreement those of its formula, as a server that lies would."""
    parsed = parse(agreement["formula"])
    known = agreement["columns"]
    levels = [f"l{k}" for k in range(rng.choice([1, 2, 3, 30, 300]))]
    columns = {}
    for name, role in needed_columns(parsed.roles, agreement["weights"]).items():
        kind = role if role != "any" else rng.choice(["number", "factor"])
        made = {"kind": kind, "levels": levels if kind == "factor" else [], "spellings": {}, "are_numbers": False}
        columns[name] = known[name] if name in known and rng.random() < 0.7 else made
    learned = {}
    for call in parsed.learned:
        knots = [float(one) for one in call.options.get("knots", (0.0,))]
        bounds = {"lower_bound": -1e3, "upper_bound": 1e3}
        learned[call.text] = {"knots": knots, **bounds} if call.name == "bs" else {"center": 0.0, "scale": 1.0}
    agreement |= {"columns": columns, "learned": learned, "client": None}


def described(rng, said):
    """Make the description of a hello that of its formula."""
    parsed, known = parse(said["formula"]), said["columns"]
    levels = {f"l{k}": 5 for k in range(rng.choice([1, 2, 3, 30, 300]))}
    text = {**known["ward"], "levels": levels}
    said["columns"] = {
        name: known[name] if name in known else text if role == "factor" or rng.random() < 0.5 else known["age"]
        for name, role in parsed.roles.items()
    }
    said["moments"] = {call.argument: {"count": 40, "mean": 0.0, "squares": 1.0} for call in parsed.learned}


def numbers(rng, values):
    """Return other numbers, or another shape."""
    values, how = np.array(values), rng.randrange(8)
    if how == 0:
        return np.zeros(rng.choice([0, 1, 10, 1000]))
    if how == 1:
        return values.reshape(-1)[: rng.randrange(values.size + 1)]
    if how == 2:
        with np.errstate(over="ignore", invalid="ignore"):  # as a float32 a large number is infinite
            return values.astype(rng.choice([np.float32, np.int64, np.bool_]))
    if how == 3:
        return values[None]
    likely = FLOATS if values.dtype.kind == "f" else [0, 1, 48, 127]
    if how == 4:
        with np.errstate(over="ignore", invalid="ignore"):
            return values * rng.choice([-1.0, 0.0, 1e-300, 1e154, 1e300])
    if how == 5:
        return np.full(values.shape, rng.choice(likely), values.dtype)
    flat = values.reshape(-1)
    for _ in range(rng.randrange(1, 4)):
        if flat.size:
            flat[rng.randrange(flat.size)] = rng.choice(likely)
    return flat.reshape(values.shape)


def changed(rng, message):
    """Return header and arrays with one or two hostile fields; the id of a run is mostly that of its spec."""
    header, arrays = json.loads(json.dumps(message.header)), dict(message.arrays)
    paths = places(header)
    for _ in range(rng.choice([1, 1, 2])):
        if arrays and rng.random() < 0.3:
            name = rng.choice(sorted(arrays))
            if rng.random() < 0.1:
                del arrays[name]
            else:
                arrays[name] = numbers(rng, arrays[name])
            continue
        formulas = [path for path in paths if path[-1] == "formula"]
        path = rng.choice(formulas if formulas and rng.random() < 0.3 else paths)
        inner, what = header, path[-1]
        try:
            for key in path[:-1]:
                inner = inner[key]
            inner[what] = other(rng, inner[what], path)
            if what == "formula" and rng.random() < 0.9:
                (described if "n_rows" in inner else settled)(rng, inner)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            continue  # the other change has taken it away
    if "spec" in header and rng.random() < 0.9:
        with suppress(ValueError, TypeError, RecursionError):
            run = run_of(header["spec"], arrays)
            header["run"] = run if "run" in header else header.get("run")
    return header, arrays


def forged(rng, message):
    """Return the message with one or two hostile fields, or None where no bytes say it, or too many."""
    header, arrays = changed(rng, message)
    try:
        data = Message(message.kind, header, arrays).to_bytes(None)
    except (ValueError, TypeError, RecursionError):
        return None
    return data if len(data) <= max(LARGEST, 1.3 * message.size) else None


# --- Costs -----------------------------------------------------------------------------------------------------


@contextmanager
def room(size):
    """Let the process take so many bytes more, and no others; a system other than Linux sets no such limit."""
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def peak():
    """Bytes of the process at most since the last call; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def received(door, data):
    """Return "taken", "refused", or the error that is no refusal, of a message at its door."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            door(Message.from_bytes(data))
    except Exception as error:
        own = type(error).__module__.startswith("bayesadmm_np") or type(error) is ValueError
        return "refused" if own else error
    return "taken"


def hostile(count, seed, has_networks=False):
    """Yield for each message that could be made its door, its bytes, what became of it, its seconds and its bytes."""
    known = doors(has_networks)
    names = sorted(known)
    for number in range(count):
        rng = random.Random(10**7 * seed + number)
        name = rng.choice(names)
        message, door = known[name]
        data = forged(rng, message)
        if data is not None:
            peak()
            before, start = peak(), time.process_time()
            found = received(door, data)
            yield name, data, found, time.process_time() - start, peak() - before
