"""docs/results.md names every sentence with which the code speaks against a result, and none that it cannot say."""

import ast
import math
import re
from pathlib import Path

import numpy as np
import pytest

import dpmcmc
from tests.docs.pages import DOCS

PACKAGE = Path(dpmcmc.__file__).parent
FILES = ("tuning/laplace.py", "tuning/auto.py", "inference/tuned.py", "results/diagnostics.py")
FUNCTIONS = (("inference/stepwise.py", "misfit"),)


def text_of(node):
    """Return a string, or an f-string with … where it has a number."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def sentences(tree):
    """Return all texts of a program that are whole sentences, but for docstrings and what is raised."""
    left_out = set()
    for node in ast.walk(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or isinstance(node, ast.Raise | ast.JoinedStr):
            left_out |= {id(part) for part in ast.walk(node) if part is not node}
    texts = [text_of(node) for node in ast.walk(tree) if id(node) not in left_out]
    return [text for text in texts if len(text) > 40 and text[-1] in ".…" and not text[0].isspace()]


def said():
    found = [text for file in FILES for text in sentences(ast.parse((PACKAGE / file).read_text(encoding="utf-8")))]
    for file, name in FUNCTIONS:
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        (function,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
        found += sentences(function)
    return found


def named():
    """Return the words in italics of the page's tables of reasons, and of the paragraph about notes below them."""
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    section = text.split("## Reasons and remedies")[1].split("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ") and "*" in line]
    notes = section.split("Notes that speak against nothing:")[1].split("\n\n")[0]
    return [" ".join(words.split()) for part in (*first_cells, notes) for words in re.findall(r"\*(.+?)\*", part, re.S)]


def test_every_sentence_of_the_code_is_on_the_page_and_every_one_on_the_page_is_in_the_code():
    texts, words = said(), named()
    assert len(texts) > 30
    assert [text for text in texts if not any(one in text for one in words)] == []
    assert [one for one in words if not any(one in text for text in texts)] == []


def test_twin_a_new_reason_is_noticed():
    program = 'def judge(reasons):\n    "Say."\n    reasons.append(f"The moon is {1.0} too full for a result. Wait.")\n'
    (text,) = sentences(ast.parse(program))
    assert not any(one in text for one in named())


@pytest.mark.parametrize(("num_records", "sds"), [(100_000, 3.0), (400_000, 6.0)])
def test_one_percent_clipped_is_three_posterior_sds_and_grows_like_the_root_of_n(num_records, sds):
    """Of an exponential likelihood, without chance: scores 1 - x at the quantiles, those beyond 1 % clipped."""
    x = -np.log1p(-(np.arange(num_records) + 0.5) / num_records)
    bound = np.quantile(np.abs(1.0 - x), 0.99)
    low, high = -1.0, 1.0  # of the log-rate, at which the clipped scores 1 - rate · x add up to 0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.clip(1 - np.exp(middle) * x, -bound, bound).sum() > 0 else (low, middle)
    posterior_sd = 1 / math.sqrt(num_records)
    assert sds < low / posterior_sd < 4.0 / 3.0 * sds
