"""One private run over several machines: each process reads its own part of the rows, all get the same draws.

As it is, on this machine alone, with two processes:

    python examples/cluster.py --local 2

On a cluster, start one process per machine. Under Slurm or Open MPI JAX can find the others by itself
(`srun python examples/cluster.py --find-others`); elsewhere tell each who it is:

    python examples/cluster.py --coordinator HOST:PORT --processes 4 --process 0    # and 1, 2, 3 on the others

Nothing but integer sums (a few numbers for each chain) travels between the machines, and only process 0 draws noise
and writes the result.
"""

import argparse
import os
import socket
import subprocess
import sys

NUM_RECORDS = 300_003
STEPS = 800  # of each chain; half a minute on two cores
GUESS = (0.0, 0.5, -0.5)  # public: intercept and coefficients, what the made-up rows are made with


def read_part(process, processes):
    """Return this process's rows. Here they are made up; read your own files instead (one part each)."""
    import numpy as np

    generator = np.random.default_rng(0)  # all rows, of which one part is kept, so that any split gives the same table
    X = generator.choice(np.float32([-1, 1]), size=(NUM_RECORDS, 2))  # yes or no; clip yours to a public range
    y = (generator.random(NUM_RECORDS) < 1 / (1 + np.exp(-X @ GUESS[1:]))).astype(np.float32)
    part = slice(NUM_RECORDS * process // processes, NUM_RECORDS * (process + 1) // processes)
    return {"X": X[part], "y": y[part]}


def draw(part, steps, seed):
    """Sample; every process calls this with its own part of the rows and gets the same draws."""
    import numpy as np

    import dpmcmc

    n = NUM_RECORDS
    bound = 3**0.5  # of a score's norm, √(1 + ‖x‖²), as every feature is -1 or 1: nothing is clipped
    return dpmcmc.sample(
        dpmcmc.models.LogisticRegression(2),
        part,
        sampler=dpmcmc.DPHMC(
            step_size=0.002,
            num_leapfrog=3,
            ratio_bound=bound,
            gradient_clip_norm=bound,
            ratio_noise_multiplier=0.09 * n**0.5,
            gradient_noise_multiplier=0.19 * n**0.5,
        ),
        epsilon=8.0,
        delta=1e-6,
        num_steps=steps,
        num_warmup=steps // 10,
        init=np.tile(GUESS, (4, 1)),
        seed=seed,
    )


def run(arguments):
    """Join the others, sample, and let process 0 write."""
    import jax

    if arguments.find_others or arguments.coordinator:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        who = {} if arguments.find_others else {"num_processes": arguments.processes, "process_id": arguments.process}
        # A process that is killed is given up after a minute; the others stop with an error (docs/scale.md).
        jax.distributed.initialize(arguments.coordinator, heartbeat_timeout_seconds=60, **who)
    elif arguments.processes > 1:
        # Going on alone would be several private runs over the same people, each with a budget of its own.
        sys.exit("--processes needs --coordinator HOST:PORT, so that the processes find each other")
    posterior = draw(read_part(jax.process_index(), jax.process_count()), arguments.steps, arguments.seed)
    if jax.process_index() == 0:
        posterior.save(arguments.out)
        print(f"{jax.process_count()} process(es), {len(jax.devices())} device(s): wrote {arguments.out}")
        print(posterior.summary())


def start_local(arguments):
    """Start the processes of a small cluster on this machine, and wait for them."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--out", arguments.out, "--steps", str(arguments.steps)]
    command += ["--coordinator", f"localhost:{port}", "--processes", str(arguments.local)]
    command += [] if arguments.seed is None else ["--seed", str(arguments.seed)]
    workers = [subprocess.Popen([*command, "--process", str(process)]) for process in range(arguments.local)]
    return max(worker.wait() for worker in workers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local", type=int, default=0, help="start so many processes on this machine")
    parser.add_argument("--find-others", action="store_true", help="let JAX ask Slurm or Open MPI")
    parser.add_argument("--coordinator", help="HOST:PORT of process 0")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each chain, at most what ε buys")
    parser.add_argument("--seed", type=int, help="for tests: a seeded run is not private")
    parser.add_argument("--out", default="cluster-posterior.nc")
    given = parser.parse_args()
    if os.path.lexists(given.out):  # `save` would refuse to overwrite it, after the budget is spent
        parser.error(f"--out {given.out} exists; give another path")
    sys.exit(start_local(given) if given.local else run(given))
