"""`dpmcmc plan`: its numbers against the paper's and the library's, and what it refuses."""

import pytest

import dpmcmc
from tests.cli.running import answer, refusal, run


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
        options = [
            "--sampler",
            "dp-hmc",
            "--num-leapfrog",
            10,
            "--ratio-noise-multiplier",
            32,
            "--gradient-noise-multiplier",
            170,
        ]
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
            (
                ["--sampler", "dp-hmc", "--num-leapfrog", 10],
                "needs --ratio-noise-multiplier, --gradient-noise-multiplier",
            ),
            (["--preset", "paper-banana", "--batch-size", 10], "--batch-size does not belong to dp-hmc"),
            (["--preset", "paper-banana", "--ratio-noise-multiplier", -1], "ratio_noise_multiplier"),
            (
                ["--sampler", "dp-penalty", "--ratio-noise-multiplier", 30, "--dimension", 3],
                "needs --proposal-scale, --ratio-bound; give it, or no --dimension",
            ),
        ],
    )
    def test_wrong_combinations(self, arguments, remedy):
        assert remedy in refusal(*self.COMMON, *arguments)

    def test_what_deserves_a_second_thought_is_said(self):
        options = ["--sampler", "dp-penalty", "--ratio-noise-multiplier", 30, "--proposal-scale", 9, "--ratio-bound", 9]
        output = run(*self.COMMON, *options, "--dimension", 3, "--delta", 1e-4).stdout
        assert "nothing can move" in output
        assert "at least 1/n" in output
        given = answer(*self.COMMON, *options, "--dimension", 3, "--delta", 1e-4)
        assert len(given["plan"]["notes"]) == 2
        assert given["plan"]["predicted_acceptance"] < 0.01

    def test_a_budget_that_buys_nothing_is_an_error(self):
        line = refusal(*self.COMMON, "--sampler", "dp-penalty", "--ratio-noise-multiplier", 0.5, code=3)
        assert "pays for 0 steps" in line


class TestLaplace:
    COMMON = ("plan", "--sampler", "dp-laplace", "--epsilon", 1)

    def test_numbers_are_the_librarys(self):
        given = answer(*self.COMMON, "--num-records", 100_000, "--dimension", 10)
        plan = dpmcmc.plan(dpmcmc.DPLaplace(), num_records=100_000, epsilon=1.0, delta=1e-6, dimension=10)
        assert given["plan"] == plan.to_dict()
        assert (given["sampler"], given["settings"], given["delta"]) == ("dp-laplace", {}, 1e-6)
        assert (
            answer("plan", "--sampler", "DP-Laplace", *self.COMMON[3:], "--num-records", 100_000, "--dimension", 10)
            == given
        )

    def test_table(self):
        output = run(*self.COMMON, "--num-records", 100_000, "--dimension", 10).stdout
        for text in ("DPLaplace can work", "1.01 to 1.16", "1 % to 14 %", "0.15 to 0.59", "Nothing was spent"):
            assert text in output, text
        assert "Note" not in output

    def test_what_cannot_work(self):
        output = run(*self.COMMON, "--num-records", 1_000, "--dimension", 10).stdout
        assert "DPLaplace cannot work" in output
        assert "11,000 records, at most 2 parameters, or epsilon = 17" in " ".join(output.split())
        assert "times as wide" not in output
        assert not answer(*self.COMMON, "--num-records", 1_000, "--dimension", 10)["plan"]["feasible"]

    @pytest.mark.parametrize(
        ("arguments", "remedy"),
        [
            ([], "needs --dimension"),
            (["--dimension", 2, "--preset", "paper-banana"], "--preset has no settings for dp-laplace"),
            (["--dimension", 2, "--step-size", 1], "--step-size does not belong to dp-laplace"),
            (["--dimension", 2, "--delta", 1], "delta"),
        ],
    )
    def test_wrong_combinations(self, arguments, remedy):
        assert remedy in refusal(*self.COMMON, "--num-records", 1_000, *arguments)


class TestAuto:
    COMMON = ("plan", "--sampler", "auto", "--epsilon", 1)

    def test_numbers_are_the_librarys(self):
        given = answer(*self.COMMON, "--num-records", 100_000, "--dimension", 10)
        plan = dpmcmc.plan("auto", num_records=100_000, epsilon=1.0, delta=1e-6, dimension=10)
        assert given["plan"] == plan.to_dict()
        assert (given["sampler"], given["settings"]) == ("auto", {})

    def test_table(self):
        output = run(*self.COMMON, "--num-records", 100_000, "--dimension", 10).stdout
        for text in ("auto can work", "if the posterior is about Gaussian", "1.01 to 1.16", "Nothing was spent"):
            assert text in output, text
        assert "auto cannot work" in run(*self.COMMON, "--num-records", 1_000, "--dimension", 10).stdout

    @pytest.mark.parametrize(
        ("arguments", "remedy"),
        [
            ([], "auto needs --dimension"),
            (["--dimension", 2, "--preset", "paper-banana"], "--preset has no settings for auto"),
            (["--dimension", 2, "--step-size", 1], "--step-size does not belong to auto"),
        ],
    )
    def test_wrong_combinations(self, arguments, remedy):
        assert remedy in refusal(*self.COMMON, "--num-records", 1_000, *arguments)
