"""Options: each is declared once, with type, help, bounds and choices, and checked once, typed or in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cyclopts import UNSET, Parameter, Token
from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    ValidationError,
)

from .._errors import ArgumentError
from ._terminal import Refused, missing_name

# --- declaring -----------------------------------------------------------------------------------------------


def option(help: str = "", metavar: str | None = None, *, check: Callable[..., Any] | None = None, **more: Any) -> Any:
    """Declare an option: what it is for, how its value is called, what the value must pass, and its choices."""
    words = "|" in (metavar or "")  # a word in place of a number, which the metavar says already
    value = "NAME" if metavar is None and "choices" in more else metavar
    return Parameter(help=help, metavar=value, validator=check, **{"show_choices": not words} | more)


def at_least(least: float) -> Callable[[object, Any], None]:
    """Return a check for numbers from `least` on."""

    def check(_: object, value: Any) -> None:
        if value is not None and not value >= least:
            raise ValueError(f"must be >= {least:g}")

    return check


def _split(kind: Any, tokens: Sequence[Token]) -> tuple[Any, ...]:
    """Read a,b,c; an option that is given twice adds to its list."""
    words = [word.strip() for token in tokens for word in token.value.split(",")]
    if not all(words):
        raise ValueError
    return tuple(get_args(kind)[0](word) for word in words)


Names = Annotated[tuple[str, ...], Parameter(converter=_split, allow_leading_hyphen=True)]


def methods(*others: str) -> tuple[str, ...]:
    """Return the names of all methods, those of plugins too."""
    from ..splitting.methods import TABLE

    return *others, *TABLE


def families(*others: str) -> tuple[str, ...]:
    """Return the names of all Gaussian families."""
    from ..families.gaussians import FAMILIES

    return *others, *FAMILIES


def losses(*others: str) -> tuple[str, ...]:
    """Return the names of all kinds of regression."""
    from ..glm.kinds import KINDS

    return *others, *KINDS


Spread = Parameter(name="*")
"""Marks a parameter that is a dataclass: its fields are options of the command."""

# --- options of several commands ------------------------------------------------------------------------------

Files = Annotated[
    list[Path],
    Parameter(
        name="DATA",
        help="One CSV file with a column of sites, or one file for each site (NAME=FILE.csv gives the site a name).",
    ),
]
ModelFile = Annotated[
    Path,
    Parameter(name="MODEL", help="Model file that bayesadmm fit wrote, or the folder of a server whose run has ended."),
]
Level = Annotated[float, option("Probability of the intervals.", "NUMBER")]
KINDS_OF_REGRESSION = f"Kind of regression: {', '.join(losses())}"
Loss = Annotated[str, option(f"{KINDS_OF_REGRESSION}. auto chooses by the values of the target.", "KIND")]
Client = Annotated[str | None, option("Column that names the site of each row, if all rows are in one file.", "COLUMN")]
Drop = Annotated[Names, option("Columns to leave out.", "A,B")]
Categorical = Annotated[
    Names, option("Columns of text or codes. Each level found at any site becomes a 0/1 column.", "A,B")
]
Weights = Annotated[str | None, option("Column of row weights >= 0. A row of weight 2 counts as two rows.", "COLUMN")]
Cluster = Annotated[
    str | None,
    option(
        "Column that names the cluster of each row, for standard errors by cluster. Default: each site is one.",
        "COLUMN",
    ),
]
Meaning = Annotated[
    Literal["frequency", "analytic"],
    option(
        "Meaning of a weight of 2 in --weights. frequency: two equal rows. analytic: one row with half the variance."
    ),
]
Tests = Annotated[
    Literal["none", "wald", "lr", "score"],
    option(
        "Print tests of the terms below the coefficients: Wald tests, or likelihood ratios or Rao's score tests, which "
        "take fits without each term (F for least squares)."
    ),
]
TestType = Annotated[
    Literal["II", "III"],
    option(
        "Type of these tests. II: a term beside all terms that do not contain it, as car's Anova of R. III: beside all "
        "other columns, also those of its interactions."
    ),
]
ReferenceClass = Annotated[
    str | None, option("Class with which the others are compared. Default: the first class.", "CLASS")
]
Trials = Annotated[
    str | None,
    option(
        "Column of numbers of trials, for logistic regression. The target holds the events among them, or their "
        "shares. Replaces --weights.",
        "COLUMN",
    ),
]
Formula = Annotated[
    str | None,
    option(
        "Target and predictors, as in 'died ~ age*sex + C(ward) + offset(log(days))'. Replaces --target, "
        "--features, --drop and --categorical. The sites agree on levels by name.",
        "TEXT",
    ),
]
NoDropNA = Annotated[bool, option("Refuse rows with missing values; by default they are left out and counted.")]
NoIntercept = Annotated[bool, option("Fit no intercept.")]
Json = Annotated[bool, option("Print one JSON object on standard output, and nothing else.")]
NoProgress = Annotated[bool, option("Show no progress bar.")]


# a class and its subclasses stand in one file: where annotations are read, they are texts of that file


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """Format of a CSV file."""

    separator: Annotated[
        str,
        option("Character between cells; write tab for a tab.", "CHAR", show_default=lambda _: "as the header has it"),
    ] = ""
    decimal: Annotated[str, option("Character before decimals.", "CHAR", show_default=lambda _: "a point")] = "."
    encoding: Annotated[str, option("Encoding of the text, such as latin-1 or cp1252.", "NAME")] = "utf-8"
    na: Annotated[Names, option("Words that mean a missing value, besides an empty cell and NA.", "A,B")] = ()


PLAIN = FileSettings()


@dataclass(frozen=True, kw_only=True)
class ColumnSettings(FileSettings):
    """Target and predictors: a formula, or a list of columns, for which a formula stands too."""

    target: Annotated[str, option("Column to predict; needed without --formula.", "COLUMN")] = ""
    formula: Formula = None
    features: Annotated[Names, option("Columns to use as predictors. Default: all remaining columns.", "A,B,C")] = ()
    drop: Drop = ()
    categorical: Categorical = ()


@dataclass(frozen=True, kw_only=True)
class RowSettings(ColumnSettings):
    """Target, predictors, and what else is known of each row."""

    weights: Weights = None
    trials: Trials = None
    cluster: Cluster = None
    offset: Annotated[str | None, option("Column to add to the linear predictor, with coefficient 1.", "COLUMN")] = None
    exposure: Annotated[
        str | None, option("Column of times or populations at risk; its logarithm is added to the offset.", "COLUMN")
    ] = None
    no_dropna: NoDropNA = False


@dataclass(frozen=True, kw_only=True)
class LevelSettings:
    """Choices about the levels of all sites, and about their intercepts."""

    reference: Annotated[
        Names, option("Reference level of each factor. Default: its first level.", "COLUMN=LEVEL,…")
    ] = ()
    ignore_case: Annotated[bool, option("Treat levels that differ only in case or blanks as one level.")] = False
    as_written: Annotated[
        Names,
        option(
            "Columns whose values are right as they are, though sites share none of them, or differ in zeros.", "A,B"
        ),
    ] = ()
    site_intercepts: Annotated[bool, option("Fit an intercept for each site.")] = False


@dataclass(frozen=True, kw_only=True)
class DataSettings(LevelSettings, RowSettings):
    """Rows of all sites, for a fit."""

    client: Client = None
    loss: Loss = "auto"


@dataclass(frozen=True, kw_only=True)
class CompareSettings(ColumnSettings):
    """Rows of all sites, for a comparison of methods."""

    client: Client = None
    loss: Loss = "auto"


@dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """Model, inference and accuracy of a fit."""

    inference: Annotated[
        Literal["auto", "likelihood", "posterior"],
        option(
            "What to fit. likelihood: maximum likelihood, as in R's glm; with a prior, the posterior mode. posterior: "
            "the variational posterior. auto: likelihood, unless another option needs a posterior."
        ),
    ] = "auto"
    prior_unit: Annotated[
        Literal["unit", "sd"],
        option(
            "Unit of the coefficients under the prior. unit: per unit of a column. sd: per pooled standard deviation."
        ),
    ] = "unit"
    penalize_intercept: Annotated[
        bool,
        option("Give the intercept the prior of the coefficients. Methods without a learned covariance need it."),
    ] = False
    penalty: Annotated[
        Literal["firth"] | None,
        option("firth: add Firth's penalty, which gives finite estimates for separated data.", "firth"),
    ] = None
    weight_meaning: Meaning = "frequency"
    tol: Annotated[
        float, option("Accuracy of the fit: largest residual of the pooled stationarity condition at its end.")
    ] = 1e-8
    rounds: Annotated[int, option("Maximum number of rounds.", check=at_least(1))] = 100


@dataclass(frozen=True, kw_only=True)
class RuleSettings:
    """Rules by the owner of a site for what may be sent; None is the default of `federation.DisclosureRules`."""

    minimum_rows: Annotated[
        int | None, option("Minimum number of rows at this site. Default: 10.", check=at_least(0))
    ] = None
    minimum_count: Annotated[
        int | None,
        option(
            "Minimum number of rows of a level. The server is not told a rarer level, and refuses its column unless it "
            "runs with --drop-withheld. It is also the minimum number of rows behind a sum. Default: 3.",
            check=at_least(0),
        ),
    ] = None
    minimum_class_count: Annotated[
        int | None,
        option("Minimum number of rows of a class of the target, if the site has any. Default: 3.", check=at_least(0)),
    ] = None
    most_parameters: Annotated[float | None, option("Maximum number of parameters per row. Default: 0.33.")] = None
    minimum_sites: Annotated[int | None, option("Minimum number of sites in a run. Default: 3.", check=at_least(0))] = (
        None
    )
    budget: Annotated[
        float | None,
        option(
            "Numbers that the site may send, in all its runs together, for each number that its rows hold. Default: 1."
        ),
    ] = None
    most_evaluations: Annotated[
        float | None, option("Maximum number of evaluations of the same rows by `site evaluate`. Default: 1.")
    ] = None
    allow: Annotated[Names, option("Columns that a run may use. Default: the columns of this command.", "A,B,…")] = ()
    peers: Annotated[
        Names,
        option(
            "Public keys of the sites that count for --minimum-sites beside this one, as `site init` prints them. "
            "Default: all sites of the run, which a server can invent.",
            "KEY,KEY",
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class SiteConfig(RuleSettings, RowSettings):
    """Arguments of `site init`, which the site keeps."""

    data: Annotated[Path, option("CSV file of this site's rows.", "FILE.csv")]
    name: Annotated[str, option("Name of this site; no two sites may share a name.", "NAME")]
    loss: Annotated[str, option(f"{KINDS_OF_REGRESSION}.", "KIND")]
    no_intercept: NoIntercept = False
    noise_variance: Annotated[
        float | None,
        option("Noise variance of a linear regression. Default: estimated for a likelihood, 1 for a posterior."),
    ] = None
    refuse: Annotated[
        Names, option("Questions of the server that this site does not answer; docs/security.md lists them.", "A,B,…")
    ] = ()
    privacy_clip: Annotated[
        float | None, option("Longest update, in standard deviations of the posterior; a longer one is cut to C.", "C")
    ] = None
    privacy_noise: Annotated[
        float | None, option("Standard deviation of the noise on every answer, in units of 2C.", "Z")
    ] = None
    privacy_rounds: Annotated[int | None, option("Largest number of rounds of a run that this site joins.", "T")] = None


@dataclass(frozen=True, kw_only=True)
class FitSettings(InferenceSettings):
    """Settings of a fit."""

    family: Annotated[
        str,
        option(
            "Family of the posterior; auto: full, if the method allows it. The others depend on the units of the "
            "columns: write scale(x) in the formula.",
            choices=families("auto"),
        ),
    ] = "auto"
    prior_precision: Annotated[
        float | Literal["evidence"],
        option("Prior precision of each coefficient but the intercept; 0 means no prior.", "NUMBER|evidence"),
    ] = 0.0
    noise_variance: Annotated[
        float | Literal["auto", "unbiased", "evidence"],
        option(
            "Noise variance of linear regression. Default: unbiased (from residuals) for a likelihood, evidence for "
            "a posterior.",
            "NUMBER|unbiased|evidence",
        ),
    ] = "auto"
    no_intercept: NoIntercept = False
    covariance: Annotated[
        Literal["model", "quasi", "HC0", "HC1", "HC2", "HC3", "cluster"],
        option(
            "Standard errors of the table. model: the model's. quasi: the model's, scaled by the dispersion of counts. "
            "HC0 to HC3: robust, by row. cluster: robust, by cluster. The model file has the sums for all."
        ),
    ] = "model"


@dataclass(frozen=True, kw_only=True)
class RunSettings(LevelSettings, InferenceSettings):
    """Settings of a run, beside its method."""

    family: Annotated[str, option("Family of the posterior.", choices=families())] = "full"
    prior_precision: Annotated[
        float, option("Prior precision of each coefficient but the intercept; 0 means no prior.", check=at_least(0))
    ] = 0.0
    tests: Tests = "none"
    test_type: TestType = "II"
    safeguard: Annotated[bool, option("Raise α just enough that the fit of every site has a minimum.")] = False
    sums_only: Annotated[
        bool,
        option("Use only sums over sites, for fit and certificate; the table then has no deviance and no shares."),
    ] = False
    drop_withheld: Annotated[bool, option("Leave out rows of levels that are too rare for a site to name.")] = False
    reference_site: Annotated[str | None, option("Site whose intercept is the intercept of the model.", "NAME")] = None
    seed: Annotated[
        int | None, option("Seed, also a part of the run's id. Default: drawn at random, so that the id is unique.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """Method that a command runs."""

    method: Annotated[str, option("Method; docs/methods.md lists them.", choices=methods("auto"))] = "auto"
    rho: Annotated[float | None, option("ρ > 0, the penalty of methods such as ADMM. Default: the method's.")] = None
    gamma: Annotated[
        float | Literal["rows"] | None,
        option(
            "γ in (0, 1], the damping of methods such as PVI. rows: each site's share of the rows (PVI only).",
            "NUMBER|rows",
        ),
    ] = None
    accelerate: Annotated[bool, option("Extrapolate from the last rounds, by Anderson mixing.")] = False


def levels_of(pairs: Sequence[str]) -> dict[str, str]:
    """Return levels by column, of COLUMN=LEVEL,…."""
    levels = {}
    for pair in pairs:
        column, mark, level = pair.partition("=")
        if not (column and mark and level):
            advice = "the class with which others are compared is --reference-class, of the table"
            raise ArgumentError("reference", "must be COLUMN=LEVEL", repr(pair), advice)
        levels[column] = level
    return levels


# --- checking what a file says --------------------------------------------------------------------------------


def expected(hint: Any) -> str:
    """Return what a value of a type is, in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return expected(parts[0])
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin is tuple:
        return "names, as in a,b,c"
    if parts:
        return ", or ".join(expected(kind) for kind in parts if kind is not NoneType)
    return {bool: "true or false", int: "an integer", float: "a number", str: "a text", Path: "a path"}[hint]


def read_toml(path: Path, argument: str = "") -> dict[str, Any]:
    """Read a TOML file."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{argument}{path} is not TOML: {error}") from error


Settings = TypeVar("Settings")


def make_settings(kind: Callable[..., Settings], plain: Any) -> Settings:
    """Make a dataclass of a table of a file: keys must be known, and values of their types."""
    if not isinstance(plain, Mapping):
        raise ValueError("must be a table.")
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    for key in plain:
        if key not in known:
            raise ValueError(missing_name("there is no key", key, known))
    for name, item in known.items():
        if name not in plain and item.default is MISSING and item.default_factory is MISSING:
            raise ValueError(f"{name} is missing.")
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{key: converted(value, hints[key], key) for key, value in plain.items()})


def converted(value: Any, hint: Any, name: str, example: str = "") -> Any:
    """Return a value as a type has it, or say what is expected; nothing is quietly converted but integers to floats."""
    import msgspec  # here: it takes longer to load than all else, and only files need it

    try:
        return msgspec.convert(value, hint, dec_hook=lambda kind, text: kind(text))  # paths are written as texts
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"{name} must be {expected(hint)}{example}, got {value!r}.") from error


def fill_from_config(_: object, __: object, arguments: Iterable[Any]) -> None:
    """Fill the options that were not typed from the file that --config names, under the same checks."""
    named = {argument.name: argument for argument in arguments if argument.parse}
    config = named.get("--config")
    if config is None or not config.tokens:
        return
    path = Path(config.tokens[0].value)
    # options that are fields of a dataclass are settings; the others, such as --out, are of one call
    known = {name.removeprefix("--"): argument for name, argument in named.items() if argument.keys}
    seen = set()
    for key, value in read_toml(path, "--config: ").items():
        name = key.replace("_", "-")
        if name not in known:
            spelled = [item.replace("-", "_") if "_" in key else item for item in known]
            raise Refused(f"--config: {path} has {missing_name('the unknown key', key, spelled)}")
        if name in seen:
            raise Refused(f"--config: {path} has the key {key!r} twice.")
        seen.add(name)
        argument = known[name]
        lists = get_origin(argument.hint) is tuple and isinstance(value, str)
        try:
            found = value if lists else converted(value, argument.hint, key)
        except ValueError as error:
            raise Refused(f"--config: {error}") from error
        if not argument.tokens:
            text = {"value": found} if isinstance(found, str) else {"implicit_value": found}
            argument.append(Token(keyword=f"--config: {key}", source=str(path), **text))


def require_numbers(_: object, __: object, arguments: Iterable[Any]) -> None:
    """Refuse what the parser would take for a number: none for a number that may be left out, 1.5 for an integer."""
    for argument in arguments:
        kinds = {argument.hint, *get_args(argument.hint)}
        for token in argument.tokens:
            none = token.value.casefold() in ("none", "null") and NoneType in kinds and str not in kinds
            if none or (int in kinds and not token.value.lstrip("+-").isdecimal() and token.implicit_value is UNSET):
                raise CoercionError(argument=argument, token=token, target_type=argument.hint)


# --- saying what was refused ----------------------------------------------------------------------------------


def refusal(error: CycloptsError) -> str:
    """Return one sentence that names the option, what it must be, and what it was."""
    if isinstance(error, UnknownOptionError):
        names = [name for argument in error.argument_collection for name in argument.names]
        given = error.token.keyword or error.token.value
        if given.lstrip("-").upper() in names:
            return f"there is no option {given!r}; {given.lstrip('-').upper()} stands without one."
        options = [name for name in names if name.startswith("-")]
        return missing_name("there is no option", given, options, "--help lists them")
    if isinstance(error, UnknownCommandError) and error.app and error.unused_tokens:
        names = [name for name in error.app if not name.startswith("-")]
        return missing_name("there is no command", error.unused_tokens[0], names)
    argument = error.argument
    if argument is None:
        cure = "put a value with blanks, such as a formula, in double quotes, and options after all files and folders"
        return f"{error.unused_tokens[0]!r} is one argument too many; {cure}." if error.unused_tokens else str(error)
    token = getattr(error, "token", None) or next(iter(argument.tokens), None)
    name = token.keyword if token and token.keyword else argument.name
    if isinstance(error, MissingArgumentError):
        return f"{name} is missing: {argument.parameter.help}"
    got: Any = token and (token.value if token.implicit_value is UNSET else token.implicit_value)
    if isinstance(error, ValidationError):
        return f"{name} {error.exception_message}, got {got}."
    choices = argument.get_choices()
    if isinstance(error, CoercionError) and choices:
        metavar = argument.parameter.metavar or "NAME"
        what = argument.name.lstrip("-") if metavar == "NAME" else metavar.lower()
        return f"{name}: {missing_name(f'there is no {what}', got, choices)}"
    if isinstance(error, CoercionError):
        return f"{name} must be {expected(argument.hint)}, got {got!r}."
    return str(error)
