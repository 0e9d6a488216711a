import numpy as np
import pytest

CANCER = ["mean radius", "mean texture", "mean smoothness", "mean concavity"]


def cancer():
    """569 rows at three sites; `north` has the large tumours, so that its labels are skewed."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame[[*CANCER, "target"]]
    frame.columns = [name.replace(" ", "_") for name in frame.columns]
    rng = np.random.default_rng(0)
    there = np.where(frame["mean_radius"] > 15, "north", np.where(rng.random(len(frame)) < 0.4, "south", "west"))
    return frame.assign(site=there)


def diabetes():
    from sklearn.datasets import load_diabetes

    frame = load_diabetes(as_frame=True, scaled=False).frame[["age", "bmi", "bp", "target"]]
    return frame.assign(site=np.random.default_rng(0).choice(list("ABC"), len(frame)))


def wine():
    import pandas as pd
    from sklearn.datasets import load_wine

    frame = load_wine(as_frame=True).frame
    names = np.array(["barolo", "grignolino", "barbera"])
    return pd.DataFrame(
        {
            "alcohol": frame["alcohol"],
            "hue": frame["hue"],
            "cultivar": names[frame["target"]],
            "site": np.random.default_rng(0).choice(list("AB"), len(frame)),
        }
    )


FRAMES = {"cancer": cancer, "diabetes": diabetes, "wine": wine}


@pytest.fixture
def csv(tmp_path):
    """Write one of the tables above, or a frame, and return the path."""

    def write(name, frame=None):
        path = tmp_path / f"{name}.csv"
        (FRAMES[name]() if frame is None else frame).to_csv(path, index=False)
        return path

    return write
