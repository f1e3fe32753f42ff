"""What the pages say exists: names, commands, options, targets, files. (Snippets are run by `make docs`.)"""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dpmcmc.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/reference").glob("*.md")])


def load_public():
    specification = importlib.util.spec_from_file_location("public", ROOT / "docs/public.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


public = load_public()


def documented():
    """What the pages of the reference ask Sphinx for."""
    found = set()
    for page in (ROOT / "docs/reference").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        found |= set(re.findall(r"^\.\. auto(?:class|function):: (\S+)", text, flags=re.MULTILINE))
        data = re.findall(r"^\.\. py:data:: (\S+)\n   :module: (\S+)", text, flags=re.MULTILINE)
        found |= {f"{module}.{name}" for name, module in data}
        modules = re.findall(r"^\.\. automodule:: (\S+)(?:\n   :exclude-members: (.*))?", text, flags=re.MULTILINE)
        for module, left_out in modules:
            names = {name for name in public.names() if name.rpartition(".")[0] == module}
            found |= names - {f"{module}.{name.strip()}" for name in left_out.split(",")}
    return found


def test_every_public_name_is_in_the_reference():
    assert len(documented()) > 80
    assert public.left_out(documented()) == []
    # The twin: one name fewer is noticed.
    assert public.left_out(documented() - {"dpmcmc.sample"}) == [
        "dpmcmc.sample is public and stands nowhere in the reference"
    ]


def test_every_public_name_says_what_it_is():
    assert public.without_docstring() == []

    class Mute:
        def method(self):
            pass

    assert public.without_docstring({"Mute": Mute}) == [
        "Mute is public and has no docstring",
        "Mute.method is public and has no docstring",
    ]


def commands(text):
    """All commands of the package that a page shows, in blocks and between backquotes."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"`([^`\n]+)`", text)
    for line in [*lines, *spans]:
        if found := re.match(r"(?:\S*/)?dpmcmc (?=[a-z-])(.*)", line.strip()):
            yield found[1]


def unknown(command):
    """The first word of a command that `dpmcmc` does not know, or None."""
    current = typer.main.get_command(app)
    words = shlex.split(command, comments=True)
    while words and hasattr(current, "commands"):
        word = words.pop(0)
        if word.startswith("-"):
            words.insert(0, word)
            break
        if "|" in word:  # create|show|verify
            missing = [name for name in word.split("|") if name not in current.commands]
            return missing[0] if missing else None
        if word not in current.commands:
            return word
        current = current.commands[word]
    options = {name for parameter in current.params for name in parameter.opts} | {"--help", "-h"}
    given = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return next((word for word in given if word not in options), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page):
    found = [(command, unknown(command)) for command in commands(page.read_text(encoding="utf-8"))]
    assert [pair for pair in found if pair[1]] == []


def test_twin_unknown_commands_are_noticed():
    text = "`dpmcmc sampel x`\n\n```console\ndpmcmc plan --nonsense 3\ndpmcmc ledger create|open people.ledger\n```\n"
    assert [unknown(command) for command in commands(text)] == ["--nonsense", "open", "sampel"]


TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_exist(page):
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"(?:^|`)make ((?:[a-z][a-z-]* ?)+)(?:`|$|\s+#)", text, flags=re.MULTILINE)
    assert {name for line in lines for name in line.split()} <= TARGETS


def test_all_targets_are_found():
    assert {"demo", "test", "docs", "lint"} <= TARGETS
    assert "make demo" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    """Also of the pages that are not on the site. (Anchors are checked when it is built.)"""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not leads_to(page.parent / link).exists()]
    assert missing == []


def leads_to(target):
    """The file that a link means: docs/project/ has copies of the repository's own pages, made by the build."""
    return ROOT / f"{target.stem.upper()}.md" if target.parent == ROOT / "docs/project" else target


@pytest.mark.slow
def test_a_broken_link_and_a_failing_snippet_stop_the_build(tmp_path):
    """The twins of `make docs`: a small site with one of each."""
    pytest.importorskip("myst_nb", reason="the site's tools are in the extra `docs`")

    def build(page):
        folder = tmp_path / "site"
        folder.mkdir(exist_ok=True)
        (folder / "conf.py").write_text("extensions = ['myst_nb']\nnb_execution_raise_on_error = True\n")
        (folder / "index.md").write_text(page)
        command = [sys.executable, "-m", "sphinx", "-W", "-E", "-q", "-b", "html", str(folder), str(tmp_path / "html")]
        return subprocess.run(command, capture_output=True, text=True, check=False).returncode

    header = "---\nfile_format: mystnb\nkernelspec: {name: python3}\n---\n"
    assert build("# A page\n") == 0
    assert build("# A page\n[link](nowhere.md)\n") != 0
    assert build(header + "# A page\n```{code-cell} python\n1 / 0\n```\n") != 0
