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
import socket
import subprocess
import sys

NUM_RECORDS = 100_003


def read_part(process, processes):
    """Return this process's rows. Here they are made up; read your own files instead (one part each)."""
    import numpy as np

    generator = np.random.default_rng(0)  # all rows, of which one part is kept, so that any split gives the same table
    X = generator.normal(size=(NUM_RECORDS, 5)).astype(np.float32)
    y = (generator.random(NUM_RECORDS) < 1 / (1 + np.exp(-X @ np.linspace(-1, 1, 5)))).astype(np.float32)
    part = slice(NUM_RECORDS * process // processes, NUM_RECORDS * (process + 1) // processes)
    return {"X": X[part], "y": y[part]}


def run(arguments):
    """Join the others, sample, and let process 0 write."""
    import jax

    if arguments.find_others or arguments.coordinator:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        who = {} if arguments.find_others else {"num_processes": arguments.processes, "process_id": arguments.process}
        jax.distributed.initialize(arguments.coordinator, **who)
    elif arguments.processes > 1:
        # Going on alone would be several private runs over the same people, each with a budget of its own.
        sys.exit("--processes needs --coordinator HOST:PORT, so that the processes find each other")
    import numpy as np

    import dpmcmc

    n = NUM_RECORDS
    sampler = dpmcmc.DPHMC(
        step_size=0.0015,
        num_leapfrog=5,
        ratio_clip=4.0,
        gradient_clip=4.0,
        ratio_noise=0.02 * n**0.5,
        gradient_noise=0.1 * n**0.5,
    )
    posterior = dpmcmc.sample(
        dpmcmc.models.LogisticRegression(5),
        read_part(jax.process_index(), jax.process_count()),
        sampler=sampler,
        epsilon=8.0,
        delta=1e-6,
        num_steps=arguments.steps,
        init=np.tile([0.0, *np.linspace(-1, 1, 5)], (4, 1)),  # public: what the made-up rows were made with
        seed=arguments.seed,
    )
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
    parser.add_argument("--steps", type=int, default=15, help="steps of each chain")
    parser.add_argument("--seed", type=int, help="for tests: a seeded run is not private")
    parser.add_argument("--out", default="cluster-posterior.nc")
    given = parser.parse_args()
    sys.exit(start_local(given) if given.local else run(given))
