# %% [markdown]
# # What the budget does to a curved posterior
#
# Some posteriors are no ellipses. This tutorial takes one whose exact shape is known, the banana of the paper on
# [differentially private HMC](../method.md), and fits it with budgets from far too small to ample. You see what the
# default sampler, `auto`, does with each, what it says about itself, and how the paper's own sampler compares.

# %%
import warnings

import jax
import matplotlib.pyplot as plt
import numpy as np

import dpmcmc
from dpmcmc.presets import paper_settings

# What speaks against a result is a warning, and in `posterior.warnings`. Here it is printed below, with the result.
warnings.simplefilter("ignore", dpmcmc.errors.DPMCMCWarning)

# %% [markdown]
# ## The model
#
# Each record is a pair, normal with mean $(\theta_1,\; \theta_2 + 20\,\theta_1^2)$ and large known variances. What the
# records say about $\theta_2$ depends on $\theta_1$, so the posterior is bent. In the coordinates $\theta_1$ and
# $\theta_2 + 20\,\theta_1^2$ it is Gaussian, so that its regions are bent ellipses and can be drawn exactly. That looks
# at the records without noise, which is **not private**, and fine for synthetic ones.

# %%
num_records = 100_000
model = dpmcmc.models.Banana()
data = model.generate(jax.random.key(1), num_records)

center, scale = model.straight_posterior_not_private(data)
angle = np.linspace(0, 2 * np.pi, 400)


def region(probability):
    """Return the outline of the smallest region that holds so much of the exact posterior."""
    u = center + np.sqrt(-2 * np.log(1 - probability)) * scale * np.column_stack([np.cos(angle), np.sin(angle)])
    return u[:, 0], u[:, 1] - model.curvature * u[:, 0] ** 2


# %% [markdown]
# ## From a small budget to a large one
#
# The prior of this model is all but flat, and its centre far from anything, so the search is told where to start: near
# a value that is known beforehand, and not taken from the data. Each run has a budget of its own; on real people they
# would add up.

# %%
epsilons = (0.1, 0.3, 0.5, 1.0, 4.0)
runs = {}
for epsilon in epsilons:
    runs[epsilon] = dpmcmc.sample(model, data, epsilon=epsilon, delta=1e-6, init=np.array([1.0, 3.0]), progress=False)

# %% [markdown]
# For comparison, the paper's sampler, DP-HMC, at the largest of these budgets. Its step size, number of leapfrog steps,
# clip bounds and noise were set by hand by its authors, for this very posterior, and its chains start inside it. Here
# the budget decides how many steps there are:

# %%
sampler = dpmcmc.DPHMC(**paper_settings("paper-banana", "dp-hmc", num_records))
plan = dpmcmc.plan(sampler, num_records=num_records, epsilon=4.0, delta=1e-6)
print(f"ε = 4 buys {plan.num_steps} steps for each of {plan.num_chains} chains")
start = np.array([0.0, 3.0]) + np.array([0.1, 0.5]) * np.random.default_rng(2).standard_normal((4, 2))
chains = dpmcmc.sample(model, data, epsilon=4.0, delta=1e-6, sampler=sampler, init=start, progress=False)

# %%
panels = {f"auto, ε = {epsilon:g}": run for epsilon, run in runs.items()} | {"DP-HMC, ε = 4": chains}
outline = np.array(region(0.99))
low, high = outline.min(axis=1), outline.max(axis=1)
low, high = low - 0.4 * (high - low), high + 0.4 * (high - low)

figure, axes = plt.subplots(2, 3, figsize=(10, 6.4), sharex=True, sharey=True, layout="constrained")
for (title, run), axis in zip(panels.items(), axes.flat, strict=True):
    for probability in (0.99, 0.9, 0.5):
        axis.fill(*region(probability), facecolor="tab:orange", alpha=0.25, linewidth=0)
    draws = run.draws["theta"].reshape(-1, 2)
    draws = draws[:: max(1, len(draws) // 1000)]
    axis.plot(*draws.T, ".", color="tab:blue", markersize=2.5, alpha=0.6)
    outside = np.mean(np.any((draws < low) | (draws > high), axis=1))
    axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    axis.set_title(f"{title}; warnings: {len(run.warnings)}; outside: {outside:.0%}", fontsize=9)
figure.supxlabel("θ₁")
figure.supylabel("θ₂")
plt.show()

# %% [markdown]
# Blue are the draws, orange the exact posterior (50, 90 and 99 %; not private), and "outside" the part of the draws
# that the frame does not hold. With a budget that is too small the draws are noise: in the wrong place, or wide, and of
# no shape. From some ε on `auto` sees the bend, and what more budget does after that is hard to see: the shape is the
# posterior's own. The draws of DP-HMC are those of short chains, which the budget ended long before they had been
# everywhere.
#
# ## What the runs say of themselves
#
# On real data there is no orange. There is `quality`, and it was made to be read:

# %%
for epsilon, run in runs.items():
    print(f"ε = {epsilon:g}\n{run.quality}\n")

# %% [markdown]
# Look at three things:
#
# - **Fit**: a Gaussian or a curved surrogate. `auto` returns a Gaussian where a Gaussian is enough, *as far as the
#   noise lets it see*: with a small budget the bend itself is not visible.
# - **Privacy noise**: the part of the widest interval that is noise. Near 100 % the draws say what the noise was.
# - **Reasons**: each is a warning, and says what would help. A flag says that something is wrong, and only roughly how
#   wrong: if the bend was not seen, neither was how far the draws are from it. Now and then a good run is flagged, or a
#   bad one is not; how often was measured: [auto](../auto.md).
#
# DP-HMC knows nothing of that kind. It has chains, and chains have R̂ and effective draws:

# %%
print(chains.summary()[["mean", "sd", "r_hat"]].to_string())
for text in chains.warnings:
    print("-", text)

# %% [markdown]
# Its draws are those of the exact posterior if it runs for long enough, and a budget may not pay for that. If you want
# exact accept tests, try `sample(..., exact=True)`: a chain on the surrogate that `auto` has found, which needs far
# fewer answers for each step.
#
# ## What to read next
#
# - [Samplers](../samplers.md): which there are and when to set what.
# - [Reproduction](../reproduction.md): the paper's experiments, with all its samplers.
# - [Auto, measured](../auto.md): this posterior and many others, against exact ones.
