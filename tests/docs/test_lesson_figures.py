"""The pictures of the course show what their captions claim."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILMS = ("boundary.gif", "circuit.gif", "idea.gif")

pytest.importorskip("matplotlib")


def load(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


idea, animate = load("idea"), load("animate")


def assert_closed(scene):
    """Forces cancel, factors multiply to the posterior, and a force is the slope of its factor's logarithm."""
    # the two families stop where rounds=60 leaves them: (3/4)^59 of the first error, 4e-8 of some 10
    assert scene.force_left < 1e-6
    assert scene.factor_left < 1e-6
    product = np.prod([idea.bell(natural) for natural in scene.factors], axis=0)
    spacing = idea.GRID[1] - idea.GRID[0]
    # the grid cuts the posterior's tails: sd .35, and 12 of them on either side
    np.testing.assert_allclose(product / (product.sum() * spacing), idea.bell(scene.posterior), atol=1e-6)
    linear, precision = scene.factors.T
    np.testing.assert_allclose(linear - precision * scene.copies, scene.forces, atol=1e-6)


def test_forces_cancel_where_bells_multiply():
    last = idea.scenes()[-1]
    assert_closed(last)
    without = replace(last, factors=last.factors[:-1], forces=last.forces[:-1], copies=last.copies[:-1])
    with pytest.raises(AssertionError):
        assert_closed(without)


def test_the_bells_of_least_squares_are_final_after_a_round_and_the_forces_are_not():
    first, last = (idea.scenes()[number] for number in (1, -1))
    np.testing.assert_allclose(first.factors, last.factors, rtol=1e-12)
    assert abs(first.forces - last.forces).max() > 1.0


def test_the_films_of_lesson_4_show_its_runs(monkeypatch):
    monkeypatch.setattr(animate, "ROUNDS", 60)
    admm, bayes = animate.of_lesson().values()
    assert (admm.step.method.rho, bayes.step.method.rho) == (1.0, 1.0)
    for run in (admm, bayes):
        _, path = animate.again(run)
        # the lesson stops at 1e-8, the film goes on
        np.testing.assert_allclose(path[run.rounds].mean, run.posterior.mean, atol=1e-12)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(path[admm.rounds].mean, admm.posterior.mean, atol=1e-12)


@pytest.mark.parametrize("name", FILMS)
def test_the_animations_are_small_and_have_frames(name):
    image_module = pytest.importorskip("PIL.Image")
    path = DOCS / "figures" / name
    assert path.stat().st_size < 1_500_000
    with image_module.open(path) as image:
        assert image.n_frames >= 10


@pytest.mark.slow
@pytest.mark.parametrize("script", ["animate", "idea"])
def test_the_animations_are_what_the_scripts_draw(script, tmp_path, monkeypatch):
    image_module = pytest.importorskip("PIL.Image")
    module = load(script)
    monkeypatch.setattr(module, "FIGURES", tmp_path)
    monkeypatch.setattr(module, "PICTURES", tmp_path, raising=False)
    module.main()
    drawn = sorted(tmp_path.glob("*.gif"))
    assert drawn
    for path in drawn:
        with image_module.open(path) as new, image_module.open(DOCS / "figures" / path.name) as old:
            assert (new.n_frames, new.size) == (old.n_frames, old.size)
