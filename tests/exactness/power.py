"""How surely a twin is caught: ``python -m tests.exactness.power`` runs those of `make test` with twenty seeds each.

Prints, for each, in how many runs the check failed (as it should) at its own level, and the largest p-value.
"""

from tests.exactness import test_calibration, test_geweke

SEEDS = range(1000, 1000 + 20 * 20, 20)


def main():
    print("| test | twin | sampler | replications | caught | largest p |\n| --- | --- | --- | ---: | ---: | ---: |")
    for module in (test_calibration, test_geweke):
        kind = module.__name__.rpartition("test_")[2]
        for twin, (name, options, *number) in module.FAST_TWINS.items():
            number = number[0] if number else module.FAST
            found = [module.smallest(module.chains_of(name), number, seed=seed, **options) for seed in SEEDS]
            caught = sum(p < module.LEVEL for p in found)
            print(f"| {kind} | {twin} | {name} | {number} | {caught} of {len(found)} | {max(found):.1g} |", flush=True)


if __name__ == "__main__":
    main()
