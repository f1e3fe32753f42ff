"""What another process does with a ledger: ``python ledger_process.py place action start epsilon cost``."""

import sys
import time
from fractions import Fraction

from dpmcmc.errors import BudgetExceededError
from dpmcmc.privacy.ledger import Ledger

DELTA = 1e-6


def main(place: str, action: str, start: str, epsilon: str, cost: str) -> None:
    ledger = Ledger(place)
    time.sleep(max(0.0, float(start) - time.time()))  # so that all begin at once
    if action == "hold":
        try:
            ledger.open_run("gaussian", float(epsilon), DELTA)
            print(1)
        except BudgetExceededError:
            print(0)
        return
    account = ledger.open_run("gaussian", float(epsilon), DELTA, hold=False)
    done = 0
    try:
        while True:
            account.charge("mu", Fraction(cost))
            done += 1
            if action == "report":
                print(done, flush=True)
    except BudgetExceededError:
        print(done)


if __name__ == "__main__":
    main(*sys.argv[1:])
