"""The examples that can be run as they are come near the exact posterior."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpmcmc
from tests.exact import LIMIT, distance, moments

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_example(name):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def exact_logistic(X, y, guess):
    """Posterior moments of intercept and coefficients: the rows are few kinds, each seen many times."""
    kinds, counts = np.unique(np.column_stack([X, y]).astype(float), axis=0, return_counts=True)
    design, sign = np.column_stack([np.ones(len(kinds)), kinds[:, :-1]]), 2 * kinds[:, -1] - 1

    def log_density(theta):
        return -counts @ np.logaddexp(0.0, -sign * (design @ theta)) - 0.5 * np.sum((theta / 2.5) ** 2)

    return moments(log_density, guess)


@pytest.mark.slow
def test_the_cluster_example_comes_near_the_exact_posterior():
    """Three means and three sds; false failures: 1e-5, see `LIMIT`. Seeded, as the data are."""
    example = load_example("cluster")
    data = example.read_part(0, 1)
    posterior = example.draw(data, example.STEPS, seed=1)
    mean, sd = exact_logistic(data["X"], data["y"], example.GUESS)
    draws = [posterior.draws["intercept"], *np.moveaxis(posterior.draws["coefficients"], -1, 0)]
    for place, values in enumerate(draws):
        assert distance(values, mean[place], sd[place]) < LIMIT
        # The twin: 1.5 posterior sds off, or twice as wide, would be seen.
        assert distance(values + 1.5 * sd[place], mean[place], sd[place]) > LIMIT
        assert distance(mean[place] + 2.0 * (values - mean[place]), mean[place], sd[place]) > LIMIT


def test_parts_of_the_rows_make_up_the_whole():
    example = load_example("cluster")
    whole, parts = example.read_part(0, 1), [example.read_part(process, 3) for process in range(3)]
    for name, values in whole.items():
        assert np.array_equal(values, np.concatenate([part[name] for part in parts]))


def test_two_processes_draw_what_one_draws(tmp_path):
    """The documented script, as it is: two processes, each with its part of the rows, against one with all."""
    for processes in (0, 2):
        command = [sys.executable, str(EXAMPLES / "cluster.py"), "--seed", "3", "--out", f"{processes}.nc"]
        command += ["--steps", "30"]
        command += ["--local", str(processes)] if processes else []
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        result = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300, env=environment
        )
        assert result.returncode == 0, result.stderr[-2000:]
    one, two = (dpmcmc.Posterior.load(tmp_path / name) for name in ("0.nc", "2.nc"))
    assert one.draws["coefficients"].std() > 0.0
    for name, values in one.draws.items():
        assert np.array_equal(values, two.draws[name])


def test_exact_moments_are_right():
    """Against a Gaussian posterior in closed form, in two correlated coordinates."""
    covariance = np.array([[4.0, 1.5], [1.5, 1.0]]) * 1e-4
    precision = np.linalg.inv(covariance)
    mean, sd = moments(lambda x: -0.5 * (x - [1.0, 2.0]) @ precision @ (x - [1.0, 2.0]), [1.01, 2.01])
    np.testing.assert_allclose(mean, [1.0, 2.0], atol=1e-9)
    np.testing.assert_allclose(sd, [0.02, 0.01], rtol=1e-5)


def test_distance_is_about_one_for_correlated_draws():
    """Gaussian draws, each correlated by 0.8 with the one before: 400 runs of 4 × 500, mean square near 1.

    The largest of two standard normal squares has mean 1.64 and sd 1.7 (here less, since the sd's error is taken too
    large); the mean of 400 is above 1.64 + 6·1.7/20 with probability below 1e-8. Draws taken for independent, the twin,
    are off ninefold.
    """
    generator = np.random.default_rng(3)
    noise = generator.normal(size=(500, 400, 4))
    draws = np.empty_like(noise)
    draws[0] = noise[0]
    for step in range(1, 500):
        draws[step] = 0.8 * draws[step - 1] + 0.6 * noise[step]
    runs = np.moveaxis(draws, 0, -1)
    assert np.mean([distance(run, 0.0, 1.0) ** 2 for run in runs]) < 1.64 + 6 * 1.7 / 20
    assert np.mean(runs.mean(axis=(1, 2)) ** 2 * 2000) > 1.64 + 6 * 1.7 / 20


def test_an_existing_file_is_named_before_anything_is_spent(tmp_path):
    import subprocess
    import sys

    (tmp_path / "old.nc").write_text("draws")
    command = [sys.executable, str(EXAMPLES / "cluster.py"), "--out", str(tmp_path / "old.nc")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "exists" in result.stderr
