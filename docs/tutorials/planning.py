# %% [markdown]
# # Planning a study
#
# How many people must a study have, and how large must ε be, for intervals that are still worth reporting? That can be
# answered before there are any data. Here a study is planned with `dpmcmc.plan_curve`, the plan is tried out on
# synthetic data, and the measured widths are laid over the planned ones.

# %%
import matplotlib.pyplot as plt
import numpy as np

import dpmcmc

# %% [markdown]
# ## The question
#
# A clinic wants to know what four measurements say about an outcome that is yes or no: a logistic regression with an
# intercept and four coefficients, five parameters in all. It can ask about 20,000 people, and would like to promise
# them ε = 1. What would that do to the intervals?
#
# The answer needs the number of records, the number of parameters, ε and δ, and nothing else. δ is 0.1/n unless another
# is given.

# %%
curve = dpmcmc.plan_curve("auto", num_records=20_000, epsilon=1.0, dimension=5, width=1.2)
curve.plot()

# %% [markdown]
# **How to read it.** Above, intervals are compared with those that the *same* people would give without privacy: 1
# means that privacy costs nothing. Below, all are compared with the intervals of 20,000 people without privacy, so that
# the gain by asking more people is seen as well: without noise, four times as many people halve an interval.
#
# Each band goes from **benign data** (solid: records count about equally, as in a logistic regression on bounded
# measurements) to **skewed data** (dashed: a few records, with long tails or rare features, say much more than the
# others). Before the data are there nobody knows where in the band a study will be. Hatched is what cannot work: the
# curvature of the posterior would be lost in its noise, and `dpmcmc.sample` refuses such a run before anything is
# spent.
#
# The same numbers, as a table at the ε and n that matter most:

# %%
middle = len(curve.epsilons) // 2
print("times as wide as without noise:")
for row in (middle - 2, middle, middle + 2):
    for column in (middle - 2, middle, middle + 2):
        low, high = curve.interval_widening[row, column]
        works = f"{low:.2f} (benign) to {high:.2f} (skewed)" if np.isfinite(low) else "cannot work"
        print(f"  ε = {curve.epsilons[row]:g}, n = {curve.record_numbers[column]:,}: {works}")

# %% [markdown]
# ## Deciding on ε and n
#
# The clinic can bear intervals that are a fifth wider than without privacy: that is the `width=1.2` above. The curve
# says what it takes, for benign data and for skewed data:

# %%
print("smallest ε with 20,000 people (benign, skewed):", curve.epsilon_needed)
print("fewest people at ε = 1 (benign, skewed):      ", curve.records_needed)

# %% [markdown]
# This is a logistic regression: if the measurements are bounded, the first numbers count. (Linear and Poisson
# regressions on bounded measurements [came out](../planning.md) about the middle.) If some have long tails (incomes,
# costs, counts), the second ones do; it is then worth while to bound or transform them: a logarithm with public bounds
# costs nothing and moves a study towards the benign end.
#
# In a terminal:
#
# ```
# dpmcmc plan --sampler auto --dimension 5 --num-records 20000 --epsilon 1 --width 1.2 --curve plan.png
# ```
#
# ## A pilot on synthetic data
#
# A plan is a forecast. Whether it holds for data *like those that are expected* can be tried out beforehand: make such
# data, run the sampler that will be used, and compare with the posterior without noise, which for data of one's own
# making may be computed. The pilot must be synthetic, or public: every look at the real records costs budget.


# %%
def make_records(num_records, generator):
    """Four measurements between −1 and 1, and an outcome that depends on them."""
    features = generator.uniform(-1.0, 1.0, (num_records, 4))
    chance = 1.0 / (1.0 + np.exp(-(-0.5 + features @ [1.0, -0.8, 0.5, 0.0])))
    return {"X": features, "y": (generator.random(num_records) < chance).astype(float)}


def sds_without_noise(records, prior_scale):
    """Standard deviations of the posterior without noise: from the curvature at the mode, by Newton's method."""
    rows = np.column_stack([np.ones(len(records["y"])), records["X"]])
    theta = np.zeros(rows.shape[1])
    for _ in range(20):
        chance = 1.0 / (1.0 + np.exp(-rows @ theta))
        curvature = (rows * (chance * (1.0 - chance))[:, None]).T @ rows + np.eye(len(theta)) / prior_scale**2
        theta += np.linalg.solve(curvature, rows.T @ (records["y"] - chance) - theta / prior_scale**2)
    return np.sqrt(np.diag(np.linalg.inv(curvature)))


def widenings(num_records, epsilon):
    """Run the study once on made-up records; return for each parameter how many times as wide its interval is."""
    records = make_records(num_records, np.random.default_rng())
    model = dpmcmc.models.LogisticRegression(4, prior_scale=2.5)
    posterior = dpmcmc.sample(model, records, epsilon=epsilon, delta=0.1 / num_records, progress=False)
    chains = posterior.draws.values()  # chains × draws × entries
    draws = np.concatenate([np.reshape(values, (values.shape[0] * values.shape[1], -1)) for values in chains], axis=1)
    return draws.std(axis=0) / sds_without_noise(records, 2.5)


# %% [markdown]
# Three studies: the one that was thought of, one with half the budget, and one with a quarter of the people.

# %%
studies = [(20_000, 1.0), (20_000, 0.5), (5_000, 1.0)]
measured = {(n, epsilon): widenings(n, epsilon) for n, epsilon in studies}
for (n, epsilon), values in measured.items():
    plan = dpmcmc.plan("auto", num_records=n, epsilon=epsilon, delta=0.1 / n, dimension=5)
    low, high = plan.interval_widening
    print(f"n = {n:,}, ε = {epsilon:g}: planned {low:.2f} to {high:.2f}, measured {np.median(values):.2f} (median)")

# %% [markdown]
# Laid over the planned bands, a dot for each parameter:

# %%
figure, axes = plt.subplots(figsize=(7.0, 4.2), layout="constrained")
for n, colour, marker in ((20_000, "#0072b2", "o"), (5_000, "#d55e00", "s")):
    column = int(np.argmin(np.abs(curve.record_numbers - n)))
    low, high = curve.interval_widening[:, column, :].T  # NaN where a run cannot work: nothing is drawn there
    axes.fill_between(curve.epsilons, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(curve.epsilons, low, color=colour, label=f"planned, n = {n:,}: benign")
    axes.plot(curve.epsilons, high, "--", color=colour, label=f"planned, n = {n:,}: skewed")
    for (size, epsilon), values in measured.items():
        if size == n:
            axes.plot(
                np.full(len(values), epsilon), values, marker, color=colour, markeredgecolor="black", markersize=6
            )
axes.set(
    xscale="log", xlabel="Privacy budget ε", ylabel="Times as wide as without noise", xlim=(0.25, 4.0), ylim=(0.9, 3.0)
)
axes.set_xticks([0.25, 0.5, 1.0, 2.0, 4.0], ["0.25", "0.5", "1", "2", "4"])
axes.legend()
plt.show()

# %% [markdown]
# These measurements are bounded, so the dots should lie in the lower part of the bands. They differ a little from run
# to run, as the noise is drawn anew each time, and between parameters.
#
# ## What a plan does not know
#
# - **Data with very long tails** can be worse than the band's skewed end. To see whether yours are, change
#   `make_records` so that it makes measurements like those that you expect, and run the pilot again. The page on
#   [planned and measured widths](../planning.md) has such cases.
# - **A posterior that is not about Gaussian** (few people for a parameter, several modes, a strongly curved one) costs
#   more; how much, nobody can say beforehand.
# - **Whether a run went well.** A plan tells the expected noise. The finished run says in `posterior.quality` what
#   speaks against it, and in `noise_share` how much of each interval *is* noise.
# - **Other analyses.** A budget is for all that is ever released about these people. Two analyses share it; a ledger
#   (`dpmcmc.Ledger`) keeps count of that.
