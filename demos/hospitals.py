"""Three hospitals' patients, simulated, and a fourth's: the CSV files with which README's commands can be tried.

`python -m bayesadmm_np.demos.hospitals DIR` copies the files to DIR, from a clone or from an installed package.
"""

import argparse
import csv
import io
import os
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "hospitals"
WARDS = ("cardiac", "medical", "surgical")
SITES = {  # rows, mean age, log odds beside the others', shares of the wards
    "ghent": (240, 68.0, 0.0, (0.20, 0.50, 0.30)),
    "lund": (160, 61.0, -0.4, (0.10, 0.35, 0.55)),
    "porto": (200, 65.0, 0.3, (0.35, 0.45, 0.20)),
    "new": (180, 64.0, 0.0, (0.25, 0.45, 0.30)),
}
BASE, AGE, MALE, AGE_OF_MEN = -1.6, 0.055, 0.35, 0.02  # log odds at 65 years; of a year, of men, of a year of a man
WARD = {"cardiac": 0.5, "medical": 0.0, "surgical": -0.7}


def simulate(seed=2024):
    """Return the text of each hospital's file: who died, by age, sex and ward."""
    rng, texts = np.random.default_rng(seed), {}
    for name, (rows, mean_age, shift, shares) in SITES.items():
        age = np.clip(np.rint(rng.normal(mean_age, 13.0, rows)), 18, 97)
        male = rng.random(rows) < 0.52
        ward = rng.choice(WARDS, rows, p=shares)
        years = age - 65.0
        logit = BASE + shift + AGE * years + male * (MALE + AGE_OF_MEN * years) + np.array([WARD[one] for one in ward])
        died = rng.random(rows) < 1.0 / (1.0 + np.exp(-logit))
        file = io.StringIO()
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("died", "age", "sex", "ward"))
        table.writerows(zip(died.astype(int), age.astype(int), np.where(male, "m", "f"), ward, strict=True))
        texts[name] = file.getvalue()
    return texts


def main():
    """Copy the files, or simulate those of this folder anew; a file that is there already stays as it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="DIR", help="folder to write to; created if it does not exist")
    parser.add_argument("--simulate", action="store_true", help="simulate the files in place of copying them")
    given = parser.parse_args()
    if not given.folder:
        parser.error("DIR is empty; name a folder, such as hospitals, or . for this one.")
    texts = simulate() if given.simulate else {name: (FOLDER / f"{name}.csv").read_bytes().decode() for name in SITES}
    paths = {Path(given.folder) / f"{name}.csv": text.encode() for name, text in texts.items()}
    there = [path for path in paths if os.path.lexists(path)]  # a link that leads nowhere, too
    if other := [path for path in there if not (path.is_file() and path.read_bytes() == paths[path])]:
        parser.error(f"DIR has {', '.join(path.name for path in other)} of its own; name another folder.")
    try:
        Path(given.folder).mkdir(parents=True, exist_ok=True)
        for path, content in paths.items():
            if path not in there:
                path.write_bytes(content)
            print(path)
    except OSError as error:
        parser.error(f"DIR: {given.folder!r} cannot be written to ({error.strerror}); name another folder.")


if __name__ == "__main__":
    main()
