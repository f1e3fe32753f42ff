"""The recipes of CONTRIBUTING.md name files that exist, and in them names that stand there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROOMS = ("queries", "models", "samplers")  # what recipes are about: files there are named alone
FOLDERS = (
    ROOT,
    ROOT / "src",
    ROOT / "src/dpmcmc",
    ROOT / "tests/samplers",
    *(ROOT / "src/dpmcmc" / room for room in ROOMS),
)


def find(name):
    """The file that a name stands for, or None."""
    return next((folder / name for folder in FOLDERS if (folder / name).is_file()), None)


def missing_files(text):
    return {name for name in re.findall(r"`([\w/.-]+\.py|docs/[\w/.-]+\.md)`", text) if find(name) is None}


def missing_names(text):
    """What a recipe says stands in a file, "`NAME` in `file.py`", and does not."""
    pairs = re.findall(r"`([A-Za-z_]\w*)`\s+(?:in|of)\s+`([\w/]+\.py)`", text)
    assert pairs
    return {pair for pair in pairs if not re.search(rf"\b{pair[0]}\b", find(pair[1]).read_text(encoding="utf-8"))}


def test_files_and_names_exist():
    assert missing_files(RECIPES) == set()
    assert missing_names(RECIPES) == set()


def test_twin_what_has_moved_is_noticed():
    assert missing_files("copy `samplers/nowhere.py` and `gradient.py`") == {"samplers/nowhere.py"}
    assert missing_names("`SAMPLERS` of `audit/runs.py`, `NOWHERE` in `audit/runs.py`") == {
        ("NOWHERE", "audit/runs.py")
    }
