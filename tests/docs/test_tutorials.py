"""The tutorials are scripts that anybody can run: with the package and nothing else, in an empty folder."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpmcmc

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
SCRIPTS = sorted(FOLDER.glob("*.py"))
PACKAGES = {"dpmcmc", "numpy", "matplotlib", "jax", "numpyro", "pandas", "arviz", "scipy"}

# Runs a script with the installed package in sys.path and nothing of the repository; names what it opens for writing
# anywhere else than in its own folder. (What a C library opens is not seen: for that the home folder is looked at.)
LAUNCHER = """
import os, runpy, sys
package, script, *allowed = sys.argv[1:]
sys.path.append(package)

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        mode, flags = arguments[1] or "", arguments[2] or 0
        writes = set(mode) & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR)
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if writes and not path.startswith((*allowed, "/dev/")):
            os.write(2, f"OUTSIDE: {path}\\n".encode())

sys.addaudithook(watch)
runpy.run_path(script, run_name="__main__")
"""


def run(text, folder):
    """Run a script in an empty folder; return the finished process, and what it wrote into its home."""
    places = {name: folder / name for name in ("work", "home", "temporary", "cache")}
    for place in places.values():
        place.mkdir(parents=True)
    (places["work"] / "script.py").write_text(text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX", "XLA"))}
    environment |= {
        "MPLBACKEND": "Agg",
        "HOME": str(places["home"]),
        "TMPDIR": str(places["temporary"]),
        "XDG_CACHE_HOME": str(places["cache"]),
        "MPLCONFIGDIR": str(places["cache"]),
    }
    allowed = [f"{place.resolve()}{os.sep}" for name, place in places.items() if name != "home"]
    package = str(Path(dpmcmc.__file__).parents[1])
    command = [sys.executable, "-I", "-B", "-c", LAUNCHER, package, "script.py", *allowed]
    done = subprocess.run(
        command, cwd=places["work"], env=environment, capture_output=True, text=True, check=False, timeout=1800
    )
    return done, list(places["home"].iterdir())


def test_there_are_tutorials():
    assert {"adult.py", "hierarchical.py", "several_rows.py", "banana.py"} <= {script.name for script in SCRIPTS}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_runs_in_an_empty_folder(script, tmp_path):
    done, at_home = run(script.read_text(encoding="utf-8"), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "OUTSIDE" not in done.stderr
    assert at_home == []
    assert done.stdout.strip()


def test_twins_of_the_empty_folder(tmp_path):
    """Nothing of the repository can be imported, and what is written elsewhere is seen; the folder itself is free."""
    done, _ = run("open('mine.txt', 'w').close(); print('fine')", tmp_path / "fine")
    assert (done.returncode, done.stdout, "OUTSIDE" in done.stderr) == (0, "fine\n", False)
    done, _ = run("import tests.exact", tmp_path / "repository")
    assert "ModuleNotFoundError" in done.stderr
    done, at_home = run("import pathlib; (pathlib.Path.home() / 'x').write_text('')", tmp_path / "home")
    assert "OUTSIDE" in done.stderr
    assert [path.name for path in at_home] == ["x"]


def problems(text):
    """Say what is wrong with the form of a tutorial."""
    found, tree = [], ast.parse(text)
    if not re.match(r"# %% \[markdown\]\n# # \S", text):
        found.append("does not begin with a title")
    if re.search(r"^\s*[%!]|get_ipython", text, flags=re.MULTILINE):
        found.append("uses magics")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            names = {module.partition(".")[0] for module in modules}
            if relative or names - PACKAGES - sys.stdlib_module_names:
                found.append(f"imports {', '.join(modules)}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("dpmcmc.sample", "dpmcmc.resume"):
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if given.get("progress") != "False":
                found.append("shows a progress bar")
            if "seed" in given:
                found.append("is seeded, and so not private")
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_its_form(script):
    assert problems(script.read_text(encoding="utf-8")) == []


def test_twins_of_the_form():
    title = "# %% [markdown]\n# # Title\n\n# %%\n"
    assert problems(f"{title}import numpy as np\nfrom pathlib import Path\n") == []
    assert problems("# %%\nimport dpmcmc\n") == ["does not begin with a title"]
    assert problems(f"{title}get_ipython().run_line_magic('x', '')\n") == ["uses magics"]
    assert problems(f"{title}import seaborn\n") == ["imports seaborn"]
    assert problems(f"{title}from . import studies\n") == ["imports "]
    assert problems(f"{title}dpmcmc.sample(model, data)\n") == ["shows a progress bar"]
    assert problems(f"{title}dpmcmc.sample(model, seed=1, progress=False)\n") == ["is seeded, and so not private"]
    with pytest.raises(SyntaxError):
        problems(f"{title}%matplotlib inline\n")


def test_the_index_lists_all_of_them():
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    tree = re.search(r"```\{toctree\}\n(.*?)```", text, flags=re.DOTALL)[1]
    listed = [line for line in tree.split() if not line.startswith(":")]
    assert sorted(listed) == [script.stem for script in SCRIPTS]
    assert set(re.findall(r"\]\((\w+)\.py\)", text)) == set(listed)
