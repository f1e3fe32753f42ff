# %% [markdown]
# # Several rows for each person
#
# A table of visits has many rows for some people and few for others. If rows are taken for people, one visit is
# protected, and not the person who made thirty. This tutorial shows what goes wrong then, how to say whom rows belong
# to, and what it costs to protect all rows of a person together.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np

import dpmcmc

# What speaks against a result is a warning, and in `posterior.warnings`. Here it is printed below, with the result.
warnings.simplefilter("ignore", dpmcmc.errors.DPMCMCWarning)

# %% [markdown]
# ## A table of visits
#
# The people are made up: most see the doctor a few times, a few very often. At each visit it is written down which dose
# they took, and whether the pain was gone.

# %%
generator = np.random.default_rng(1)
num_people = 6000
visits = np.minimum(1 + generator.negative_binomial(1, 0.3, num_people), 40)
person = np.repeat(np.arange(num_people), visits)
person = generator.permutation(person)  # a table by date, not by person
dose = generator.uniform(0, 10, len(person)).round(1)
relieved = generator.random(len(person)) < 1 / (1 + np.exp(1.0 - 0.3 * dose))
rows = {"person": person, "dose": dose, "relieved": relieved}

fields = [
    dpmcmc.Field("person", "integer", minimum=0, maximum=10_000_000),
    dpmcmc.Field("dose", "number", minimum=0, maximum=10),
    dpmcmc.Field("relieved", "boolean"),
]


def fit(schema, epsilon=1.0):
    """Return the table and the posterior of the same regression under this schema."""
    table = dpmcmc.Table(rows, schema)
    model, records = dpmcmc.regression("relieved ~ dose", table)
    return table, dpmcmc.sample(model, records, epsilon=epsilon, delta=1e-6, progress=False)


# %% [markdown]
# ## If rows count as people
#
# A schema that says nothing about persons takes each row for one. Nothing stops you: software cannot know whose rows
# they are. But the statement says what was protected, and it is worth reading.


# %%
def whom_it_protects(posterior):
    """Return the part of the privacy statement that says for whom the guarantee is."""
    text = str(posterior.privacy)
    return text[text.index("UNIT OF PRIVACY") : text.index("TRUST MODEL")]


by_row, of_rows = fit(dpmcmc.Schema(fields))
print(by_row)
print(whom_it_protects(of_rows))

# %% [markdown]
# One row of the table, "which stands for one person": that is assumed, and here it is wrong. Who has k rows moves every
# sum up to k times as far, and the cost μ of that grows like k². With the same δ, this is what such a person is
# promised:

# %%
for k in (1, 3, 10, 30):
    epsilon = dpmcmc.privacy.gaussian_epsilon(k**2 * of_rows.privacy.mu, of_rows.privacy.delta)
    print(f"a person with {k:2d} rows: ε = {epsilon:.1f}")

# %% [markdown]
# The last is next to no promise at all. Those who are in the table most, because they are ill most, are protected
# least.
#
# ## Say whose rows they are
#
# `unit` names the column that tells people apart, and `max_rows` says how many rows of each are used. In a schema file
# that is one line at the end, `dpmcmc: {unit: person, max_rows: 4}`.

# %%
by_person, of_people = fit(dpmcmc.Schema(fields, unit="person", max_rows=4))
print(by_person)
print(whom_it_protects(of_people))

# %% [markdown]
# Now a record is all rows of a person: their likelihoods are multiplied, and what is clipped and gets noise is the
# person's sum. Who has a thousand rows moves no more than who has four. The first four in the table's order are used,
# whoever they belong to; rows without an id are taken for one person's.
#
# What is public has changed too. The number of *persons* is; the number of *rows* is not any more, as it tells how
# often people came. Do not print it, and do not publish a table that shows it.
#
# ## What it costs
#
# More rows of each person are more data, and also more that one person can do to a sum, which takes more noise. Here is
# the same regression for several `max_rows`. Each of the runs has a budget of its own, which only made-up people can
# afford: on real ones the budgets of all of them would add up. `sd` is what the posterior reports, noise included;
# without noise it would be `sd` × (1 − `noise_share`).

# %%
choices = (1, 2, 4, 8, 16)
total, bare = [], []
for max_rows in choices:
    posterior = of_people if max_rows == 4 else fit(dpmcmc.Schema(fields, unit="person", max_rows=max_rows))[1]
    sd = posterior.draws["coefficients"].std()
    share = float(posterior.quality.noise_share["coefficients"][0])
    total.append(sd)
    bare.append(sd * (1 - share))
    print(f"max_rows = {max_rows:2d}: sd {sd:.3f}, noise_share {share:.2f}, warnings: {len(posterior.warnings)}")

# %%
figure, axis = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
axis.plot(choices, total, "o-", color="tab:blue", label="sd of the slope, as reported")
axis.plot(choices, bare, "o--", color="tab:gray", label="the part of it that is not privacy noise")
axis.set(xscale="log", xticks=choices, xticklabels=choices, xlabel="max_rows", ylim=(0, None))
axis.legend(frameon=False)
plt.show()

# %% [markdown]
# The grey line falls while a larger `max_rows` still adds rows, and is flat where hardly anyone has more. The gap
# between the lines is the noise, which grows with the rows that a person may add. The best place is somewhere between,
# and flat: to be wrong by a factor of two costs little.
#
# ## How to choose it without looking
#
# `max_rows` is part of the schema, and public. A histogram of rows per person, or the curve above for the real table,
# is a look without a budget. Take it from what is known:
#
# - from the rules: a study with four appointments, a meter that reports once a month;
# - from a published figure: how often people see a doctor in a year;
# - if nothing is known, from what you want to learn. What differs *between* people (age, sex) hardly gains from more
#   rows of each; what differs between visits (the dose) does.
#
# Then choose what most people have at most, rather than what anybody could have. Rows beyond it are not used. If those
# who have many rows are different from others, that is a choice about the result as well: with a small `max_rows`
# everyone counts about the same.
#
# One thing a unit does not do: it protects people, and does not model them. The likelihood takes the rows of a person
# for independent given the parameters, as it does any rows, and here they are. If they are alike (some people's pain
# goes away at any dose), intervals are too narrow, with privacy and without. `max_rows=1` is a cure that always works.
#
# ## What to read next
#
# - [Tables](../tables.md#several-rows-for-a-person): the rules in short, and units in files.
# - [Privacy](../privacy.md): what ε and δ promise, and to whom.
# - [Budgets](../budgets.md): when the same people are in more than one analysis.
