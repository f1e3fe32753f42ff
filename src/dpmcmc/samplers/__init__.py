"""The samplers: one file each, written against the oracle. None of them ever sees a record."""

from dpmcmc.samplers.base import Kernel, Sampler
from dpmcmc.samplers.dp_hmc import DPHMC
from dpmcmc.samplers.dp_laplace import DPLaplace
from dpmcmc.samplers.dp_penalty import DPPenalty
from dpmcmc.samplers.dp_sgld import DPSGLD
from dpmcmc.samplers.dp_sgnht import DPSGNHT
from dpmcmc.samplers.hmc import HMC
from dpmcmc.samplers.rwmh import RWMH
from dpmcmc.samplers.surrogate_hmc import SurrogateHMC

# A sampler passes the noise that it is handed on to the oracle: it is trusted code, held to its declaration by the
# contract test. No other sampler can make a run that is called private.
SAMPLERS = (DPHMC, DPPenalty, DPSGLD, DPSGNHT, HMC, RWMH)

__all__ = [
    "DPHMC",
    "DPSGLD",
    "DPSGNHT",
    "HMC",
    "RWMH",
    "SAMPLERS",
    "DPLaplace",
    "DPPenalty",
    "Kernel",
    "Sampler",
    "SurrogateHMC",
]
