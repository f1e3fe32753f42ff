"""Without Typer, Rich and Matplotlib (the extra `cli`) the library works, and what needs them says what to install."""

import subprocess
import sys

import pytest

REMEDY = "pip install 'dpmcmc[cli]'"
# ArviZ 0.x cannot be imported without Matplotlib, so it comes first: what is tested is that nothing of ours needs it.
BEGINNING = """
import sys
import arviz
for name in [*sys.modules, "typer", "rich", "matplotlib"]:
    if name.split(".")[0] in ("typer", "rich", "matplotlib"):
        sys.modules[name] = None
"""


def run(program):
    return subprocess.run([sys.executable, "-c", BEGINNING + program], capture_output=True, text=True, timeout=300)


def test_twin_they_are_blocked():
    for name in ("typer", "rich.table", "matplotlib.figure"):
        assert "ModuleNotFoundError" in run(f"import {name}").stderr


def test_the_library_runs(tmp_path):
    """Every public name, a run with a progress bar asked for, its summary, its page, a file and back."""
    program = f"""
import numpy as np
import dpmcmc
from dpmcmc.results import html_report
for name in dpmcmc.__all__:
    getattr(dpmcmc, name)
sys.stderr.isatty = lambda: True  # a terminal, where the bar would be shown
posterior = dpmcmc.sample(
    dpmcmc.models.Banana(), np.zeros((500, 2)), epsilon=4.0, delta=1e-6, num_steps=8, init=np.zeros((4, 2)),
    sampler=dpmcmc.DPPenalty(proposal_scale=0.1, ratio_bound=1.0, ratio_noise_multiplier=20.0), progress=True,
)
posterior.summary()
assert "Acceptance rate" in html_report(posterior)
again = dpmcmc.Posterior.load(posterior.save({str(tmp_path / "posterior.nc")!r}))
assert np.array_equal(again.draws["theta"], posterior.draws["theta"])
print("done")
"""
    result = run(program)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done\n"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("from dpmcmc.results import summary_table\nsummary_table(None)", "summary_table needs Rich"),
        ("import dpmcmc.demo.banana", "the demo draws with Matplotlib"),
        (
            "import dpmcmc\ndpmcmc.plan_curve(num_records=1000, epsilon=1.0, dimension=2, delta=1e-6).plot()",
            "a curve is drawn with Matplotlib",
        ),
    ],
)
def test_what_needs_them_names_the_extra(program, what):
    result = run(program)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(f"dpmcmc.errors.ResultError: {what}")
    assert REMEDY in result.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_the_script_says_so_in_one_line(missing):
    """As the installed script does it: import `main`, call it."""
    program = f"""
import sys
sys.modules[{missing!r}] = None
sys.argv = ["dpmcmc", "--version"]
from dpmcmc.cli import main
main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"Error: the command line needs Typer and Rich; {REMEDY}\n"


def test_the_demo_without_matplotlib_says_so_in_one_line(tmp_path):
    program = f"""
import sys
sys.modules["matplotlib"] = None
sys.argv = ["dpmcmc", "demo", "banana", "--out", {str(tmp_path)!r}]
from dpmcmc.cli import main
main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"Error: the demo draws with Matplotlib; install it with {REMEDY}\n"
    assert not list(tmp_path.iterdir())
