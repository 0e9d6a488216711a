"""What is known by name: registries refuse a second owner of a name, and plugins are loaded once."""

import importlib.metadata
import inspect
import sys

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np._registry import PLUGINS, Registry, UnknownNameError, load_plugins, nearest
from bayesadmm_np.splitting.step import Step


def test_a_name_has_one_owner_and_an_unknown_one_is_told_the_nearest():
    registry = Registry("shape")
    things = [object(), object()]
    for name, thing in zip(("Square", "Circle"), things, strict=True):
        assert registry.register(thing, name=name) is registry.register(thing, name=name) is thing
    assert list(registry.items()) == list(zip(("Square", "Circle"), things, strict=True))
    assert [registry.name_of(thing) for thing in (things[1], object())] == ["Circle", None]
    for thing, options in ((object(), {"name": "Circle"}), (object(), {}), (things[0], {"name": ""})):
        with pytest.raises(ValueError, match="a shape"):
            registry.register(thing, **options)
    assert list(registry) == ["Square", "Circle"]
    for name in ("circel", "CIRCLE", "Circl"):
        with pytest.raises(UnknownNameError, match=f"no shape '{name}'; did you mean 'Circle'") as caught:
            registry[name]
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, KeyError)
        assert registry.get(name) is None
    assert nearest("zz", registry) is None
    with pytest.raises(UnknownNameError, match=r"^there is no family \['Beta'\]"):
        ba.families.FAMILIES[["Beta"]]


@pytest.mark.parametrize(
    ("registry", "module", "base"),
    [
        (ba.families.FAMILIES, ba.families, ba.families.ExponentialFamily),
        (ba.losses.LOSSES, ba.losses, ba.losses.Loss),
        (ba.losses.RULES, ba.losses, ba.losses.Rule),
        (ba.clients.SOLVERS, ba.clients, ba.clients.Solver),
        (ba.methods.DUAL_RULES, ba.methods, ba.methods.DualRule),
        (ba.methods.SCHEDULES, ba.methods, ba.methods.Schedule),
    ],
    ids=lambda value: getattr(value, "what", ""),
)
def test_everything_public_is_registered(registry, module, base):
    """A family, loss, rule or solver that its module shows and that can be made has a name."""
    shown = [thing for name in module.__all__ if isinstance(thing := getattr(module, name), type)]
    concrete = {kind.__name__ for kind in shown if issubclass(kind, base) and not kind.__abstractmethods__}
    assert concrete == set(registry)
    assert all(registry[name] is getattr(module, name) for name in concrete)


def test_every_method_is_registered():
    shown = {name: getattr(ba.methods, name) for name in ba.methods.__all__}
    steps = {name for name, one in shown.items() if inspect.isclass(one) and issubclass(one, Step)}
    made = steps | {name for name, one in shown.items() if inspect.isfunction(one)}
    made.remove("recommended")  # it chooses a row, and is none
    assert made == set(ba.methods.TABLE)
    assert all(ba.methods.TABLE[name] is getattr(ba.methods, name) for name in made)


PLUGIN = """
from bayesadmm_np import methods

calls = []

def Halfway(rho=1.0):
    return methods.Method("Halfway", rho, rho, alpha=0.5)

def register():
    calls.append(1)
    methods.TABLE.register(Halfway)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch, registries):
    """Install modules with entry points of the group, for one test."""

    def install(**values):
        folder = tmp_path / "strangers-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1\n")
        lines = "".join(f"{name} = {value}\n" for name, value in values.items())
        (folder / "entry_points.txt").write_text(f"[{PLUGINS}]\n{lines}")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()

    (tmp_path / "stranger_good.py").write_text(PLUGIN)
    (tmp_path / "stranger_bad.py").write_text("raise RuntimeError('no such luck')\n")
    load_plugins.cache_clear()
    yield install
    load_plugins.cache_clear()
    for name in ("stranger_good", "stranger_bad"):
        sys.modules.pop(name, None)


def test_plugins_are_loaded_once(installed):
    installed(good="stranger_good:register")
    assert load_plugins() == ("good",)
    assert load_plugins() == ("good",)
    assert sys.modules["stranger_good"].calls == [1]
    assert ba.methods.TABLE["Halfway"]().alpha == 0.5


def test_a_module_is_a_plugin_too(installed):
    installed(good="stranger_good")
    assert load_plugins() == ("good",)
    assert sys.modules["stranger_good"].calls == []


def test_plugins_that_fail_are_named_in_one_warning(installed):
    installed(bad="stranger_bad", good="stranger_good:register", lost="stranger_good:nothing")
    with pytest.warns(RuntimeWarning) as caught:
        assert load_plugins() == ("good",)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.startswith("plugins that could not be loaded: bad (stranger_bad): RuntimeError: no such luck; lost ")
    assert "Halfway" in ba.methods.TABLE


def test_a_method_of_a_plugin_is_known_to_estimators_and_commands(installed):
    from bayesadmm_np.cli._methods import knobs, make_method
    from bayesadmm_np.cli._options import MethodSettings
    from bayesadmm_np.estimators import FederatedLogisticRegression

    installed(good="stranger_good:register")
    load_plugins()
    assert make_method(MethodSettings(method="Halfway", rho=2.0)).rho == 2.0
    assert knobs("Halfway") == ("rho",)
    X, y, site = np.array([[0.0], [1.0], [0.5], [-1.0]]), [0, 1, 1, 0], [0, 0, 1, 1]
    own = FederatedLogisticRegression(1.0, method="Halfway").fit(X, y, client=site)
    known = FederatedLogisticRegression(1.0, method=ba.methods.PVI()).fit(X, y, client=site)
    # both runs stop at a Fisher length of 1e-6 a parameter from the pooled fit, and standard deviations are below two
    np.testing.assert_allclose(own.coef_, known.coef_, atol=1e-4)
    assert own.method == "Halfway"
