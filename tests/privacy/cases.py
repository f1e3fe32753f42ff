"""Statements to test with: of a Gaussian run, of one on batches, and what a ledger says."""

from dpmcmc.privacy import PrivacyStatement, noise_for_queries
from dpmcmc.privacy.statement import PRIVATE_MODE

DELTA = 1e-6


def gaussian(**changes):
    """A run of 100 gradients that cost half of what (2, 1e-6) allows."""
    multiplier = noise_for_queries(2.0, DELTA, 200)
    values = {
        "private": True,
        "mode": PRIVATE_MODE,
        "epsilon": 2.0,
        "delta": DELTA,
        "mu": 100 / (2 * multiplier**2),
        "lattice_epsilon": 1e-9,
        "lattice_delta": 1e-25,
        "num_records": 1000,
        "queries": {"gradient": 100},
        "noise_multipliers": {"gradient": multiplier},
        "accountant": "Gaussian composition (exact)",
    }
    return PrivacyStatement(**(values | changes))


def batches(**changes):
    slack = {"lattice_epsilon": 1e-9, "lattice_delta": 1e-25}
    apart = {"invalid_count": {"epsilon": 0.01, "delta": 1e-8}}
    values = {
        "mu": None,
        "epsilon": 1.0,
        "queries": {"batch_gradient": 500, "invalid_count": 1},
        "noise_multipliers": {"invalid_count": 900.0},
        "batches": {"batch_size": 10, "sampling_prob": 0.01, "sampling": "without_replacement", "noise_ratio": 8.0},
        "set_apart": apart,
        "accountant": "subsampled Gaussian, without replacement (PLD, replace one)",
    }
    return gaussian(**(values | slack | changes))


def ledger(**changes):
    values = {
        "name": "clinic",
        "run": 2,
        "total_epsilon": 4.0,
        "total_delta": 1e-5,
        "mu_total": 0.35,
        "mu_before": 0.1,
        "mu_after": 0.1 + gaussian().mu,
        "apart_epsilon_before": 0.0,
        "apart_delta_before": 0.0,
        "apart_epsilon_after": 0.0,
        "apart_delta_after": 0.0,
        "left_epsilon": 2.5,
        "left_delta": 1e-5,
        "head": "0a1b2c",
    }
    return values | changes
