"""How the site is built (`make docs`): Sphinx with MyST-NB, which runs every snippet and fetches nothing.

A page may be Markdown, a MyST notebook (Markdown whose ``code-cell`` blocks are run) or, in ``tutorials/``, a Python
script in jupytext's percent format. Cells of a page run in order, in one folder of its own. A cell may begin with
``%%bash`` or with ``%%writefile NAME``: that line is run, and not shown.
"""

import os
import re
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from nbclient import NotebookClient
from sphinx.application import Sphinx
from sphinx.util import logging

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import public  # noqa: E402

ROOT = HERE.parent
log = logging.getLogger(__name__)

project = "dpmcmc"
author = "The dpmcmc authors"
copyright = "the dpmcmc authors, Apache-2.0"
release = metadata.version("dpmcmc")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
]
exclude_patterns = ["_build", "conf.py", "public.py"]
suppress_warnings = ["config.cache"]  # a custom reader of notebooks cannot be pickled; nothing is lost

# ------------------------------------------------------------------ how it looks

html_theme = "furo"
html_title = "dpmcmc"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

# ------------------------------------------------------------------ Markdown and cells

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"  # a page whose cells have not changed is not run again, but by `make docs`
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_execution_in_temp = True  # each page in an empty folder
nb_execution_show_tb = True
NotebookClient.coalesce_streams = True  # what a command prints is one piece
nb_output_stderr = "show"  # a run may be flagged: one in hundreds is for nothing
# Cells that begin with %%bash find `dpmcmc` where Python is, and have no colours (Jupyter asks for some).
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm, which NumPyro imports, asks for widgets
os.environ["IPYKERNEL_CELL_NAME"] = "cell"  # in warnings; else the path of a temporary file
os.environ["BASH_ENV"] = str(HERE / "cells.sh")
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# ------------------------------------------------------------------ the reference

autodoc_typehints = "none"  # the docstrings say it
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]  # several names may share a line
default_role = "literal"
# A name of this package that leads nowhere is an error; those of others cannot be looked up without the network.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!dpmcmc\.).*")]


def _check_reference(app: Sphinx, environment: Any) -> None:
    documented = set(environment.domaindata["py"]["objects"])
    for problem in public.left_out(documented) + public.without_docstring():
        log.warning("%s", problem)  # which -W makes an error


def _find_elsewhere(app: Sphinx, environment: Any, node: Any, content: Any) -> Any:
    """Resolve a name under which an object lives inside the package to the one under which it is documented."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("dpmcmc."):
        return None
    meant = _object(target)
    domain, documented = environment.get_domain("py"), environment.domaindata["py"]["objects"]
    for name, value in public.names().items():
        if value is meant and meant is not None and name in documented:
            return domain.resolve_xref(environment, node["refdoc"], app.builder, "obj", name, node, content)
    return content if meant is not None else None  # it is there, but not public: a name without a link


def _bars_are_absolute_values(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Escape |x|, which reStructuredText takes for a substitution, wherever that is not inside a formula or code."""
    inside = -1  # the indentation of the block that is left alone
    for number, line in enumerate(lines):
        indentation = len(line) - len(line.lstrip())
        if inside >= 0 and line.strip() and indentation <= inside:
            inside = -1
        if line.lstrip().startswith(".. math::") or line.rstrip().endswith("::"):
            inside = indentation
        elif inside < 0 and not line.lstrip().startswith((">>>", "... ")):
            parts = re.split(r"(`+[^`]*`+)", line)
            lines[number] = "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in parts)


def _object(name: str) -> Any:
    for split in range(name.count("."), 0, -1):
        parts = name.split(".")
        try:
            value: Any = import_module(".".join(parts[:split]))
            for part in parts[split:]:
                value = getattr(value, part)
        except (ImportError, AttributeError):
            continue
        return value
    return None


# ------------------------------------------------------------------ pages of the repository that are pages of the site

PROJECT_PAGES = ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")


def _copy_project_pages(app: Sphinx) -> None:
    folder = HERE / "project"
    folder.mkdir(exist_ok=True)
    for name in PROJECT_PAGES:
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/", "](../", text)
        text = re.sub(rf"\]\(({'|'.join(PROJECT_PAGES)})\.md", lambda found: f"]({found[1].lower()}.md", text)
        page = folder / f"{name.lower()}.md"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def _link_project_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links of a page to the repository's own pages lead to their copies here."""
    if "](../" in source[0]:
        pages = rf"\]\(\.\./({'|'.join(PROJECT_PAGES)})\.md"
        source[0] = re.sub(pages, lambda found: f"](project/{found[1].lower()}.md", source[0])


# ------------------------------------------------------------------ cells that are no Python


def _hide_magic(app: Sphinx, tree: nodes.document) -> None:
    languages = {".yaml": "yaml", ".py": "python", ".csv": "text"}
    for block in list(tree.findall(nodes.literal_block)):
        first, _, rest = block.rawsource.partition("\n")
        if first == "%%bash":
            language, shown = "bash", rest
        elif first.startswith("%%writefile "):
            language, shown = languages.get(Path(first.split()[1]).suffix, "text"), rest
        else:
            continue
        new = nodes.literal_block(shown, shown, language=language, classes=block["classes"])
        block.replace_self(new)
        if first.startswith("%%writefile "):
            caption = nodes.paragraph("", "", nodes.literal(text=first.split()[1]), classes=["file-name"])
            new.parent.insert(new.parent.index(new), caption)


# ------------------------------------------------------------------ formulas as MathML: no script, no font, no network


def _formula(writer: Any, node: nodes.Element) -> None:
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def _display(writer: Any, node: nodes.Element) -> None:
    text = node.astext()
    if "\\\\" in text or "&" in text:
        text = f"\\begin{{aligned}}{text}\\end{{aligned}}" if "\\begin" not in text else text
    writer.body.append(f'<div class="formula">{tex2mathml(text, as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Add what the configuration alone cannot say."""
    app.add_html_math_renderer("mathml", (_formula, None), (_display, None))
    app.config.html_math_renderer = "mathml"
    app.connect("builder-inited", _copy_project_pages)
    app.connect("source-read", _link_project_pages)
    app.connect("doctree-read", _hide_magic)
    app.connect("autodoc-process-docstring", _bars_are_absolute_values)
    app.connect("missing-reference", _find_elsewhere)
    app.connect("env-check-consistency", _check_reference)
    return {"parallel_read_safe": False}
