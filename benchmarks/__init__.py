"""How fast a private gradient and a private draw are, compared with plain JAX, BlackJAX and the machine's lower limit.

Run as ``python -m benchmarks``. All contestants run alternately in one process on synthetic records; the figures are
ratios of median times, because other programs may use the machine at the same time. The code looks inside the curator
to time its parts and releases nothing: it is not for real data.
"""
