"""The options that commands share, and the settings that options and a TOML file make together."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ._options import DataSettings
from .shared import Refused, missing_name

__all__ = ["DataSettings", "FitSettings", "read_config", "read_damping", "read_settings", "split_names"]


@dataclass(frozen=True, kw_only=True)
class FitSettings(DataSettings):
    """What `bayesadmm fit` does, beyond the data."""

    family: str = "auto"
    method: str = "auto"
    rho: float | None = None
    gamma: float | str | None = None
    accelerate: bool = False
    prior_precision: float | str = 1.0
    noise_variance: float | str = "evidence"
    intercept: bool = True
    penalize_intercept: bool = False
    rounds: int = 100
    tol: float = 1e-8


# --- options of the command line: all of them default to None, so that a file may say what they do not ------

Files = Annotated[
    list[Path], typer.Argument(metavar="DATA", help="One CSV file with a column of sites, or one file a site.")
]
Target = Annotated[str | None, typer.Option("--target", metavar="COLUMN", help="What is predicted.")]
Client = Annotated[
    str | None, typer.Option("--client", metavar="COLUMN", help="Column that names each row's site, in one file.")
]
Features = Annotated[
    str | None, typer.Option("--features", metavar="A,B,C", help="Columns to use. Default: all that are left.")
]
Drop = Annotated[str | None, typer.Option("--drop", metavar="A,B", help="Columns to leave out.")]
Categorical = Annotated[
    str | None,
    typer.Option(
        "--categorical", metavar="A,B", help="Make 0/1 columns of their levels, the pooled levels of all sites."
    ),
]
Weights = Annotated[
    str | None, typer.Option("--weights", metavar="COLUMN", help="Row weights >= 0: weight 2 is two rows.")
]
Loss = Annotated[
    str | None,
    typer.Option(
        "--loss", metavar="auto|logistic|softmax|ridge|poisson", help="Default auto: by the target, and said aloud."
    ),
]
Standardize = Annotated[
    bool | None,
    typer.Option(
        "--standardize/--no-standardize",
        help="Centre and scale numeric columns, and the target of ridge regression, by pooled means and standard "
        "deviations; reports are in the columns' own units all the same. Default: yes.",
        show_default=False,
    ),
]
DropNA = Annotated[
    bool | None,
    typer.Option("--dropna", help="Drop rows with missing values, and say how many.", show_default=False),
]
Separator = Annotated[str | None, typer.Option("--separator", metavar="CHAR", help="Default: a comma. tab is a tab.")]
NA = Annotated[str | None, typer.Option("--na", metavar="A,B", help="Further words for a missing value, such as '?'.")]
Family = Annotated[
    str | None,
    typer.Option("--family", metavar="full|diagonal|fixed|isotropic", help="Default: full, if the method allows it."),
]
MethodName = Annotated[
    str | None, typer.Option("--method", metavar="NAME", help="A row of docs/methods.md, such as PVI. Default: auto.")
]
Rho = Annotated[float | None, typer.Option("--rho", help="ρ of a method that has one, > 0.")]
Gamma = Annotated[
    str | None,
    typer.Option(
        "--gamma",
        metavar="NUMBER|rows",
        help="γ of a method that has one, in (0, 1]; rows: each site's share of the rows, for PVI and its kin.",
        show_default=False,
    ),
]
Accelerate = Annotated[
    bool | None, typer.Option("--accelerate", help="Anderson mixing around the method.", show_default=False)
]
PriorPrecision = Annotated[
    str | None,
    typer.Option(
        "--prior-precision",
        metavar="NUMBER|evidence",
        help="Of each coefficient, in the units of --standardize. Default: 1.",
    ),
]
NoiseVariance = Annotated[
    str | None,
    typer.Option("--noise-variance", metavar="NUMBER|evidence", help="Of ridge regression. Default: evidence."),
]
Intercept = Annotated[
    bool | None, typer.Option("--intercept/--no-intercept", help="Default: with one.", show_default=False)
]
PenalizeIntercept = Annotated[
    bool | None,
    typer.Option(
        "--penalize-intercept",
        help="Give the intercept the prior of the coefficients. Default: no; needed by point methods.",
        show_default=False,
    ),
]
Rounds = Annotated[int | None, typer.Option("--rounds", help="At most. Default: 100.")]
Tol = Annotated[float | None, typer.Option("--tol", help="On the pooled stationarity residual. Default: 1e-8.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.toml", help="Settings by the names of the options; the options win."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else, on standard output.")]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Show a progress bar.")]

# --- values ------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("a text")
    return value


def _names(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise TypeError("names, as in a,b,c")
    return tuple(name.strip() for name in names)


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a number")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TypeError("a whole number from 1 on")
    return value


def _number_or(word: str) -> Callable[[Any], float | str]:
    def read(value: Any) -> float | str:
        if value == word:
            return word
        try:
            return float(value) if isinstance(value, str) else _number(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"a number, or {word}") from error

    return read


READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("target", "client", "weights", "loss", "separator", "family", "method"), _text),
    **dict.fromkeys(("features", "drop", "categorical", "na"), _names),
    **dict.fromkeys(("standardize", "dropna", "accelerate", "intercept", "penalize_intercept"), _switch),
    **dict.fromkeys(("rho", "tol"), _number),
    **dict.fromkeys(("prior_precision", "noise_variance"), _number_or("evidence")),
    "gamma": _number_or("rows"),
    "rounds": _count,
}

Settings = TypeVar("Settings", bound=DataSettings)


def read_settings(kind: type[Settings], typed: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Settings:
    """Check what was typed and what a file says; what was typed wins."""
    names = [item.name for item in dataclasses.fields(kind)]
    values: dict[str, Any] = {}
    for source, said in (("config", config or {}), ("option", typed)):
        for name in names:
            if said.get(name) is None:
                continue
            try:
                values[name] = READERS[name](said[name])
            except TypeError as error:
                spelled = _option(name) if source == "option" else f"--config: {name}"
                raise Refused(f"{spelled} must be {error}, got {said[name]!r}.") from error
    if "target" not in values:
        raise Refused("--target: say which column is predicted.")
    return kind(**values)


def read_config(path: Path) -> dict[str, Any]:
    """Read a TOML file whose keys are the options of `fit`; an unknown key is refused."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"--config: {path} is not TOML: {error}") from error
    known = [item.name for item in dataclasses.fields(FitSettings)]
    config = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in known:
            raise Refused(f"--config: {path} has {missing_name('the unknown key', key, known)}")
        if name in config:
            raise Refused(f"--config: {path} has the key {name!r} twice.")
        config[name] = value
    return config


def read_damping(value: str | None) -> float | str | None:
    """Read what was typed for γ."""
    try:
        return None if value is None else READERS["gamma"](value)
    except TypeError as error:
        raise Refused(f"--gamma must be {error}, got {value!r}.") from error


def split_names(value: str | None) -> tuple[str, ...]:
    """Split a list of names typed as a,b,c."""
    return () if value is None else _names(value)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
