# %% [markdown]
# # A real table, from schema to publication
#
# You hold a table about people and want to publish a regression. This tutorial does that with a real one, the Adult
# data: 48,842 people of the United States census of 1994, which come with the package. It goes from the schema to what
# may be published, and then, because these data are public, looks at what nobody may look at otherwise: the same
# regression without noise.

# %%
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import dpmcmc

# What speaks against a result is a warning, and in `posterior.warnings`. Here it is printed below, with the result.
warnings.simplefilter("ignore", dpmcmc.errors.DPMCMCWarning)

# %% [markdown]
# ## What is known without looking
#
# A table comes with a *schema*: what is known about it without looking at it. It is public, and not protected. For
# Adult it comes from the description of the data set; for a table of yours from the questionnaire, or from common
# knowledge. [Tables](../tables.md#the-schema) tells how to fill one in.

# %%
table = dpmcmc.data.adult()  # yours: dpmcmc.Table("people.parquet", "people.schema.yaml")
print(table.num_records, "people")
for name in ("age", "education_num", "hours_per_week", "sex", "income"):
    field = table.schema[name]
    if field.kind == "number":
        print(f"{name}: within {field.bounds}, coded as (x − {field.center:g})/{field.scale:g}")
    else:
        print(f"{name}: {field.kind} {field.level_names or ''}")

# %% [markdown]
# An age is a number from 17 to 90, and is coded as (age − 40)/20, with round numbers that anybody could state. Mean and
# sd of the column would do the same job, and would tell of the people in it: so would its smallest value, or a list of
# the levels that occur.
#
# ## Formula and budget
#
# The formula is public too, so it is chosen before anything is looked at. So is the budget: ε and δ bound what
# everything that this run releases, together, can tell about one person. (What they mean: [privacy](../privacy.md).) A
# plan says beforehand what they buy: how many times as wide as without noise the intervals will be, for benign data and
# for skewed ones. It needs the number of people and of coefficients, and no data.

# %%
formula = "income ~ age + education_num + hours_per_week + C(sex)"
model, records = dpmcmc.regression(formula, table)
for epsilon in (0.1, 0.3, 1.0):
    plan = dpmcmc.plan("auto", num_records=table.num_records, epsilon=epsilon, delta=1e-6, dimension=model.dimension)
    benign, skewed = plan.interval_widening
    print(f"ε = {epsilon:g}: {benign:.2f} to {skewed:.2f} times as wide" if plan.feasible else plan.notes)

# %% [markdown]
# ε = 1 is worth its price. With `checkpoint` the run keeps what it was told in a folder: after a crash `dpmcmc.resume`
# goes on from there, and in the end the folder holds the results. (A second run needs another folder, since what was
# paid for is not overwritten.)

# %%
posterior = dpmcmc.sample(model, records, epsilon=1.0, delta=1e-6, checkpoint="adult-run", progress=False)

# %% [markdown]
# ## How to read the result
#
# First `quality`: what the draws are from, whether the search settled, and what speaks against the result. Each line
# that begins with `Reason` would be a warning, and says what helps.

# %%
print(posterior.quality)

# %% [markdown]
# Then the summary. `noise_share` is the part of an interval that is privacy noise: at 0.1 it would be 90 % as wide
# without. The intervals are honest about it: they are as wide as they must be for all that is not known, the noise
# included. R̂ and ESS say little here, as the draws are no chains: they are independent, and cost nothing.

# %%
summary = posterior.summary()
print(summary[["mean", "sd", "noise_share"]].to_string())

# %% [markdown]
# A coefficient is for a coded column: `age` is what 20 years do to the log odds of an income above 50,000 dollars. In
# the data's units it is what one year does. That is a linear map of the same draws and costs nothing.

# %%
in_units = posterior.on_original_scale()
print(in_units.summary()[["mean", "sd", "noise_share"]].to_string())

# %% [markdown]
# ## Predictions for made-up people
#
# Predictions are functions of the draws, and free, as long as the rows are public. So make people up. Never predict for
# a row of the table: a prediction tells of the row that it is for.

# %%
people = {
    "age": [25, 25, 50, 50],
    "education_num": [9, 13, 9, 13],  # 9: high school, 13: a bachelor's degree
    "hours_per_week": [40, 40, 40, 40],
    "sex": ["Female", "Male", "Female", "Male"],
}
print(posterior.predict(people).summary().to_string())

# %% [markdown]
# `mean` is the probability of a high income, and `mean_lower` and `mean_upper` its 90 % interval. The interval of the
# outcome is that of one new person, who has a high income or not.
#
# ## What may be published
#
# The whole folder, and everything above that came out of `posterior`: each line of it is a function of what was
# released. The folder has the draws for ArviZ, the summary, a page for a browser, and the statement, in sentences and
# for programs.

# %%
for file in sorted(Path("adult-run").iterdir()):
    print(file.name)
print()
statement = str(posterior.privacy)
print(statement[: statement.index("PRIVACY LOSS PARAMETER")])

# %% [markdown]
# The statement goes on with all that was asked of the records, what is assumed and what is not protected: `privacy.txt`
# has it whole. Publish it with the numbers. `dpmcmc.Posterior.load("adult-run/posterior.nc")` restores the posterior
# anywhere, and `posterior.save("posterior.nc")` writes one that was run without a folder.
#
# What may **not** be published is the rest: `table`, `records`, anything computed from them, and how long the run took.
# The next run on the same people adds to this one; a [ledger](../budgets.md) keeps count.
#
# ## Beside the regression without noise
#
# With a table that is secret, this tutorial would end here. The Adult data are public: anyone may compute the
# regression without noise, and so it can be shown. **The next cell is not private.** It codes the columns as the schema
# says and finds the Gaussian at the mode by Newton's method, with the prior that the model has. With so many people for
# so few coefficients that is next to the exact posterior.

# %%
columns = table.clean(["age", "education_num", "hours_per_week", "sex", "income"])
design = np.column_stack(
    [
        np.ones(table.num_records),
        (columns["age"] - 40) / 20,
        (columns["education_num"] - 10) / 4,
        (columns["hours_per_week"] - 40) / 20,
        columns["sex"],  # 0 for Female, the reference; 1 for Male
    ]
)
prior_precision = np.eye(5) / 2.5**2
theta = np.zeros(5)
for _ in range(30):
    chance = 1 / (1 + np.exp(-design @ theta))
    curvature = (design * (chance * (1 - chance))[:, None]).T @ design + prior_precision
    theta = theta + np.linalg.solve(curvature, design.T @ (columns["income"] - chance) - prior_precision @ theta)
sd = np.sqrt(np.diag(np.linalg.inv(curvature)))

# %%
names = ["intercept", *model.feature_names]
draws = np.column_stack([posterior.draws["intercept"].reshape(-1), posterior.draws["coefficients"].reshape(-1, 4)])
low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)

figure, axes = plt.subplots(1, 5, figsize=(10, 3.2), layout="constrained")
for place, (name, axis) in enumerate(zip(names, axes, strict=True)):
    axis.plot([0, 0], [low[place], high[place]], linewidth=6, color="tab:blue", label="private, ε = 1")
    axis.plot(0, middle[place], "o", color="white", markersize=3)
    ends = [theta[place] - 1.645 * sd[place], theta[place] + 1.645 * sd[place]]
    axis.plot([1, 1], ends, linewidth=6, color="tab:orange", label="without noise: NOT private")
    axis.plot(1, theta[place], "o", color="white", markersize=3)
    axis.set(title=name, xlim=(-1, 2), xticks=[])
    axis.title.set_fontsize(9)
figure.suptitle("90 % intervals (each axis has its own scale)", fontsize=10)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()

# %% [markdown]
# The blue intervals are a little wider, and lie a little elsewhere: by about as much as the extra width allows for. Run
# this again and the blue ones move, since the noise is drawn anew; the orange ones stay. (A second run on real people
# would cost as much again.) How often such intervals hold the truth was measured on made-up tables:
# [coverage](../coverage.md).
#
# ## What to read next
#
# - [Tables](../tables.md): the schema, formulas, and what is not protected.
# - [Several rows for a person](several_rows.py), if yours is a table of visits, or payments.
# - [Groups](hierarchical.py), if your people come from clinics, schools or states.
# - [Budgets](../budgets.md): several analyses of the same people.
