"""A folder that appears whole or not at all."""

import os

import pytest

from dpmcmc.output import NewFolder, OutputError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("target", ["run", "deep/er/run", "empty"])
def test_a_folder_appears_with_all_its_files(target, tmp_path):
    (tmp_path / "empty").mkdir()
    with NewFolder(tmp_path / target) as folder:
        (folder.stage / "draws").write_text("paid for")
        assert names(tmp_path / "empty") == []
        assert not (tmp_path / "run").exists()
        folder.put_in_place()
    assert names(tmp_path / target) == ["draws"]
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_nothing_is_left_if_it_was_not_put_in_place(tmp_path):
    def fail():
        with NewFolder(tmp_path / "deep" / "run") as folder:
            (folder.stage / "draws").write_text("not paid for")
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert names(tmp_path) == []


def test_an_earlier_run_is_replaced_as_a_whole(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "draws").write_text("old")
    (run / "page").write_text("old")
    with pytest.raises(OutputError, match="is not empty"):
        NewFolder(run, known_files=["draws", "page"])
    with NewFolder(run, overwrite=True, known_files=["draws", "page"]) as folder:
        (folder.stage / "draws").write_text("new")
        folder.put_in_place()
    assert names(run) == ["draws"]
    assert (run / "draws").read_text() == "new"
    assert names(tmp_path) == ["run"]


def test_an_earlier_run_stays_if_the_new_one_cannot_be_put_in_place(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    (run / "draws").write_text("old")
    rename = os.rename

    def refuse(source, target):
        if str(source).endswith(".unfinished"):
            raise OSError(16, "Device or resource busy")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with NewFolder(run, overwrite=True, known_files=["draws"]) as folder:
        (folder.stage / "draws").write_text("new")
        with pytest.raises(OSError, match="busy"):
            folder.put_in_place()
    assert (run / "draws").read_text() == "old"
    assert (folder.stage / "draws").read_text() == "new"  # it is kept: it may have been paid for


def test_a_folder_that_was_filled_meanwhile_is_left_alone(tmp_path):
    with NewFolder(tmp_path / "run") as folder:
        (folder.stage / "draws").write_text("new")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "draws").write_text("someone else's")
        with pytest.raises(OSError, match="not empty"):
            folder.put_in_place()
    assert (tmp_path / "run" / "draws").read_text() == "someone else's"
    assert (folder.stage / "draws").read_text() == "new"


def test_a_link_to_a_folder_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with NewFolder(tmp_path / "link") as folder:
        (folder.stage / "draws").write_text("new")
        folder.put_in_place()
    assert names(tmp_path / "real") == ["draws"]
    assert (tmp_path / "link").is_symlink()
