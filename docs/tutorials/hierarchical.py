# %% [markdown]
# # Groups of people: a hierarchical model
#
# Patients come from clinics, and clinics differ. A hierarchical model learns how much they differ, and lets small
# clinics borrow from the others. This tutorial writes one in NumPyro, fits it privately, looks at what a clinic's size
# does to its interval, and says what to make of the flags that such models often get.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import dpmcmc

# What speaks against a result is a warning, and in `posterior.warnings`. Here it is printed below, with the result.
warnings.simplefilter("ignore", dpmcmc.errors.DPMCMCWarning)

# %% [markdown]
# ## Made-up patients
#
# Twelve clinics, the largest sixteen times as large as the smallest. For each patient there is the age, the clinic, and
# whether they recovered. As the patients are made up, the true effect of each clinic is known.

# %%
NUM_CLINICS = 12
TRUE_START = -0.4


def make_patients(smallest, largest, seed=1):
    """Return a table, and what nobody would know: true log odds (at the age of 50) and sizes of the clinics."""
    generator = np.random.default_rng(seed)
    sizes = np.geomspace(smallest, largest, NUM_CLINICS).round().astype(int)
    effects = generator.normal(0.0, 0.5, NUM_CLINICS)
    clinic = np.repeat(np.arange(NUM_CLINICS), sizes)
    age = generator.integers(20, 81, len(clinic))
    chance = 1 / (1 + np.exp(-TRUE_START - 0.6 * (age - 50) / 30 - effects[clinic]))
    columns = {"age": age, "clinic": np.array(labels)[clinic], "recovered": generator.random(len(clinic)) < chance}
    return dpmcmc.Table(columns, schema), TRUE_START + effects, sizes


# %% [markdown]
# ## What is public
#
# The schema lists the clinics. That there are these twelve is taken as public: from a register, not from the table. A
# clinic that is listed and has no patient is no problem: its effect comes from the others. One that is in the table and
# not listed is a missing value, and its patients count as nothing. A list made of those that *occur* in the table would
# say that somebody was there.
#
# How many patients each clinic has is **not** public. Only their total is.

# %%
labels = [f"clinic {number:02d}" for number in range(1, NUM_CLINICS + 1)]
schema = dpmcmc.Schema(
    [
        dpmcmc.Field("age", "integer", minimum=20, maximum=80),
        dpmcmc.Field("clinic", "string", levels=labels),
        dpmcmc.Field("recovered", "boolean"),
    ]
)
table, truth, sizes = make_patients(500, 8000)
print(table)

# %% [markdown]
# ## The model
#
# An ordinary NumPyro model. It gets the table's columns as the schema codes them: `age` from −1 to 1, `clinic` as a
# whole number, `recovered` as 0 or 1. All observations stand in one plate over the records; other plates, such as that
# over the clinics, are for parameters. Nothing in it is computed from the table.


# %%
def recovery(age, clinic, recovered):
    """Logistic regression with an effect for each clinic."""
    start = numpyro.sample("start", dist.Normal(0, 1.5))
    slope = numpyro.sample("slope", dist.Normal(0, 1.5))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("clinics", NUM_CLINICS):
        effects = numpyro.sample("effects", dist.Normal(0, spread))
    with numpyro.plate("patients", age.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=start + slope * age + effects[clinic]), obs=recovered)


model = dpmcmc.from_numpyro(recovery, table)  # looks at names and types only
posterior = dpmcmc.sample(model, table, epsilon=4.0, delta=1e-6, progress=False)
print(posterior.quality)

# %% [markdown]
# What to make of this, line by line:
#
# - *Held by the prior only*: `spread` may be there by construction, since it has no part in the likelihood; what is
#   known of it comes through the effects. So may the effect of a small clinic, of which the others tell more than its
#   own patients do.
# - *The posterior has another mode far from this one*: you may or may not see this reason, as it depends on the noise.
#   `auto` sends scouts into the prior to look for other modes, and flags what they cannot rule out. In models with
#   effects of groups that happens often, and mostly for nothing: ask whether signs or labels of parameters could be
#   switched. Here none can. A larger ε or more people make it rarer; `groups=` (below) knows that there is one mode.
# - *The curvature's noise hides directions*, or *noise moves the draws*: these are about the result, and no false
#   alarm. See the end of this page.
#
# ## What a clinic's size does
#
# On the left, the 90 % interval of each clinic's log odds of recovery (at the age of 50, which is coded as 0), from the
# smallest clinic to the largest, with the truth. On the right, how wide the interval is. Sizes and truth can be shown
# because the patients are made up.


# %%
def intervals(posterior, start, effects):
    """Return the ends and the middle of the central 90 % of the log odds of each clinic."""
    log_odds = posterior.draws[start][..., None] + posterior.draws[effects]
    return np.quantile(log_odds, [0.05, 0.5, 0.95], axis=(0, 1))


def compare(results, truth, sizes, title):
    """Draw the intervals of several posteriors side by side."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", width_ratios=(3, 2))
    for shift, (name, (low, middle, high)) in zip((-0.16, 0.16), results.items(), strict=False):
        place = np.arange(NUM_CLINICS) + shift
        (line,) = left.plot(middle, place, "o", markersize=4, label=name)
        left.hlines(place, low, high, color=line.get_color(), linewidth=2)
        right.plot(sizes, high - low, "o-", markersize=4, color=line.get_color())
    left.plot(truth, np.arange(NUM_CLINICS), "k|", markersize=12, label="truth")
    left.set(yticks=range(NUM_CLINICS), yticklabels=labels, xlabel="log odds of recovery", title=title)
    left.legend(fontsize=8)
    right.set(xscale="log", xlabel="patients of the clinic", title="width of the interval", ylim=(0, None))
    right.set_xticks(sizes[::3], [str(size) for size in sizes[::3]])
    right.minorticks_off()
    return figure


by_numpyro = intervals(posterior, "start", "effects")
compare({"NumPyro model": by_numpyro}, truth, sizes, "12 clinics, ε = 4")
plt.show()

# %% [markdown]
# Small clinics have wide intervals, as they would without privacy: the width goes down like one over the root of the
# size. `noise_share` says which part of each interval is privacy noise:

# %%
print(posterior.summary()[["mean", "sd", "noise_share"]].to_string())

# %% [markdown]
# ## The same by a formula
#
# For this model there is a shorter way, which is also the safer one: `groups=` gives each level an effect, with a
# common sd. Its family is known to the package: the scores are bounded whatever the records are, and there is one mode
# only. On real people a second run is a second budget.

# %%
ready, records = dpmcmc.regression("recovered ~ age", table, groups="clinic")
by_formula = dpmcmc.sample(ready, records, epsilon=4.0, delta=1e-6, progress=False)
print(by_formula.quality)
compare(
    {"NumPyro model": by_numpyro, "groups=": intervals(by_formula, "intercept", "group_effects")},
    truth,
    sizes,
    "both, ε = 4 each",
)
plt.show()

# %% [markdown]
# They differ a little by their noise and by their priors. Take `groups=` where it does what you need, and NumPyro for
# what it cannot: slopes that differ between groups, groups in groups, another likelihood.
#
# ## Where clinics are small
#
# Twelve clinics with a tenth of the patients, and the same ε.

# %%
small_table, _, _ = make_patients(50, 800)
small_model = dpmcmc.from_numpyro(recovery, small_table)
try:
    dpmcmc.sample(small_model, small_table, epsilon=4.0, delta=1e-6, progress=False)
except dpmcmc.errors.BudgetExceededError as error:
    print("Refused, with nothing spent:", error)

# %% [markdown]
# That is refused before anything is spent: noise does not shrink with the table, and here it would be all that there
# is. The message says what it would take. Closer to the limit a run is not refused, but mostly flagged:

# %%
middling_table, middling_truth, middling_sizes = make_patients(100, 2500)
middling_model = dpmcmc.from_numpyro(recovery, middling_table)
middling = dpmcmc.sample(middling_model, middling_table, epsilon=4.0, delta=1e-6, progress=False)
print(middling.quality)
middling_intervals = intervals(middling, "start", "effects")
compare({"NumPyro model": middling_intervals}, middling_truth, middling_sizes, "smaller clinics, ε = 4")
plt.show()

# %% [markdown]
# **Take a flag seriously.** If the reasons say that the noise hides directions, the intervals of some clinics are not
# known to be right; if they say that the search did not settle, none is. A flagged result is private all the same, and
# what was spent is spent. [Auto, measured](../auto.md) has a hierarchical model of six groups of 200 to 2000 people,
# which at ε = 4 was flagged, and was far from the exact posterior. What helps, best first:
#
# 1. *Fewer and larger groups.* Leave small clinics out of the levels, and let `missing="own level"` make one group of
#    them, before anything is looked at: sizes are secret, but which clinics are small is often known from public
#    sources. Each group is a parameter, and noise grows with their number.
# 2. *More people, or a larger ε.* `dpmcmc.plan("auto", …)` says beforehand, and for nothing, where the limit is. Stay
#    well away from it.
# 3. *`groups=`* instead of a model of your own.
# 4. *The centred form*, as above: `effects` ~ Normal(0, `spread`). The form `spread` × z, which NUTS likes where groups
#    are small, makes a posterior that is bent, and needs more budget to be followed.
#
# ## What to read next
#
# - [Models](../models.md): what a NumPyro model may do, and what is refused.
# - [Auto, measured](../auto.md): which answers were bad, and which of these were flagged.
# - [Several rows for a person](several_rows.py): clinics have patients, and patients have visits.
