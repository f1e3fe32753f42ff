"""What a run of blocks knows of the records: noised sums, each charged for (in the ledger too) before it is made."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.curator import Curator, passes, placement
from dpmcmc.errors import DPMCMCWarning
from tests import faults
from tests.inference.test_sampling import DATA, DELTA, MODEL, SAMPLERS, START

OTHER = np.concatenate([3.0 * DATA[:-2] + 5.0, [[np.nan, 1.0], [1e300, -1e300]]])


def run(name, data, **options):
    """A run, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DPMCMCWarning)
        posterior = dpmcmc.sample(
            MODEL, data, epsilon=8.0, delta=DELTA, sampler=SAMPLERS[name], init=START, num_steps=6, **options
        )
    return posterior, [str(one.message) for one in caught]


def same(first, second):
    """Whether two runs have returned, said and stated the same, to the last bit."""
    (one, said), (other, also_said) = first, second
    parts = [("draws", "mean"), ("warmup_draws", "mean"), *(("sample_stats", name) for name in one.sample_stats)]
    return (
        all(np.array_equal(getattr(one, part)[name], getattr(other, part)[name]) for part, name in parts)
        and (one.record_check, one.privacy, one.spending) == (other.record_check, other.privacy, other.spending)
        and said == also_said
    )


@pytest.mark.parametrize("name", ["hmc-cached", "penalty", "sgld"])
def test_without_the_sums_nothing_of_the_records_is_left(name, monkeypatch):
    """With all sums 0, runs of the same seed on quite different records are the same run: steps, draws, words.

    The twin stands in it: with their sums they are not.
    """
    assert not same(run(name, DATA, seed=5), run(name, OTHER, seed=5))
    of_all, of_batches = passes.Passes.tile_total, placement.sum_over_batches
    monkeypatch.setattr(passes.Passes, "tile_total", lambda *a, **o: jnp.zeros_like(of_all(*a, **o)))
    monkeypatch.setattr(placement, "sum_over_batches", lambda *a: jnp.zeros_like(of_batches(*a)))
    passes.forget()
    try:
        assert same(run(name, DATA, seed=5), run(name, OTHER, seed=5))
    finally:
        passes.forget()


@pytest.mark.parametrize("name", ["penalty", "sgld"])
def test_the_record_check_in_the_result_has_noise(name, monkeypatch):
    """It is what the curator released, and not the true number, 0 (which noise hits with probability below 1e-9)."""
    released, ask = [], Curator.ask

    def watched(curator, *arguments, **options):
        released.append(ask(curator, *arguments, **options))
        return released[-1]

    monkeypatch.setattr(Curator, "ask", watched)
    posterior, _ = run(name, DATA)
    assert posterior.record_check.estimate == released[0].value != 0.0


def test_a_charge_is_in_the_ledger_when_the_records_are_looked_at(tmp_path, monkeypatch):
    """Of the record check, the start and every block: an entry more than at the look before."""
    place, entries = tmp_path / "people.ledger", []
    dpmcmc.Ledger.create(place, epsilon=8.0, delta=DELTA)

    def watched(look):
        def looking(*arguments):
            entries.append(faults.audit(place).num_entries)
            return look(*arguments)

        return looking

    for name in ("_host_total", "_run"):
        monkeypatch.setattr(Curator, name, watched(getattr(Curator, name)))
    run("hmc-cached", DATA, ledger=place)
    opened = 2  # the ledger was made, the run was opened
    assert entries == [opened + 1 + look for look in range(8)]
