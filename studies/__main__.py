"""The commands ``python -m studies comparison``, ``clipping``, ``laplace``, ``auto``, ``coverage`` and ``report``."""

import sys

try:
    from studies.commands import app
except KeyboardInterrupt:  # Ctrl-C may well come before there is a command to handle it
    print("Interrupted; nothing was spent.", file=sys.stderr)
    raise SystemExit(130) from None

if __name__ == "__main__":
    app()
