"""The command line: its numbers against the privacy functions, its JSON, its errors and its help."""

import json
import math
import random
import subprocess
import sys
from fractions import Fraction
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import dpmcmc
from dpmcmc import cli, demo, privacy
from dpmcmc.errors import BudgetExceededError

RUNNER = CliRunner()


def run(*arguments, code=0):
    result = RUNNER.invoke(cli.app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def answer(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def refusal(*arguments, code=2):
    """Run a command that must fail; return its one line on stderr."""
    result = run(*arguments, code=code)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")
    return lines[0]


def real_budget(epsilon, delta):
    """A budget as a run has it."""
    budget = privacy.Budget(epsilon, delta)
    budget.reserve_lattice()
    return budget


class TestAccountAllRecords:
    def test_the_known_number(self):
        given = answer("account", "--epsilon", 4, "--delta", 1e-6)
        assert given["mu"] == pytest.approx(0.3510036484162, rel=1e-11)
        assert given["mu"] == privacy.gaussian_mu(4.0, 1e-6)

    def test_back_to_delta_and_epsilon(self):
        mu = privacy.gaussian_mu(4.0, 1e-6)
        assert answer("account", "--mu", repr(mu), "--epsilon", 4)["delta"] == privacy.gaussian_delta_bound(mu, 4.0)
        assert answer("account", "--mu", repr(mu), "--delta", 1e-6)["epsilon"] == privacy.gaussian_epsilon(mu, 1e-6)

    @pytest.mark.parametrize("num_queries", [1, 3, 500])
    def test_noise_multiplier_never_costs_more_than_the_budget(self, num_queries):
        given = answer("account", "--epsilon", 4, "--delta", 1e-6, "--num-queries", num_queries)
        multiplier = given["noise_multiplier"]
        assert num_queries / (2 * multiplier**2) == pytest.approx(real_budget(4.0, 1e-6).total, rel=1e-14)
        back = answer("account", "--noise-multiplier", repr(multiplier), "--num-queries", num_queries, "--delta", 1e-6)
        assert back["epsilon"] <= 4.0
        assert back["epsilon"] == pytest.approx(4.0, rel=2e-5)  # the reserve for discrete noise is the difference

    def test_noise_multiplier_buys_the_queries_of_a_real_run(self):
        """300 budgets: τ of `account` buys exactly k queries of a real budget, and k of `account` for that τ is k."""
        generator = random.Random(3)
        for _ in range(300):
            epsilon, delta = 10.0 ** generator.uniform(-2.0, 1.5), 10.0 ** -generator.uniform(2.0, 15.0)
            num_queries = int(10.0 ** generator.uniform(0.0, 5.0))
            given = cli._account_all(epsilon, delta, None, None, num_queries)
            cost = Fraction(privacy.gaussian_cost(given["noise_multiplier"]))
            budget = real_budget(epsilon, delta)
            assert budget.can_spend(num_queries * cost)
            assert not budget.can_spend((num_queries + 1) * cost)
            assert cli._account_all(epsilon, delta, None, given["noise_multiplier"], None)["num_queries"] == num_queries

    def test_twin_the_closed_form_would_buy_fewer(self):
        multiplier = math.sqrt(500 / (2 * privacy.gaussian_mu(4.0, 1e-6)))
        assert not real_budget(4.0, 1e-6).can_spend(500 * Fraction(privacy.gaussian_cost(multiplier)))

    def test_cost_of_queries(self):
        given = answer("account", "--noise-multiplier", 20, "--num-queries", 100, "--delta", 1e-6)
        assert given["mu"] == 0.125
        assert given["epsilon"] == privacy.gaussian_epsilon(0.125, 1e-6)

    def test_how_many_queries_fit(self):
        given = answer("account", "--epsilon", 4, "--delta", 1e-6, "--noise-multiplier", 20)
        assert given["num_queries"] == 280
        assert 280 / 800 <= given["mu"] < 281 / 800

    def test_table_tells_given_from_computed(self):
        lines = run("account", "--epsilon", 4, "--delta", 1e-6).stdout.splitlines()
        marks = {line.split()[0]: "computed" in line for line in lines if line.split() and line.split()[0] in "εδμτ"}
        assert marks == {"ε": False, "δ": False, "μ": True, "τ": True}

    @pytest.mark.parametrize(
        ("arguments", "remedy"),
        [
            ([], "give two of"),
            (["--epsilon", 4], "give two of"),
            (["--mu", 1], "give two of"),
            (["--mu", 1, "--noise-multiplier", 2, "--epsilon", 1], "leave one of them out"),
            (["--mu", 1, "--epsilon", 1, "--delta", 1e-6], "leave one out"),
            (["--noise-multiplier", 1, "--num-queries", 2, "--epsilon", 1, "--delta", 1e-6], "leave one out"),
            (["--epsilon", 4, "--delta", 2], "strictly between 0 and 1"),
            (["--epsilon", -1, "--delta", 1e-6], "greater than 0"),
            (["--noise-multiplier", 0, "--delta", 1e-6], "positive"),
            (["--mu", "nan", "--delta", 1e-6], "positive"),
            (["--mu", 1, "--epsilon", 1, "--sampling-prob", 0.1], "leave one group out"),
        ],
    )
    def test_wrong_combinations(self, arguments, remedy):
        assert remedy in refusal("account", *arguments)


class TestAccountBatches:
    MECHANISM = ("--sampling-prob", 0.01, "--noise-ratio", 4)

    @pytest.mark.parametrize("scheme", ["without_replacement", "poisson"])
    def test_delta_and_steps(self, scheme):
        given = answer("account", *self.MECHANISM, "--num-steps", 1000, "--epsilon", 2, "--scheme", scheme)
        assert given["delta"] == privacy.subsampled_delta(4.0, 0.01, 1000, 2.0, scheme=scheme)
        given = answer("account", *self.MECHANISM, "--delta", 1e-6, "--epsilon", 2, "--scheme", scheme)
        assert given["num_steps"] == privacy.subsampled_steps(4.0, 0.01, 2.0, 1e-6, scheme=scheme)

    def test_epsilon_and_noise_ratio_are_safe_and_tight(self):
        given = answer("account", *self.MECHANISM, "--num-steps", 1000, "--delta", 1e-6)
        assert privacy.subsampled_delta(4.0, 0.01, 1000, given["epsilon"]) <= 1e-6
        assert privacy.subsampled_delta(4.0, 0.01, 1000, given["epsilon"] * 0.999) > 1e-6
        given = answer("account", "--sampling-prob", 0.01, "--num-steps", 1000, "--epsilon", 1, "--delta", 1e-6)
        assert privacy.subsampled_delta(given["noise_ratio"], 0.01, 1000, 1.0) <= 1e-6
        assert privacy.subsampled_delta(given["noise_ratio"] * 0.999, 0.01, 1000, 1.0) > 1e-6

    @pytest.mark.parametrize(
        ("arguments", "remedy"),
        [
            (["--noise-ratio", 4, "--num-steps", 10, "--epsilon", 1], "--sampling-prob"),
            (MECHANISM, "missing: --num-steps, --epsilon, --delta"),
            ([*MECHANISM, "--num-steps", 10, "--epsilon", 1, "--delta", 1e-6], "all four are given"),
            (["--sampling-prob", 2, "--noise-ratio", 4, "--num-steps", 10, "--epsilon", 1], "at most 1"),
        ],
    )
    def test_wrong_combinations(self, arguments, remedy):
        assert remedy in refusal("account", *arguments)


class TestPlan:
    COMMON = ("plan", "--num-records", 100_000, "--epsilon", 4)

    @pytest.mark.parametrize(
        ("preset", "sampler", "extra", "total"),
        [
            ("paper-banana", "dp-hmc", ["--leapfrog", "momentum_first"], 377),
            ("paper-gaussian", "dp-hmc", ["--leapfrog", "momentum_first"], 227),
            ("paper-banana", "dp-penalty", [], 2028),
            ("paper-gaussian", "dp-penalty", [], 175),
        ],
    )
    def test_the_paper(self, preset, sampler, extra, total):
        """The numbers of iterations that the paper's authors had at ε = 4, δ = 1e-6."""
        options = ["--preset", preset, "--sampler", sampler, "--no-check-records", *extra]
        given = answer(*self.COMMON, *options)
        assert given["plan"]["total_steps"] == total
        assert given["delta"] == 1e-6
        assert "invalid_count" not in given["plan"]["queries"]

    def test_presets_of_minibatch_samplers(self):
        given = answer(*self.COMMON, "--preset", "paper-gaussian", "--sampler", "dp-sgld")
        assert given["plan"]["mu_total"] is None
        assert given["settings"]["temperature"] == 0.5
        assert given["plan"]["total_steps"] > 2256  # the authors' accountant at ε = 4

    def test_given_options_override_the_preset(self):
        given = answer(*self.COMMON, "--preset", "paper-banana", "--num-leapfrog", 5)
        assert given["settings"]["num_leapfrog"] == 5
        assert given["plan"]["queries"]["gradient"] == 5 * given["plan"]["queries"]["log_ratio"]

    def test_own_settings(self):
        options = ["--sampler", "dp-hmc", "--num-leapfrog", 10, "--ratio-noise", 32, "--gradient-noise", 170]
        given = answer(*self.COMMON, *options)
        sampler = dpmcmc.DPHMC(1.0, 10, 1.0, 1.0, 32.0, 170.0)
        assert given["plan"] == dpmcmc.plan(sampler, num_records=100_000, epsilon=4.0, delta=1e-6).to_dict()

    def test_table(self):
        output = run(*self.COMMON, "--preset", "paper-banana").stdout
        assert "96 iterations in each of 4 chains" in output
        assert "invalid-count" in output
        assert "predicted acceptance" in output
        assert "Note" not in output
        assert "Nothing was spent" in output

    @pytest.mark.parametrize(
        ("arguments", "remedy"),
        [
            ([], "--sampler"),
            (["--sampler", "dp-hmc", "--num-leapfrog", 10], "needs --ratio-noise, --gradient-noise"),
            (["--preset", "paper-banana", "--batch-size", 10], "--batch-size does not belong to dp-hmc"),
            (["--preset", "paper-banana", "--ratio-noise", -1], "ratio_noise"),
            (
                ["--sampler", "dp-penalty", "--ratio-noise", 30, "--dimension", 3],
                "needs --proposal-scale, --ratio-clip; give it, or no --dimension",
            ),
        ],
    )
    def test_wrong_combinations(self, arguments, remedy):
        assert remedy in refusal(*self.COMMON, *arguments)

    def test_what_deserves_a_second_thought_is_said(self):
        options = ["--sampler", "dp-penalty", "--ratio-noise", 30, "--proposal-scale", 9, "--ratio-clip", 9]
        output = run(*self.COMMON, *options, "--dimension", 3, "--delta", 1e-4).stdout
        assert "nothing can move" in output
        assert "at least 1/n" in output
        given = answer(*self.COMMON, *options, "--dimension", 3, "--delta", 1e-4)
        assert len(given["plan"]["notes"]) == 2
        assert given["plan"]["predicted_acceptance"] < 0.01

    def test_a_budget_that_buys_nothing_is_an_error(self):
        line = refusal(*self.COMMON, "--sampler", "dp-penalty", "--ratio-noise", 0.5, code=1)
        assert "pays for 0 steps" in line


class TestShell:
    def test_version(self):
        assert run("--version").stdout == f"dpmcmc {dpmcmc.__version__}\n"

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ([], ["account", "plan", "demo", "budget"]),
            (["account"], ["--noise-multiplier", "--sampling-prob", "Examples", "safe side"]),
            (["plan"], ["--preset", "--gradient-noise", "Examples", "Nothing is spent"]),
            (["demo"], ["--seed", "not private", "index.html", "synthetic"]),
        ],
    )
    def test_help(self, command, words):
        output = run(*command, "--help").stdout
        assert all(word in output for word in words)

    def test_an_unknown_option_is_a_usage_error(self):
        assert "Traceback" not in run("account", "--epsilonn", 1, code=2).stderr

    def test_errors_of_the_package_have_no_traceback(self, monkeypatch):
        def refuse(*_, **__):
            raise BudgetExceededError("nothing is left;\nstop here")

        monkeypatch.setattr(dpmcmc, "plan", refuse)
        line = refusal(*TestPlan.COMMON, "--preset", "paper-banana", code=1)
        assert line == "Error: nothing is left; stop here"

    def test_interrupt(self, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(dpmcmc, "plan", interrupt)
        stderr = run(*TestPlan.COMMON, "--preset", "paper-banana", code=130).stderr
        assert stderr == "Interrupted; nothing was spent.\n"

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            (
                "interrupted before the first step;\nnothing was spent",
                "Interrupted before the first step; nothing was spent",
            ),
            ("", "Interrupted; no result was written."),
        ],
    )
    def test_an_interrupted_run_says_what_was_spent_if_it_knows(self, text, line, monkeypatch, tmp_path):
        def interrupt(*_, **__):
            raise KeyboardInterrupt(*([text] if text else []))

        monkeypatch.setattr(demo, "planned", lambda settings: SimpleNamespace(num_steps=9))
        monkeypatch.setattr(demo, "run", interrupt)
        result = run("demo", "--json", "--out", tmp_path, code=130)
        assert (result.stdout, result.stderr) == ("", f"{line}\n")

    def test_interrupted_while_options_are_read(self, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(cli.TyperGroup, "make_context", interrupt)
        assert run("account", code=130).stderr == "Interrupted; nothing was spent.\n"

    @pytest.mark.parametrize("module", ["rich.table", "jax", "dpmcmc.samplers"])
    def test_interrupted_while_importing(self, module):
        """Ctrl-C may come at any time; here it comes when a given module is looked for."""
        program = f"""
import sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["dpmcmc", "plan", "--preset", "paper-banana", "--num-records", "1000", "--epsilon", "1"]
from dpmcmc.cli import main
main()
"""
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert (result.returncode, result.stdout) == (130, "")
        assert result.stderr == "Interrupted; nothing was spent.\n"

    def test_a_bug_is_not_hidden(self, monkeypatch):
        def fail(*_, **__):
            raise RuntimeError("a bug")

        monkeypatch.setattr(dpmcmc, "plan", fail)
        result = RUNNER.invoke(cli.app, list(map(str, [*TestPlan.COMMON, "--preset", "paper-banana"])))
        assert isinstance(result.exception, RuntimeError)


HEAVY = ("jax", "jaxlib", "numpyro", "dp_accounting", "opendp", "scipy", "matplotlib", "arviz", "xarray", "pandas")
COMMANDS = [
    [],
    ["account"],
    ["plan"],
    ["demo"],
    ["benchmark"],
    ["reproduce"],
    ["reproduce", "comparison"],
    ["reproduce", "clipping"],
    ["reproduce", "report"],
]


def loaded_by(program):
    """Which of the heavy packages a program loads; the modules are counted, never the seconds."""
    ending = f"\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program + ending], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


class TestLazyImports:
    def test_importing_the_package_loads_nothing_heavy(self):
        assert loaded_by("import dpmcmc; dir(dpmcmc); dpmcmc.__version__") == "[]"

    def test_twin_using_it_does(self):
        assert "jax" in loaded_by("import dpmcmc; dpmcmc.sample")

    def test_help_loads_nothing_heavy(self):
        program = f"""
from dpmcmc.cli import app
for command in {COMMANDS!r}:
    try:
        app([*command, "--help"])
    except SystemExit as stopped:
        assert stopped.code == 0, command
"""
        assert loaded_by(program) == "[]"

    def test_gaussian_accounts_need_neither_jax_nor_dp_accounting(self):
        program = (
            "from dpmcmc import cli\ncli.app(['account', '--epsilon', '4', '--delta', '1e-6'], standalone_mode=False)"
        )
        assert loaded_by(program) == "['scipy']"

    def test_public_names_are_all_there(self):
        assert set(dpmcmc.__all__) <= set(dir(dpmcmc))
        for name in dpmcmc.__all__:
            assert getattr(dpmcmc, name) is not None
        with pytest.raises(AttributeError, match="no attribute 'nothing_of_ours'"):
            dpmcmc.nothing_of_ours  # noqa: B018


class TestDemo:
    def test_an_unwritable_folder_is_refused_before_sampling(self, tmp_path, monkeypatch):
        def never(*_, **__):
            raise AssertionError("sampling started")

        monkeypatch.setattr(demo, "run", never)
        in_the_way = tmp_path / "file"
        in_the_way.write_text("not a folder")
        line = refusal("demo", "--out", in_the_way / "deeper", code=1)
        assert "choose another --out" in line

    def test_fast_and_epsilon_exclude_each_other(self, tmp_path):
        assert "leave one of them out" in refusal("demo", "--fast", "--epsilon", 2, "--out", tmp_path)

    def test_too_small_a_budget_is_refused(self, tmp_path):
        line = refusal("demo", "--epsilon", 0.01, "--num-records", 100, "--out", tmp_path)
        assert "raise --epsilon" in line

    @pytest.mark.parametrize(("options", "epsilon"), [([], 15.0), (["--fast"], 4.0), (["--epsilon", 2], 2.0)])
    def test_budget(self, options, epsilon, tmp_path, monkeypatch):
        asked = []
        monkeypatch.setattr(demo, "planned", lambda settings: asked.append(settings) or SimpleNamespace(num_steps=9))
        monkeypatch.setattr(demo, "run", lambda settings, progress: asked.append(progress))
        monkeypatch.setattr(demo, "write", lambda outcome, folder: {})
        monkeypatch.setattr(demo, "report", lambda outcome, files: {"ok": math.pi})
        assert answer("demo", *options, "--out", tmp_path) == {"ok": math.pi}
        assert asked == [demo.Settings(epsilon=epsilon), False]
