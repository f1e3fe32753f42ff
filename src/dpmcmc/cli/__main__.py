"""`python -m dpmcmc.cli` does what the `dpmcmc` script does."""

from dpmcmc.cli import main

if __name__ == "__main__":
    main()
