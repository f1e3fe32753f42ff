"""docs/models.md: its models are what it says they are."""

import numpy as np
from jax.scipy.stats import norm
from scipy import stats

import dpmcmc
from tests.docs.pages import cell_with

PAGE = "models.md"


def test_the_student_regression_is_the_same_in_numpyro_in_jax_and_in_scipy(capsys):
    namespace = {"norm": norm}
    for words in ("dpmcmc.Schema(", "def heavy_tails", "def regression", "student = dpmcmc.Model("):
        exec(cell_with(PAGE, words), namespace)
    assert namespace["votes"].dimension == 3
    exec(cell_with(PAGE, "numpyro_model ="), namespace)
    point, record = namespace["point"], namespace["record"]
    mean = 0.1 + 0.2 * record["age"] + 0.3 * record["smoker"]
    likelihood = stats.t.logpdf(record["pressure"], 4.0, mean, point["scale"])
    prior = stats.norm.logpdf([0.1, 0.2, 0.3], 0.0, 2.5).sum() + stats.halfnorm.logpdf(point["scale"])
    printed = [[float(number) for number in line.split()] for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == 2
    for found in printed:
        np.testing.assert_allclose(found, [likelihood, prior], rtol=1e-4)
    # The twin: another number of degrees of freedom would be noticed.
    assert abs(stats.t.logpdf(record["pressure"], 3.0, mean, point["scale"]) / likelihood - 1.0) > 1e-3


def test_what_may_not_be_computed_is_refused_and_what_is_written_instead_is_not(capsys):
    namespace = {"norm": norm, "np": np, "dpmcmc": dpmcmc}
    exec("import jax\nimport jax.numpy as jnp", namespace)
    exec(cell_with(PAGE, "def moving_average("), namespace)
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    assert said["moving_average_by_slices"] == "may be computed"
    for name, word in {
        "moving_average": "slices",
        "python_branch": "Python control flow",
        "one_number_too_many": "scalar",
        "printing": "jax.debug.print",
        "eigenvalues": "eigh",
    }.items():
        assert word in said[name] or word in str(said), name
    exec(cell_with(PAGE, "# one for each record"), namespace)
    assert "data that come in this way are not protected" in capsys.readouterr().out
