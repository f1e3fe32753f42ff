"""The README's Python runs as it is printed there, and comes near the exact posterior."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[1] / "README.md"


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_first_example_runs_and_is_near_the_exact_mode(capsys):
    """The centre is off by noise that the draws know of: five numbers within 6 of their sds; false failures: 1e-8."""
    namespace = {}
    exec(examples()[0], namespace)
    printed = capsys.readouterr().out
    assert "noise_share" in printed
    assert "Fit: auto: a Gaussian" in printed  # not "converged": one run in hundreds is flagged for nothing
    draws, data = namespace["posterior"].draws, namespace["records"].records
    found = np.column_stack([draws["intercept"].ravel(), draws["coefficients"].reshape(-1, 4)])
    exact = logistic_mode(np.column_stack([np.ones(len(data["y"])), data["X"]]), data["y"])
    apart = np.abs(found.mean(axis=0) - [exact, exact * [1, 1, 0.7, 1, 1]]) / found.std(axis=0)
    assert apart[0].max() < 6.0
    assert apart[1].max() > 6.0  # the twin: a coefficient that is off by 30 % would be noticed


def logistic_mode(design, outcome, prior_scale=2.5):
    """By Newton's method."""
    theta = np.zeros(design.shape[1])
    for _ in range(30):
        chance = 1.0 / (1.0 + np.exp(-design @ theta))
        curvature = (design * (chance * (1.0 - chance))[:, None]).T @ design + np.eye(len(theta)) / prior_scale**2
        theta = theta + np.linalg.solve(curvature, design.T @ (outcome - chance) - theta / prior_scale**2)
    return theta


def test_the_two_commands_come_first():
    text = README.read_text(encoding="utf-8")
    assert text.index("make demo") < text.index("make test") < text.index("```python")
