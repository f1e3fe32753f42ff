"""`dpmcmc report`: the page of a run, and one line for everything that can be wrong."""

import os

import pytest

from dpmcmc.results.folder import RUN_FILES, write_run
from tests.cli.running import refusal, run
from tests.results.cases import make_posterior
from tests.results.pages import Page


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    write_run(make_posterior("private"), place)
    return place


def test_a_run_has_all_its_files(folder):
    assert set(os.listdir(folder)) == set(RUN_FILES)
    Page((folder / "report.html").read_text(encoding="utf-8"))
    text = (folder / "privacy.txt").read_text(encoding="utf-8")
    assert text == f"{make_posterior('private').privacy}\n"


def test_the_page_is_made_again_and_replaces_the_earlier_one(folder):
    first = (folder / "report.html").read_bytes()
    (folder / "report.html").write_text("an earlier one")
    result = run("report", folder)
    assert (folder / "report.html").read_bytes() == first
    assert "report.html" in result.stdout
    assert set(os.listdir(folder)) == set(RUN_FILES)


def test_it_can_go_elsewhere(folder, tmp_path):
    (folder / "report.html").unlink()
    run("report", folder, "--out", tmp_path / "page.html")
    assert "Posterior of logistic regression" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not (folder / "report.html").exists()


def test_a_run_that_is_not_private_says_so(tmp_path):
    write_run(make_posterior("seeded"), tmp_path)
    assert "NOT PRIVATE" in run("report", tmp_path).stderr


class TestRefusals:
    def test_no_such_folder(self, tmp_path):
        assert "there is no folder" in refusal("report", tmp_path / "none")

    def test_a_file_is_no_folder(self, folder):
        assert "is not a folder" in refusal("report", folder / "posterior.nc")

    def test_an_unfinished_run(self, tmp_path):
        assert f"dpmcmc resume {tmp_path}" in refusal("report", tmp_path)

    def test_a_damaged_file(self, folder):
        content = (folder / "posterior.nc").read_bytes()
        (folder / "posterior.nc").write_bytes(content[: len(content) // 2])
        assert "damaged" in refusal("report", folder)

    def test_another_kind_of_file(self, folder):
        (folder / "posterior.nc").write_bytes(b"hello")
        assert "cannot be read as netCDF" in refusal("report", folder)

    def test_a_folder_as_page(self, folder):
        assert "is a folder; give a file" in refusal("report", folder, "--out", folder)

    def test_another_suffix(self, folder):
        assert "end it with .html" in refusal("report", folder, "--out", folder / "posterior.nc")

    def test_nowhere_to_write(self, folder, tmp_path):
        line = refusal("report", folder, "--out", tmp_path / "no" / "page.html")
        assert "cannot write" in line
        assert "choose another --out" in line
