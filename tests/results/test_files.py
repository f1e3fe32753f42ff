"""What was saved is loaded exactly; a save that fails leaves nothing behind and what was there before untouched."""

import errno
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray

from dpmcmc.errors import DPMCMCError, NotPrivateError, ResultError
from dpmcmc.results import Posterior, RecordCheck, arviz_bridge, files
from tests.results.cases import FLAGGED, STATEMENTS, assert_same, group_names, make_posterior, make_quality


@pytest.fixture
def path(tmp_path):
    return tmp_path / "posterior.nc"


@pytest.mark.parametrize("kind", list(STATEMENTS))
def test_loads_what_was_saved(kind, path):
    posterior = make_posterior(kind)
    assert posterior.save(str(path)) == path
    assert_same(Posterior.load(path), posterior)
    assert [item.name for item in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_chains": 1},
        {"num_draws": 1},
        {"num_warmup": 0, "warmup_stats": {}},
        {"sample_stats": {}, "warmup_stats": {}},
        {"constant": True},
        {"record_check": RecordCheck(estimate=-3.25, noise_sd=2.0, num_records=1000)},
        {"quality": make_quality(), "warmup_draws": {}, "warmup_stats": {}},
        {"quality": make_quality(**FLAGGED)},
        {"dims": {}, "coords": {}},
        {"dims": {"covariance": ["row", "column"]}, "coords": {"row": [10, 20]}},
        {"model": "Größe / 模型", "sampler": ""},
    ],
    ids=str,
)
def test_loads_what_was_saved_in_odd_cases(changes, tmp_path):
    posterior = make_posterior(**changes)
    assert_same(Posterior.load(posterior.save(tmp_path / "posterior.nc")), posterior)


def test_types_names_and_bad_numbers_survive(tmp_path):
    draws = {
        "scope/beta": np.array([[[1.0, np.nan], [np.inf, -np.inf]]]),
        "z": np.array([[0.1, 5e-324]]),
        "a": np.array([[0.1, 0.2]], dtype=np.float32),
        "draw": np.array([[1, 2**62]]),
    }
    plain = {"warmup_draws": {}, "sample_stats": {}, "warmup_stats": {}, "dims": {"scope/beta": ["k"]}, "coords": {}}
    posterior = make_posterior(draws=draws, **plain)
    assert_same(Posterior.load(posterior.save(tmp_path / "posterior.nc")), posterior)


def test_file_says_not_private_and_holds_no_other_group(path):
    make_posterior("seeded").save(path)
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        assert set(tree.children) == {"posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"}
        for node in (tree, *tree.children.values()):
            assert node.attrs["mode"] == "not private: seeded"
    assert b"not private: seeded" in path.read_bytes()


def test_results_carry_no_times(path):
    """Two that are alike are the same when they are made at other times; ArviZ would write down when."""
    data = make_posterior("private").to_arviz()
    assert all("created_at" not in data[group].attrs for group in group_names(data))
    make_posterior("private").save(path)
    with xarray.open_datatree(path) as tree:
        assert all("created_at" not in node.attrs for node in tree.subtree)


def test_arviz_reads_the_file(tmp_path):
    posterior = make_posterior()
    data = arviz_bridge.import_arviz().from_netcdf(str(posterior.save(tmp_path / "posterior.nc")))
    assert {"posterior", "sample_stats"} <= group_names(data)
    assert data.attrs["mode"] == "not private: seeded"
    np.testing.assert_array_equal(data["posterior"]["beta"].values, posterior.draws["beta"])
    data.close()


def test_paid_draws_are_not_overwritten_unasked(path):
    first = make_posterior("private")
    first.save(path)
    with pytest.raises(ResultError, match="overwrite=True"):
        make_posterior("seeded").save(path)
    assert_same(Posterior.load(path), first)
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_a_path_that_another_process_took_meanwhile_is_left_alone(path, monkeypatch):
    first, second = make_posterior("private"), make_posterior("seeded")
    to_arviz = type(second).to_arviz

    def slow(posterior):
        if posterior is second:
            first.save(path)
        return to_arviz(posterior)

    monkeypatch.setattr(type(second), "to_arviz", slow)
    with pytest.raises(ResultError, match="meanwhile"):
        second.save(path)
    monkeypatch.undo()
    assert_same(Posterior.load(path), first)
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_saving_again_replaces_if_asked(path):
    make_posterior("private").save(path, overwrite=True)
    second = make_posterior("seeded", num_draws=9)
    second.save(path, overwrite=True)
    assert_same(Posterior.load(path), second)
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def fail_half_way(temporary_content):
    def write(*args, **kwargs):
        target = next((item for item in args if isinstance(item, Path)), None)
        if target is not None and target.suffix == ".tmp":
            temporary_content(target)
        raise OSError(errno.ENOSPC, "No space left on device")

    return write


@pytest.mark.parametrize("step", ["make", "write", "replace"])
@pytest.mark.parametrize("existing", [False, True])
def test_a_failed_save_changes_nothing(step, existing, tmp_path, monkeypatch):
    path = tmp_path / "posterior.nc"
    first = make_posterior("private")
    if existing:
        first.save(path)
    before = sorted((item.name, item.read_bytes()) for item in tmp_path.iterdir())
    failing = fail_half_way(lambda target: target.write_bytes(b"half"))
    owner, name = {
        "make": (xarray.DataTree, "to_netcdf"),
        "write": (files, "_write_bytes"),
        "replace": (os, "replace"),
    }[step]
    monkeypatch.setattr(owner, name, failing)
    with pytest.raises(OSError, match="No space left"):
        make_posterior("seeded").save(path, overwrite=True)
    monkeypatch.undo()
    assert sorted((item.name, item.read_bytes()) for item in tmp_path.iterdir()) == before
    if existing:
        assert_same(Posterior.load(path), first)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_a_full_disk_is_an_error_and_the_process_lives(tmp_path):
    """HDF5 itself ends the process here; see the module's first lines."""
    script = """
        import resource, sys
        from pathlib import Path
        from tests.results.cases import assert_same, make_posterior
        from dpmcmc.results import Posterior
        path = Path(sys.argv[1])
        first = make_posterior("private")
        first.save(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            make_posterior("seeded", num_draws=20_000).save(path, overwrite=True)
        except OSError as error:
            print("refused", error.errno)
        assert_same(Posterior.load(path), first)
        assert [item.name for item in path.parent.iterdir()] == [path.name]
        print("alive")
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "posterior.nc")],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["refused", str(errno.EFBIG), "alive"]


@pytest.mark.parametrize("name", ["posterior", "posterior.pkl", "posterior.h5", ".nc", "posterior.NC"])
def test_other_suffixes_are_refused(name, tmp_path):
    with pytest.raises(ResultError, match=r"end it with '\.nc'"):
        make_posterior().save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_zarr_is_refused_plainly(tmp_path):
    path = tmp_path / "posterior.zarr"
    for attempt in (make_posterior().save, Posterior.load):
        with pytest.raises(ResultError, match=r"Zarr is neither written nor read, end it with '\.nc'"):
            attempt(path)
    assert not list(tmp_path.iterdir())


def make_other(path, kind):
    """Put something at ``path`` that is not a posterior, and return a function that reads all of it."""
    if kind == "folder":
        path.mkdir()
        (path / "thesis.txt").write_text("years of work")
        return (path / "thesis.txt").read_text
    if kind == "netCDF of others":
        xarray.Dataset({"x": ("time", np.arange(3))}).to_netcdf(path, engine="h5netcdf")
    else:
        path.write_text("years of work")
    return path.read_bytes


@pytest.mark.parametrize("kind", ["folder", "file", "netCDF of others"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_a_posterior_is_never_replaced(kind, overwrite, tmp_path):
    target = tmp_path / "precious.nc"
    read = make_other(target, kind)
    before = read()
    with pytest.raises(ResultError, match="not a posterior of dpmcmc" if overwrite else "exists"):
        make_posterior().save(target, overwrite=overwrite)
    assert read() == before
    assert [item.name for item in tmp_path.iterdir()] == [target.name]


def test_missing_places_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Posterior.load(tmp_path / "posterior.nc")
    with pytest.raises(FileNotFoundError, match="does not exist; create it"):
        make_posterior().save(tmp_path / "nowhere" / "posterior.nc")


@pytest.mark.parametrize("content", [b"", b"not a netCDF file" * 100, b"\x89HDF\r\n\x1a\n" + bytes(500)], ids=len)
def test_garbage_is_refused(content, tmp_path):
    path = tmp_path / "posterior.nc"
    path.write_bytes(content)
    with pytest.raises(ResultError, match="cannot be read as netCDF"):
        Posterior.load(path)


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_half_a_file_is_refused(share, tmp_path):
    path = make_posterior().save(tmp_path / "posterior.nc")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ResultError):
        Posterior.load(path)


def test_a_netcdf_file_of_others_is_refused(tmp_path):
    path = tmp_path / "other.nc"
    xarray.DataTree.from_dict({"posterior": xarray.Dataset({"x": (("chain", "draw"), np.zeros((2, 3)))})}).to_netcdf(
        path
    )
    with pytest.raises(ResultError, match="not a posterior of dpmcmc"):
        Posterior.load(path)


def tampered(path, tamper, kind="seeded"):
    """Write a posterior's file, changed by ``tamper``."""
    tree = arviz_bridge.as_tree(make_posterior(kind, record_check=CHECK).to_arviz())
    tamper(tree)
    tree.to_netcdf(path / "posterior.nc", engine="h5netcdf")
    return path / "posterior.nc"


CHECK = RecordCheck(estimate=3.0, noise_sd=2.0, num_records=1000)
CLAIMED = STATEMENTS["private"].to_json()
MODE = STATEMENTS["private"].mode


def test_what_is_not_tampered_with_is_loaded(tmp_path):
    assert_same(Posterior.load(tampered(tmp_path, lambda tree: None)), make_posterior(record_check=CHECK))


@pytest.mark.parametrize(
    "change",
    [
        {"privacy": "{}"},
        {"privacy": STATEMENTS["seeded"].to_json().replace("false", "true")},
        {"privacy": CLAIMED},
        {"private": 1},
        {"mode": MODE},
        {"private": 1, "mode": MODE},
        {"privacy": CLAIMED, "private": 1, "mode": MODE},
        {"parameters": '["other"]'},
        {"parameters": '["beta", "sigma"]'},
        {"parameters": "3"},
        {"renamed_parameters": "?"},
        {"renamed_parameters": "[]"},
        {"record_check": '{"estimate": 3.0, "noise_sd": 2.0, "num_records": 999}'},
        {"record_check": '{"estimate": null, "noise_sd": 2.0, "num_records": 1000}'},
        {"record_check": '{"estimate": 3.0}'},
        {"quality": "?"},
        {"quality": '{"method": "DP-Laplace"}'},
        {"quality": make_quality(noise_share={"sigma": 0.1}).to_json()},
        {"dpmcmc_format": 99},
        {"dpmcmc_format": "?"},
    ],
    ids=lambda change: "+".join(change),
)
def test_a_file_whose_root_says_something_else_is_refused(change, tmp_path):
    with pytest.raises(DPMCMCError, match=r"posterior\.nc"):
        Posterior.load(tampered(tmp_path, lambda tree: tree.attrs.update(change)))


@pytest.mark.parametrize("group", ["posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"])
@pytest.mark.parametrize("change", [{"privacy": CLAIMED}, {"private": 1}, {"mode": MODE}], ids=lambda c: next(iter(c)))
def test_a_file_whose_groups_say_something_else_is_refused(group, change, tmp_path):
    with pytest.raises(ResultError, match=f"its {group} says about"):
        Posterior.load(tampered(tmp_path, lambda tree: tree[group].attrs.update(change)))


@pytest.mark.parametrize("group", ["sample_stats", "warmup_posterior", "warmup_sample_stats"])
@pytest.mark.parametrize("dimension", ["chain", "draw"])
def test_a_file_whose_groups_differ_in_size_is_refused(group, dimension, tmp_path):
    def cut(tree):
        tree[group] = xarray.DataTree(tree[group].to_dataset().isel({dimension: slice(1, None)}))

    with pytest.raises(ResultError, match="chains and draws"):
        Posterior.load(tampered(tmp_path, cut))


def test_a_file_with_a_group_or_a_parameter_of_others_is_refused(tmp_path):
    def group(tree):
        tree["log_likelihood"] = xarray.DataTree(tree["posterior"].to_dataset())

    def parameter(tree):
        tree["posterior"]["gamma"] = tree["posterior"]["sigma"]

    for tamper, name in ((group, "log_likelihood"), (parameter, "gamma")):
        with pytest.raises(ResultError, match=name):
            Posterior.load(tampered(tmp_path, tamper))


def test_a_statement_that_contradicts_itself_is_refused(tmp_path):
    """All places agree, but the queries cost more than is stated: ε was lowered, or queries were left out."""
    true = STATEMENTS["private"]
    for change in ({"epsilon": 0.1}, {"mu": true.mu / 2}, {"queries": {"gradient": 3}}):

        def tamper(tree, change=change):
            for node in (tree, *tree.children.values()):
                node.attrs["privacy"] = replace(true, **change).to_json()

        with pytest.raises(ResultError, match="contradicts itself"):
            Posterior.load(tampered(tmp_path, tamper, "private"))


def test_a_file_of_format_3_has_no_quality(tmp_path):
    def earlier(tree):
        tree.attrs["dpmcmc_format"] = 3
        del tree.attrs["quality"]

    assert_same(Posterior.load(tampered(tmp_path, earlier)), make_posterior(record_check=CHECK))
    with pytest.raises(ResultError, match="quality"):  # format 4 always says it
        Posterior.load(tampered(tmp_path, lambda tree: tree.attrs.pop("quality")))


def test_a_file_of_format_4_has_no_design(tmp_path):
    def earlier(tree):
        tree.attrs["dpmcmc_format"] = 4
        del tree.attrs["design"], tree.attrs["schema"]

    assert_same(Posterior.load(tampered(tmp_path, earlier)), make_posterior(record_check=CHECK))
    with pytest.raises(ResultError, match="design"):  # format 5 always says it
        Posterior.load(tampered(tmp_path, lambda tree: tree.attrs.pop("design")))


def test_a_file_of_format_5_has_no_spending_and_an_earlier_statement(tmp_path):
    def earlier(tree):
        tree.attrs["dpmcmc_format"] = 5
        del tree.attrs["spending"]
        for node in (tree, *tree.children.values()):
            statement = json.loads(node.attrs["privacy"])
            del statement["adaptive"], statement["ledger"]
            node.attrs["privacy"] = json.dumps(statement, ensure_ascii=False)

    assert_same(Posterior.load(tampered(tmp_path, earlier)), make_posterior(record_check=CHECK))
    with pytest.raises(ResultError, match="spending"):  # format 6 always says it
        Posterior.load(tampered(tmp_path, lambda tree: tree.attrs.pop("spending")))


@pytest.mark.parametrize("spending", ["[[1, 2, 3]]", '[["x", 1, 0.5], ["x", 1, 0.4]]', "{}", "not json"])
def test_spending_that_cannot_be_is_refused(spending, tmp_path):
    with pytest.raises(ResultError, match="not a posterior as dpmcmc writes it"):
        Posterior.load(tampered(tmp_path, lambda tree: tree.attrs.update(spending=spending)))


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_earlier_format_is_refused_plainly(version, tmp_path):
    with pytest.raises(ResultError, match=rf"another version of dpmcmc \(format {version}; this one reads 3 to 6\)"):
        Posterior.load(tampered(tmp_path, lambda tree: tree.attrs.update(dpmcmc_format=version)))


@pytest.mark.parametrize("kind", ["private", "seeded"])
@pytest.mark.parametrize("name", ["energy", "ratios_clipped"])
def test_statistics_added_to_a_file_are_refused(kind, name, tmp_path):
    def add(tree):
        tree["sample_stats"][name] = tree["sample_stats"]["step_size"]

    with pytest.raises(NotPrivateError, match=name):
        Posterior.load(tampered(tmp_path, add, kind))
