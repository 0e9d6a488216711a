"""What a case leaves behind, its file, and the comparison of two of them.

A record is a dict: arrays and floats are compared to a tolerance, anything else (texts, counts, lists) exactly.
An area is a dict of records; its file is a JSON text and one vector of numbers.
"""

import json
import os
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"

SWITCH = "GOLDENS"
"""GOLDENS=bits in the environment asks for equality bit for bit: for one machine, where the data were made."""


def bits_wanted():
    return os.environ.get(SWITCH) == "bits"


def is_number(value):
    return isinstance(value, float | np.ndarray | np.floating)


def save(area, records):
    index, numbers, start = {}, [], 0
    for case, record in records.items():
        plain, places = {}, {}
        for key, value in record.items():
            if is_number(value):
                array = np.asarray(value, dtype=float)
                places[key] = [start, *array.shape]
                numbers.append(array.ravel())
                start += array.size
            else:
                plain[key] = value
        index[case] = [plain, places]
    DATA.mkdir(exist_ok=True)
    lines = (f"{json.dumps(case)}: {json.dumps(entry, ensure_ascii=False)}" for case, entry in index.items())
    (DATA / f"{area}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    np.savez_compressed(DATA / f"{area}.npz", numbers=np.concatenate([np.empty(0), *numbers]))


def load(area):
    index = json.loads((DATA / f"{area}.json").read_text(encoding="utf-8"))
    with np.load(DATA / f"{area}.npz") as archive:
        numbers = archive["numbers"]
    records = {}
    for case, (plain, places) in index.items():
        arrays = {}
        for key, (start, *shape) in places.items():
            arrays[key] = numbers[start : start + int(np.prod(shape))].reshape(shape)
        records[case] = {**plain, **arrays}
    return records


def error(old, new, each=False):
    """Largest difference, relative to the largest entry, or `each` to its own, or to one where that is smaller.

    NaN equals NaN.
    """
    old, new = np.asarray(old, dtype=float), np.asarray(new, dtype=float)
    if old.shape != new.shape:
        return np.inf
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    if same.all():
        return 0.0
    if not (np.isfinite(old[~same]).all() and np.isfinite(new[~same]).all()):
        return np.inf
    scale = np.maximum(1.0, np.abs(old[~same]) if each else np.abs(old[np.isfinite(old)]).max())
    return float((np.abs(old[~same] - new[~same]) / scale).max())


def missing(old, new):
    return {key: (value, new.get(key)) for key, value in old.items() if key not in new or new[key] != value}


def aligned(old, new):
    """The numbers of a JSON text in the places of the older one, among them NaN where it has none."""
    if "places" not in old or "places" not in new:
        return new
    known = dict(zip(new["places"], new["numbers"], strict=True))
    numbers = np.array([known.get(place, np.nan) for place in old["places"]])
    return {**new, "places": old["places"], "numbers": numbers}


def differences(old, new, tolerance, exact=False):
    """Return what differs, as sentences; in exact mode also the last bit, and what is kept for that mode alone."""
    found, new = [], aligned(old, new)
    for key, value in old.items():
        if key.startswith("bits ") and not exact:
            continue
        if key not in new:
            found.append(f"{key}: missing")
        elif key == "plain":  # the JSON of a command may have more keys
            lost = missing(value, new[key])
            found += [f"{key}: lost or changed {lost}"[:600]] if lost else []
        elif is_number(value):
            allowed = 0.0 if exact else tolerance(key)
            off = error(value, new[key], each=key.endswith("numbers"))
            if off > allowed:
                found.append(f"{key}: differs by {off:.1e}, allowed {allowed:.1e}")
        elif json.loads(json.dumps(new[key])) != value:
            found.append(f"{key}: {new[key]!r}, was {value!r}"[:600])
    return found
