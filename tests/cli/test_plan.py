"""`dpmcmc plan`: its numbers against the paper's and the library's, and what it refuses."""

import sys

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
        for text in ("DPLaplace can work", "1.01 to 1.34", "1 % to 25 %", "0.15 to 0.89", "Nothing was spent"):
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
        for text in ("auto can work", "if the posterior is about Gaussian", "1.01 to 1.34", "Nothing was spent"):
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


class TestCurve:
    COMMON = ("plan", "--sampler", "auto", "--epsilon", 1, "--num-records", 48_842, "--dimension", 5)

    @pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("A.SVG", b"<?xml")])
    def test_picture_and_numbers(self, tmp_path, name, start):
        target = tmp_path / name
        given = answer(*self.COMMON, "--curve", target, "--delta", 1e-6)
        curve = dpmcmc.plan_curve(num_records=48_842, epsilon=1.0, dimension=5, delta=1e-6)
        assert given["curve"] == curve.to_dict()
        assert given["files"] == [str(target)]
        assert given["plan"] == answer(*self.COMMON, "--delta", 1e-6)["plan"]
        assert target.read_bytes().startswith(start)
        assert list(tmp_path.iterdir()) == [target]

    def test_table(self, tmp_path):
        curve = dpmcmc.plan_curve(dpmcmc.DPLaplace(), num_records=48_842, epsilon=1.0, dimension=14, width=1.2)
        options = ["--sampler", "dp-laplace", *self.COMMON[3:-1], 14, "--width", 1.2, "--curve", tmp_path / "plan.svg"]
        output = " ".join(run("plan", *options).stdout.split())
        low, high = curve.interval_widening[8, 8]
        for text in (
            "DPLaplace can work",
            f"{low:.2f}–{high:.2f}",
            " no ",  # a quarter of n and of ε
            "At most 1.2 times as wide as without noise",
            "from ε = {:g} (benign data) or {:g} (skewed data) on".format(*curve.epsilon_needed),
            "from {:,} (benign) or {:,} (skewed) records on".format(*curve.records_needed),
            "Nothing was spent",
            "Written:",
        ):
            assert text in output, text

    def test_without_a_picture(self, tmp_path, monkeypatch):
        """--width alone answers the question, also where Matplotlib is not installed."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        given = answer(*self.COMMON, "--delta", 1e-6, "--width", 2)
        assert (given["curve"]["width"], given["files"]) == (2.0, [])
        assert not list(tmp_path.iterdir())
        assert "curve" not in answer(*self.COMMON)

    @pytest.mark.parametrize(
        ("options", "remedy"),
        [
            (["--curve", "plan.jpg"], "--curve is 'plan.jpg', which is no picture; end it with .png, .pdf or .svg"),
            (["--curve", "plan"], "end it with .png, .pdf or .svg"),
            (["--curve", "there.png"], "--curve is 'there.png', which is there already; give another name"),
            (["--curve", "nowhere/plan.png"], "there is no folder 'nowhere'; make it first"),
            (["--curve", "there.png/plan.png"], "there is no folder 'there.png'"),
            (["--curve", "plan.png", "--width", 1], "width = 1 is out of reach"),
            (["--curve", "plan.png", "--width", "nan"], "width = nan"),
            (["--curve", "plan.png", "--delta", 2], "delta"),
        ],
        ids=str,
    )
    def test_refusals(self, options, remedy, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "there.png").write_bytes(b"mine")
        assert remedy in refusal(*self.COMMON, *options)
        assert [path.name for path in tmp_path.iterdir()] == ["there.png"]
        assert (tmp_path / "there.png").read_bytes() == b"mine"

    def test_without_matplotlib(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        assert "pip install 'dpmcmc[cli]'" in refusal(*self.COMMON, "--curve", tmp_path / "plan.png")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("option", [["--curve", "plan.png"], ["--width", 1.5]], ids=str)
    def test_other_samplers_have_none(self, option, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        line = refusal(*TestPlan.COMMON, "--preset", "paper-banana", *option)
        assert f"{option[0]} is for auto and dp-laplace, not for dp-hmc; leave it out" in line
