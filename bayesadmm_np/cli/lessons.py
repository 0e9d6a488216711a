"""`bayesadmm lessons`: the course as files."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Annotated

from ._options import option
from ._terminal import Refused, needs, note, require_writable

PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (PACKAGE / "lessons", PACKAGE.parent / "docs" / "lessons")
"""The lessons in an installed package, and in a clone."""


def lessons(
    folder: Annotated[Path, option("Folder to copy to; made if it does not exist.", name="DIR")],
    /,
    *,
    notebooks: Annotated[bool, option("Execute the lessons, too, and write each as a notebook.")] = False,
) -> None:
    """Copy the nine lessons, with exercises and solutions, to a folder.

    A lesson is a script that prints and draws. An exercise is a script with functions
    to fill in; run it, and it says what is wrong. A notebook (--notebooks, about a
    minute) has its results in it, and needs no other file to run again.

    Examples of use:
      bayesadmm lessons course
      bayesadmm lessons course --notebooks
      python course/01_admm_from_scratch.py
      python course/exercises/01_a_round.py
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise Refused(f"DIR: {str(folder)!r} exists and is not empty; name another folder.")
    require_writable(folder, "DIR")
    source = next(place for place in PLACES if place.is_dir())
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__", "*.ipynb"), dirs_exist_ok=True)
    note(f"{len(list(folder.glob('0*.py')))} lessons copied to {folder}; begin with 01_admm_from_scratch.py.")
    if notebooks:
        with needs("demos"):
            runpy.run_path(str(folder / "_notebook.py"), run_name="__main__")
