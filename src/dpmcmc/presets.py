"""The sampler settings of the paper's experiments, by name. Public numbers only: nothing here sees data or runs.

Source: the paper's text, and where it is silent or differs the code published with it (GitHub,
DPBayes/DP-HMC-experiments).
"""

import math

# What ends in `_per_root_n` is multiplied by √n, `_times_n` divided by n.
_PAPER_SETTINGS: dict[str, dict[str, dict[str, float]]] = {
    "paper-banana": {
        "dp-hmc": {
            "step_size": 0.006,
            "num_leapfrog": 25,
            "ratio_bound": 0.1,
            "gradient_clip_norm": 0.05,
            "ratio_noise_multiplier_per_root_n": 0.10,
            "gradient_noise_multiplier_per_root_n": 0.55,
        },
        "dp-penalty": {"proposal_scale": 0.06, "ratio_bound": 0.15, "ratio_noise_multiplier_per_root_n": 0.17},
        "dp-sgld": {"batch_size": 1000, "gradient_clip_norm": 0.2, "step_size_times_n": 1.0, "temperature": 0.5},
        "dp-sgnht": {"batch_size": 1000, "gradient_clip_norm": 0.2, "step_size_times_n": 100.0, "diffusion": 50.0},
    },
    "paper-gaussian": {
        "dp-hmc": {
            "step_size": 0.00015,
            "num_leapfrog": 12,
            "ratio_bound": 6.0,
            "gradient_clip_norm": 10.0,
            "ratio_noise_multiplier_per_root_n": 0.10,
            "gradient_noise_multiplier_per_root_n": 0.25,
        },
        "dp-penalty": {"proposal_scale": 0.0007, "ratio_bound": 10.0, "ratio_noise_multiplier_per_root_n": 0.05},
        "dp-sgld": {"batch_size": 1000, "gradient_clip_norm": 15.0, "step_size_times_n": 0.008, "temperature": 0.5},
        "dp-sgnht": {"batch_size": 1000, "gradient_clip_norm": 12.0, "step_size_times_n": 0.2, "diffusion": 30.0},
    },
}


def paper_settings(preset: str, sampler: str, num_records: int) -> dict[str, float]:
    """Return the arguments of a sampler as in the paper's experiments, noise scaled with √n.

    Parameters
    ----------
    preset
        "paper-banana" or "paper-gaussian".
    sampler
        "dp-hmc", "dp-penalty", "dp-sgld" or "dp-sgnht".
    num_records
        n. The paper has 100,000.

    Examples
    --------
    >>> paper_settings("paper-banana", "dp-penalty", 10_000)
    {'proposal_scale': 0.06, 'ratio_bound': 0.15, 'ratio_noise_multiplier': 17.0}
    """
    settings: dict[str, float] = {}
    for name, value in _PAPER_SETTINGS[preset][sampler].items():
        if name.endswith("_per_root_n"):
            settings[name.removesuffix("_per_root_n")] = value * math.sqrt(num_records)
        elif name.endswith("_times_n"):
            settings[name.removesuffix("_times_n")] = value / num_records
        else:
            settings[name] = value
    return settings
