"""The command line: its numbers against the privacy functions, its JSON, its errors and its help."""

import json
import math
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


class TestAccountAllRecords:
    def test_the_known_number(self):
        given = answer("account", "--epsilon", 4, "--delta", 1e-6)
        assert given["mu"] == pytest.approx(0.3510036484162, rel=1e-11)
        assert given["mu"] == privacy.gaussian_mu(4.0, 1e-6)

    def test_back_to_delta_and_epsilon(self):
        mu = privacy.gaussian_mu(4.0, 1e-6)
        assert answer("account", "--mu", repr(mu), "--epsilon", 4)["delta"] == privacy.gaussian_delta(mu, 4.0)
        assert answer("account", "--mu", repr(mu), "--delta", 1e-6)["epsilon"] == privacy.gaussian_epsilon(mu, 1e-6)

    @pytest.mark.parametrize("num_queries", [1, 3, 500])
    def test_noise_multiplier_never_costs_more_than_the_budget(self, num_queries):
        given = answer("account", "--epsilon", 4, "--delta", 1e-6, "--num-queries", num_queries)
        multiplier = given["noise_multiplier"]
        assert num_queries / (2 * multiplier**2) == pytest.approx(given["mu"], rel=1e-14)
        back = answer("account", "--noise-multiplier", repr(multiplier), "--num-queries", num_queries, "--delta", 1e-6)
        assert back["epsilon"] <= 4.0
        assert back["epsilon"] == pytest.approx(4.0, rel=1e-10)

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
        given = answer(*self.COMMON, "--preset", preset, "--sampler", sampler, *extra)
        assert given["plan"]["total_steps"] == total
        assert given["delta"] == 1e-6

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
        assert "Nothing was spent" in output

    @pytest.mark.parametrize(
        ("arguments", "remedy"),
        [
            ([], "--sampler"),
            (["--sampler", "dp-hmc", "--num-leapfrog", 10], "needs --ratio-noise, --gradient-noise"),
            (["--preset", "paper-banana", "--batch-size", 10], "--batch-size does not belong to dp-hmc"),
            (["--preset", "paper-banana", "--ratio-noise", -1], "ratio_noise"),
        ],
    )
    def test_wrong_combinations(self, arguments, remedy):
        assert remedy in refusal(*self.COMMON, *arguments)


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
        assert "Interrupted" in run(*TestPlan.COMMON, "--preset", "paper-banana", code=130).stderr

    def test_a_bug_is_not_hidden(self, monkeypatch):
        def fail(*_, **__):
            raise RuntimeError("a bug")

        monkeypatch.setattr(dpmcmc, "plan", fail)
        result = RUNNER.invoke(cli.app, list(map(str, [*TestPlan.COMMON, "--preset", "paper-banana"])))
        assert isinstance(result.exception, RuntimeError)


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
