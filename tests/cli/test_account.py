"""`dpmcmc account`: its numbers against the privacy functions, and what it refuses."""

import pytest

from dpmcmc import privacy
from tests.cli.running import answer, refusal, run


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
        budget = privacy.Budget(4.0, 1e-6)
        budget.reserve_lattice()
        assert num_queries / (2 * multiplier**2) == pytest.approx(budget.total, rel=1e-14)
        back = answer("account", "--noise-multiplier", repr(multiplier), "--num-queries", num_queries, "--delta", 1e-6)
        assert back["epsilon"] <= 4.0
        assert back["epsilon"] == pytest.approx(4.0, rel=2e-5)  # the reserve for discrete noise is the difference

    def test_noise_multiplier_buys_the_queries_of_a_real_run(self):
        """The numbers are those of `dpmcmc.privacy`, whose own tests show that a real budget pays for exactly these."""
        given = answer("account", "--epsilon", 4, "--delta", 1e-6, "--num-queries", 500)
        assert given["noise_multiplier"] == privacy.noise_for_queries(4.0, 1e-6, 500)
        back = answer("account", "--epsilon", 4, "--delta", 1e-6, "--noise-multiplier", repr(given["noise_multiplier"]))
        assert back["num_queries"] == 500

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
        assert given["noise_ratio"] == privacy.smallest_noise_ratio(1.0, 1e-6, 0.01, 1000)

    @pytest.mark.parametrize(
        ("arguments", "remedy"),
        [
            (["--noise-ratio", 4, "--num-steps", 10, "--epsilon", 1], "--sampling-prob"),
            (MECHANISM, "missing: --num-steps, --epsilon, --delta"),
            ([*MECHANISM, "--num-steps", 10, "--epsilon", 1, "--delta", 1e-6], "all four are given"),
            (["--sampling-prob", 2, "--noise-ratio", 4, "--num-steps", 10, "--epsilon", 1], "at most 1"),
            (["--sampling-prob", 0.01, "--num-steps", 10, "--epsilon", 1, "--delta", 1e-13], "no noise ratio up to"),
        ],
    )
    def test_wrong_combinations(self, arguments, remedy):
        assert remedy in refusal("account", *arguments)
