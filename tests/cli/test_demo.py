"""`dpmcmc demo`: its options. What it runs and writes is tested in `tests/demo`."""

import math
from types import SimpleNamespace

import pytest

from dpmcmc.demo import banana as demo
from tests.cli.running import answer, refusal, run


class TestDemo:
    def test_an_unwritable_folder_is_refused_before_sampling(self, tmp_path, monkeypatch):
        def never(*_, **__):
            raise AssertionError("sampling started")

        monkeypatch.setattr(demo, "run", never)
        in_the_way = tmp_path / "file"
        in_the_way.write_text("not a folder")
        line = refusal("demo", "banana", "--out", in_the_way / "deeper", code=2)
        assert "choose another --out" in line

    def test_what_there_is_no_demonstration_of_is_refused(self, tmp_path):
        assert "banana" in run("demo", "apple", "--out", tmp_path, code=2).stderr

    def test_a_budget_that_auto_cannot_use_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(demo, "_MIN_STEPS", 0)  # whatever it buys DP-HMC
        line = refusal("demo", "banana", "--epsilon", 0.01, "--num-records", 100, "--out", tmp_path)
        assert "cannot work" in line
        assert "raise --epsilon" in line

    def test_too_small_a_budget_is_refused(self, tmp_path):
        line = refusal("demo", "banana", "--epsilon", 0.01, "--num-records", 100, "--out", tmp_path)
        assert "raise --epsilon" in line

    @pytest.mark.parametrize(("options", "epsilon"), [([], 4.0), (["--epsilon", 2], 2.0)])
    def test_budget(self, options, epsilon, tmp_path, monkeypatch):
        asked = []
        monkeypatch.setattr(demo, "planned", lambda settings: asked.append(settings) or SimpleNamespace(num_steps=9))
        monkeypatch.setattr(demo, "run", lambda settings, progress: asked.append(progress))
        monkeypatch.setattr(demo, "write", lambda outcome, folder: {})
        monkeypatch.setattr(demo, "report", lambda outcome, files: {"ok": math.pi})
        assert answer("demo", "banana", *options, "--out", tmp_path) == {"ok": math.pi}
        assert asked == [demo.Settings(epsilon=epsilon), False]
