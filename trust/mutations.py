"""The bugs that are planted, each as an edit of one or two places, with the fast tests that must notice it.

A bug is one that a careless or hostile change could make: it breaks the guarantee, or the posterior, and nothing else.
An edit's old text stands exactly once in its file. `tests/trust/test_mutants.py` sees to it that the list keeps up with
the source; `trust/mutants.py` plants them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Edit(NamedTuple):
    """One place of one file: what stands there, and what is put in its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A bug to plant.

    Attributes
    ----------
    name
        What it is called on the command line.
    kind
        Which of the bugs that must be there (:data:`KINDS`) it is an example of; "" for the others.
    plants
        What is wrong then, in a sentence.
    edits
        The places.
    tests
        Node ids of fast tests, each of which must fail (with one of its parameters, if it has any).
    audit
        Arguments of a `dpmcmc audit` that must find more than is claimed; () if none is named.
    """

    name: str
    kind: str
    plants: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    audit: tuple[str, ...] = ()


KINDS = (
    "noise halved",
    "sensitivity C for 2C",
    "noise re-used between chains",
    "noise re-used between iterations",
    "noise re-used between blocks",
    "clipping after summing",
    "a NaN record passes",
    "bound taken from the data",
    "an un-noised diagnostic in the result",
    "charged after the run",
    "chains not composed",
    "subsampled accountant fed C for 2C",
    "penalty with the wrong sigma",
    "rounding that lets a norm grow",
    "one record changes another's contribution",
    "a unit's rows clipped one by one",
    "a schema bound taken from the data",
    "a ledger entry written after the block",
    "resume that repeats a paid release with new noise uncharged",
    "the momentum key used twice",
    "jitter that looks at the data",
    "an error text with a value",
)
"""The bugs of which there must be at least one each."""

_CURATOR = "src/dpmcmc/curator/curator.py"
_NOISE = "src/dpmcmc/curator/noise.py"
_PAYMENT = "src/dpmcmc/curator/payment.py"
_INTEGERS = "src/dpmcmc/curator/integers.py"
_REGRESSION_KERNEL = "src/dpmcmc/curator/kernels/regression.py"
_UNIT_KERNEL = "src/dpmcmc/curator/kernels/units.py"
_PASSES = "src/dpmcmc/curator/passes.py"
_BUDGET = "src/dpmcmc/privacy/budget.py"
_LEDGER = "src/dpmcmc/privacy/ledger.py"
_CHAINS = "src/dpmcmc/inference/chains.py"
_JOURNAL = "src/dpmcmc/inference/journal.py"
_HMC = "src/dpmcmc/samplers/dp_hmc.py"
_SCHEMA = "src/dpmcmc/schema.py"

MUTATIONS = (
    # ------------------------------------------------------------------------------------------------- the noise
    Mutation(
        "noise-halved",
        "noise halved",
        "The exact noise has half the scale that is charged for.",
        (Edit(_NOISE, "_exact_mechanism(int(scale))(", "_exact_mechanism(max(1, int(scale) // 2))("),),
        ("tests/curator/test_curator.py::test_released_noise_has_the_stated_sd[gradient]",),
        audit=("--fast", "--query", "log_ratio", "--query", "batch_gradient"),
    ),
    Mutation(
        "noise-in-floats",
        "",
        "Exact noise is a rounded float: of the right law, but with bits that no float holds missing.",
        (
            Edit(
                _NOISE,
                "drawn = _exact_mechanism(int(scale))(np.zeros(count, np.int64))",
                "drawn = np.rint(np.random.default_rng().standard_normal(count) * scale)",
            ),
        ),
        ("tests/curator/test_noise.py::test_exact_noise_is_finer_than_any_float",),
    ),
    Mutation(
        "noise-scale-rounded",
        "",
        "A noise scale that no float holds is rounded, down as well as up, instead of refused.",
        (Edit(_NOISE, "if float(_check_scale(scale)) != scale:", "if not _check_scale(scale):"),),
        ("tests/curator/test_noise.py::test_a_scale_that_no_float_holds_is_refused",),
    ),
    Mutation(
        "sensitivity-c",
        "sensitivity C for 2C",
        "A gradient's noise is scaled to C, as if a record were added and not replaced.",
        (
            Edit(
                "src/dpmcmc/queries/gradient.py",
                "chosen_bits(self.lattice_bits, num_records, self.noise_multiplier)\n"
                "        return Lattice(bound, 2.0 * bound, scaled_noise(2.0,",
                "chosen_bits(self.lattice_bits, num_records, self.noise_multiplier)\n"
                "        return Lattice(bound, 1.0 * bound, scaled_noise(1.0,",
            ),
        ),
        ("tests/curator/test_curator.py::test_released_noise_has_the_stated_sd[gradient]",),
        audit=("--fast", "--query", "gradient"),
    ),
    Mutation(
        "noise-shared-by-chains-of-a-question",
        "noise re-used between chains",
        "All chains of a question get the same noise, so that differences of their answers have none.",
        (
            Edit(
                _CURATOR,
                "return [self.noise.draw(lattice.noise_scale, (chains, lattice.numbers)) for lattice in lattices]",
                "drawn = [self.noise.draw(lattice.noise_scale, (1, lattice.numbers)) for lattice in lattices]\n"
                "        return [np.repeat(one, chains, axis=0) for one in drawn]",
            ),
        ),
        ("tests/curator/test_payment.py::test_chains_of_a_question_have_noise_of_their_own",),
    ),
    Mutation(
        "noise-shared-by-chains-of-a-block",
        "noise re-used between chains",
        "In a block one number of noise serves all chains (of gradients: all coordinates).",
        (
            Edit(
                _PAYMENT,
                "used[...] = self._noise.draw(scale, used.shape)",
                "used[...] = self._noise.draw(scale, (*used.shape[:-1], 1))",
            ),
        ),
        ("tests/curator/test_payment.py::test_no_number_of_noise_is_paid_for_twice",),
    ),
    Mutation(
        "noise-shared-by-iterations",
        "noise re-used between iterations",
        "All draws of a block get the noise of its first.",
        (
            Edit(
                _PAYMENT,
                "used[...] = self._noise.draw(scale, used.shape)",
                "used[...] = self._noise.draw(scale, used.shape[1:] if order.room else used.shape)",
            ),
        ),
        ("tests/curator/test_payment.py::test_no_number_of_noise_is_paid_for_twice",),
    ),
    Mutation(
        "noise-shared-by-blocks",
        "noise re-used between blocks",
        "Noise that was drawn ahead is kept for as long as the next block is like the last.",
        (
            Edit(
                _PAYMENT,
                "self._coming = None if ahead is None else (ahead, self._in_a_thread(ahead))",
                "if not (expected and ahead == order):\n"
                "            self._coming = None if ahead is None else (ahead, self._in_a_thread(ahead))",
            ),
        ),
        ("tests/curator/test_payment.py::test_no_number_of_noise_is_paid_for_twice",),
    ),
    Mutation(
        "paid-noise-used-twice",
        "",
        "Noise that was paid for once may be used again.",
        (Edit(_CURATOR, "                del self._unused[place]\n", ""),),
        ("tests/curator/test_curator.py::test_paid_noise_is_used_once_and_only_where_it_was_paid_for",),
    ),
    Mutation(
        "count-without-noise",
        "",
        "The number of useless records is released without noise.",
        (
            Edit(
                "src/dpmcmc/queries/counts.py",
                "value = noised(counts * lattice.bound, noise[0][:, 0]) / lattice.bound",
                "value = counts if isinstance(query, InvalidCount) else "
                "noised(counts * lattice.bound, noise[0][:, 0]) / lattice.bound",
            ),
        ),
        (
            "tests/curator/test_sensitivity.py::"
            "test_one_scale_of_noise_moves_every_released_number_by_the_stated_sd[invalid_count]",
        ),
        audit=("--fast", "--query", "invalid_count"),
    ),
    Mutation(
        "quantile-of-the-true-counts",
        "",
        "A quantile's histogram is released with noise, and the estimate is read off the one without.",
        (
            Edit(
                "src/dpmcmc/queries/quantile.py",
                "        histogram = (\n"
                "            noised(total(self, question.theta, question.proposal, edges) * lattice.bound, noise[0]) / "
                "lattice.bound\n"
                "        )\n"
                "        estimate = read_quantile(histogram, edges,",
                "        counts = total(self, question.theta, question.proposal, edges)\n"
                "        histogram = noised(counts * lattice.bound, noise[0]) / lattice.bound\n"
                "        estimate = read_quantile(counts, edges,",
            ),
        ),
        ("tests/curator/test_curator.py::test_a_quantile_is_read_off_the_histogram_that_is_released",),
    ),
    Mutation(
        "seeded-noise-called-private",
        "",
        "Answers with seeded noise are of the type that says that they are private.",
        (
            Edit(
                _PASSES,
                "value, noise_sd, mu = query.release(total, question, noise)\n"
                "        release_type = Release if self.private else NotPrivateRelease",
                "value, noise_sd, mu = query.release(total, question, noise)\n"
                "        release_type = Release if self.multiplier else NotPrivateRelease",
            ),
        ),
        ("tests/curator/test_curator.py::test_what_is_not_private_is_of_another_type",),
    ),
    Mutation(
        "noise-of-ones-own-called-private",
        "",
        "A class derived from that of exact noise counts as exact, whatever it draws.",
        (
            Edit(
                _CURATOR,
                "return type(self._noise) is ExactNoise and not vars(self._noise)",
                "return isinstance(self._noise, ExactNoise)",
            ),
        ),
        ("tests/curator/test_curator.py::test_a_noise_source_of_ones_own_is_never_private",),
    ),
    # ----------------------------------------------------------------------------------------- clipping and sums
    Mutation(
        "clipped-after-summing",
        "clipping after summing",
        "A regression adds up a tile's gradients first, and clips the sum to what so many records may add.",
        (
            Edit(
                _REGRESSION_KERNEL,
                "            whole = limit_to(jnp.rint(coefficient), highest)\n"
                "            parts = [jnp.where(finite & (jnp.abs(whole) <= highest), whole, 0.0)]",
                "            parts = [jnp.where(finite, jnp.rint(coefficient), 0.0)]",
            ),
            Edit(
                _REGRESSION_KERNEL,
                "parts = [coefficient @ tile.grid.grid]",
                "parts = [limit_to(coefficient @ tile.grid.grid, bound * tile.real.size)]",
            ),
        ),
        ("tests/curator/test_sums.py::test_sums_equal_the_plain_formula[logistic]",),
    ),
    Mutation(
        "nan-record-passes",
        "a NaN record passes",
        "Comparisons are written so that NaN passes them: such a record adds whatever its bits say.",
        (
            Edit(
                _INTEGERS,
                "        longer = jnp.where(squares > target * target, squares, target * target)\n"
                "        factor = target / jnp.sqrt(jnp.where(squares < jnp.inf, longer, jnp.inf))\n",
                "        factor = target / jnp.sqrt(jnp.where(squares > target * target, squares, target * target))\n",
            ),
            Edit(
                _INTEGERS,
                "counts = tile.real & (squares <= bound * bound * (1.0 - margin(len(rounded), precision)))",
                "counts = tile.real & ~(squares > bound * bound * (1.0 - margin(len(rounded), precision)))",
            ),
        ),
        ("tests/curator/test_sums.py::test_a_bad_record_contributes_zero_and_changes_nothing_else[gaussian]",),
    ),
    Mutation(
        "clipped-at-the-median",
        "bound taken from the data",
        "In coordinates records are clipped at three times the median of their tile, if that is less than C.",
        (
            Edit(
                _INTEGERS,
                "        longer = jnp.where(squares > target * target, squares, target * target)\n"
                "        factor = (target /",
                "        middle = 3.0 * jnp.sqrt(jnp.nanmedian(jnp.where(tile.real, squares, jnp.nan)))\n"
                "        target = jnp.minimum(target, middle)\n"
                "        longer = jnp.where(squares > target * target, squares, target * target)\n"
                "        factor = (target /",
            ),
        ),
        ("tests/curator/test_coordinates.py::test_a_bound_above_all_norms_clips_nothing[z]",),
    ),
    Mutation(
        "bound-that-holds-the-data",
        "bound taken from the data",
        "A log-ratio's bound, which sets the noise, may hold the records.",
        (
            Edit(
                _CURATOR,
                '            allowed.check_constants("bound", program, self.num_records)\n',
                "",
            ),
        ),
        ("tests/inference/test_sampling.py::test_a_bound_that_holds_the_data_is_refused",),
    ),
    Mutation(
        "rounding-grows-the-norm",
        "rounding that lets a norm grow",
        "A record is clipped in floats and rounded, and its integers are taken as they come.",
        (
            Edit(
                _INTEGERS,
                "target = jnp.maximum(bound * (1.0 - 2.0 * margin(len(vectors), precision)) - "
                "0.5 * len(vectors) ** 0.5, 0.0)",
                "target = bound",
            ),
            Edit(
                _INTEGERS,
                "counts = tile.real & (squares <= bound * bound * (1.0 - margin(len(rounded), precision)))",
                "counts = tile.real & (squares < jnp.inf)",
            ),
        ),
        ("tests/curator/test_sums.py::test_the_bound_is_enforced_on_the_integers",),
    ),
    Mutation(
        "checked-is-not-added",
        "",
        "Rounded coordinates are not stored, so that those that are added may be rounded otherwise than those checked.",
        (
            Edit(
                _INTEGERS,
                "    rounded = stored(clipped, tile.here)\n    squares = sum_of_squares(",
                "    rounded = clipped()\n    squares = sum_of_squares(",
            ),
        ),
        ("tests/curator/test_sums.py::test_what_is_checked_is_what_is_added",),
    ),
    Mutation(
        "sums-wrap-around",
        "",
        "So many integers are added in 32 bits that their sum wraps around.",
        (Edit(_INTEGERS, "2 ** (30 - bits))", "2 ** (36 - bits))"),),
        ("tests/curator/test_sums.py::test_integers_are_added_without_wrapping_around",),
    ),
    Mutation(
        "shared-scale",
        "one record changes another's contribution",
        "All records of a tile are scaled by the longest of them.",
        (
            Edit(
                _INTEGERS,
                "        squares = sum_of_squares(scaled)\n",
                "        squares = jnp.max(sum_of_squares(scaled), axis=-1, keepdims=True)\n",
            ),
        ),
        ("tests/curator/test_sums.py::test_a_bad_record_contributes_zero_and_changes_nothing_else[gaussian]",),
    ),
    Mutation(
        "features-centred",
        "one record changes another's contribution",
        "A regression centres its features by the mean of all records.",
        (
            Edit(
                "src/dpmcmc/models/regression.py",
                "        # Narrow outcomes stay, so that float32 features are computed with in float32.\n",
                "        features = features - np.nanmean(features, axis=0, keepdims=True)\n",
            ),
        ),
        ("tests/curator/test_sums.py::test_a_bad_record_contributes_zero_and_changes_nothing_else[logistic]",),
    ),
    Mutation(
        "rows-clipped-one-by-one",
        "a unit's rows clipped one by one",
        "Of a person with several rows each row is clipped, and not their sum.",
        (
            Edit(
                _UNIT_KERNEL,
                "    def scores(self, tile: Tile, theta: jax.Array) -> list[jax.Array]:\n",
                "    def gradient_sum(self, tile: Tile, theta: Any, spacing: Any, bound: Any) -> Any:\n"
                "        if self.family is not None:\n"
                "            return super().gradient_sum(tile, theta, spacing, bound)\n"
                "        return self.of_rows.gradient_sum(tile.by_row, theta, spacing, bound)\n\n"
                "    def scores(self, tile: Tile, theta: jax.Array) -> list[jax.Array]:\n",
            ),
        ),
        ("tests/curator/test_units.py::test_values_equal_the_plain_formula_for_sums_by_unit[student-theta]",),
        audit=("--fast", "--query", "gradient"),
    ),
    Mutation(
        "every-missing-id-a-person",
        "",
        "Each row without an id counts as a person, so that one person's rows can be many.",
        (
            Edit(
                "src/dpmcmc/data/units.py",
                "    keys = map(_key, np.asarray(ids).tolist())\n",
                "    found = enumerate(map(_key, np.asarray(ids).tolist()))\n"
                "    keys = (f'missing {place}' if key is None else key for place, key in found)\n",
            ),
        ),
        ("tests/data/test_units.py::test_a_missing_id_is_an_id_like_any_other",),
    ),
    Mutation(
        "schema-bound-from-the-data",
        "a schema bound taken from the data",
        "Numbers are clamped to what stands in the column, where that is narrower than the schema.",
        (
            Edit(
                _SCHEMA,
                "            low, high = self.bounds\n",
                "            low, high = self.bounds\n"
                "            finite = values[np.isfinite(values)]\n"
                "            if finite.size:\n"
                "                low, high = max(low, float(np.min(finite))), min(high, float(np.max(finite)))\n",
            ),
        ),
        ("tests/test_schema.py::test_rows_alone_are_rows_together",),
    ),
    Mutation(
        "missing-from-the-mean",
        "one record changes another's contribution",
        "A missing number becomes the mean of its column.",
        (
            Edit(
                _SCHEMA,
                "                values[np.isnan(values)] = filled\n",
                "                values[np.isnan(values)] = filled if np.isnan(values).all() else np.nanmean(values)\n",
            ),
        ),
        ("tests/test_schema.py::test_rows_alone_are_rows_together",),
    ),
    Mutation(
        "allowlist-mixes-rows",
        "one record changes another's contribution",
        "A model may use convolutions, which over many records mix rows.",
        (
            Edit(
                "src/dpmcmc/models/allowed.py",
                "    lax.dot_general_p, lax.reduce_and_p,",
                "    lax.conv_general_dilated_p, lax.dot_general_p, lax.reduce_and_p,",
            ),
        ),
        ("tests/curator/test_row_independence.py::test_what_may_mix_rows_is_refused",),
    ),
    # ---------------------------------------------------------------------------------------------------- payment
    Mutation(
        "charged-after-the-answer",
        "charged after the run",
        "A question is answered first and charged then.",
        (
            Edit(
                _CURATOR,
                "            if budget is not None:\n"
                "                cost = self._cost(query, len(batch), public)\n"
                '                _spend(budget, cost, {"kind": query.kind, "answers": len(batch)})\n',
                "",
            ),
            Edit(
                _CURATOR,
                "            release = jax.tree.map(np.asarray, release)\n",
                "            release = jax.tree.map(np.asarray, release)\n"
                "            if budget is not None:\n"
                "                cost = self._cost(query, len(batch), public)\n"
                '                _spend(budget, cost, {"kind": query.kind, "answers": len(batch)})\n',
            ),
        ),
        ("tests/curator/test_curator.py::test_charged_before_computed",),
    ),
    Mutation(
        "charged-after-the-block",
        "charged after the run",
        "A block of steps is charged when it is done.",
        (
            Edit(
                _CURATOR,
                "        self._with_curvature: TileKernel | None = None\n",
                "        self._with_curvature: TileKernel | None = None\n        self._late: list[Any] = []\n",
            ),
            Edit(
                _CURATOR,
                "self._till.take(order, ahead, partial(self._charge, order))",
                "self._till.take(order, ahead, lambda cost: self._late.append((order, cost)))",
            ),
            Edit(
                _CURATOR,
                "            return compiled(self._records, self._numbers(oracle), *self._agree(public))\n",
                "            result = compiled(self._records, self._numbers(oracle), *self._agree(public))\n"
                "        while self._late:\n"
                "            self._charge(*self._late.pop(0))\n"
                "        return result\n",
            ),
        ),
        ("tests/curator/test_curator.py::test_paid_noise_is_used_once_and_only_where_it_was_paid_for",),
    ),
    Mutation(
        "chains-not-composed",
        "chains not composed",
        "Steps are charged for one chain, however many there are.",
        (Edit("src/dpmcmc/queries/declared.py", ".times(num_chains * number)", ".times(number)"),),
        ("tests/curator/test_curator.py::test_paid_noise_is_used_once_and_only_where_it_was_paid_for",),
    ),
    Mutation(
        "chains-of-a-question-not-composed",
        "chains not composed",
        "A question of several chains is charged for one.",
        (
            Edit(
                "src/dpmcmc/queries/base.py",
                "        return num_chains * Fraction(self.mu)\n",
                "        return Fraction(self.mu)\n",
            ),
        ),
        ("tests/curator/test_curator.py::test_every_query_is_charged_what_it_says_for_every_chain[gradient]",),
    ),
    Mutation(
        "charged-by-another-look-at-the-bound",
        "",
        "A log-ratio's bound is evaluated once for the answer and once more for the charge.",
        (
            Edit(
                _CURATOR,
                "                cost = self._cost(query, len(batch), public)\n",
                "                again = self._public(query, batch, other, coordinates)\n"
                "                cost = self._cost(query, len(batch), again)\n",
            ),
        ),
        ("tests/curator/test_curator.py::test_what_is_charged_is_what_is_answered",),
    ),
    Mutation(
        "paid-at-another-noise",
        "",
        "A budget for batches of one noise and size pays for any others.",
        (
            Edit(
                _CURATOR,
                "if asked != (self.budget.noise_ratio, self.budget.sampling_prob, self.budget.scheme):",
                "if asked[2] != self.budget.scheme:",
            ),
        ),
        ("tests/inference/test_sampling.py::test_orders_that_would_be_charged_wrongly_are_refused",),
    ),
    Mutation(
        "record-check-on-top",
        "",
        "What is set apart for the record check of a minibatch run is not taken off what its steps may spend.",
        (
            Edit(
                "src/dpmcmc/inference/planning.py",
                '            rounded_down(Fraction(epsilon) - Fraction(apart["epsilon"])),\n',
                "            epsilon,\n",
            ),
        ),
        ("tests/inference/test_planning.py::test_the_record_check_of_minibatch_samplers_has_a_budget_of_its_own",),
    ),
    Mutation(
        "cost-rounded-to-nearest",
        "",
        "The cost of a query is rounded to the nearest float, which may be below it.",
        (
            Edit(
                "src/dpmcmc/privacy/gaussian.py",
                "return rounded_up(1 / (2 * Fraction(multiplier) ** 2))",
                "return 0.5 / multiplier**2",
            ),
        ),
        ("tests/privacy/test_gaussian.py::test_cost_is_the_smallest_float_that_is_enough",),
    ),
    Mutation(
        "budget-in-floats",
        "",
        "What is spent is added up in floats, so that small charges vanish.",
        (
            Edit(
                _BUDGET,
                "        self._spent += costs[0]\n",
                "        self._spent = Fraction(float(self._spent + costs[0]))\n",
            ),
        ),
        ("tests/privacy/test_budget.py::test_tiny_spends_are_not_lost_in_rounding",),
    ),
    Mutation(
        "filter-compares-late",
        "",
        "The budget refuses only when it is overspent already.",
        (
            Edit(
                _BUDGET,
                "        left = self._total - self._spent\n        if cost > left:",
                "        left = self._total - self._spent\n        if left < 0:",
            ),
        ),
        ("tests/privacy/test_budget.py::test_refuses_what_does_not_fit_and_changes_nothing",),
    ),
    Mutation(
        "reserve-not-held",
        "",
        "What discrete noise costs is charged to a reserve that was never taken off the total.",
        (
            Edit(
                _BUDGET,
                "            self._total = Fraction(self._price(reserve.epsilon, reserve.delta_of_gaussians))\n",
                "            self._total = Fraction(self._price(self._epsilon, self._delta))\n",
            ),
        ),
        ("tests/privacy/test_budget.py::test_reserve_pays_for_itself",),
    ),
    Mutation(
        "fork-spends-twice",
        "",
        "A forked copy of a budget can be spent again.",
        (Edit(_BUDGET, "        if os.getpid() != self._process:\n", "        if not self._process:\n"),),
        ("tests/inference/test_sampling.py::test_a_forked_copy_of_a_budget_is_refused",),
    ),
    Mutation(
        "derived-queries-answered",
        "",
        "Queries of classes that somebody derived are answered, at the price that they state.",
        (Edit(_CURATOR, "        if type(query) not in _KNOWN:\n", "        if not isinstance(query, _KNOWN):\n"),),
        ("tests/inference/test_sampling.py::test_classes_derived_from_queries_and_budgets_are_refused",),
    ),
    Mutation(
        "subsampled-c",
        "subsampled accountant fed C for 2C",
        "The accountant of batches without replacement takes a record for added, not replaced.",
        (
            Edit(
                "src/dpmcmc/privacy/subsampled.py",
                "noise_ratio / 2.0 if without_replacement else noise_ratio,",
                "noise_ratio,",
            ),
        ),
        ("tests/privacy/test_subsampled.py::test_one_step_vectors_are_never_undercut",),
    ),
    Mutation(
        "batch-drawn-once",
        "",
        "All steps of a block look at the same batch, and are accounted for as if each drew its own.",
        (
            Edit(
                _PAYMENT,
                "return Batch(self._keys(shape[:2]), jnp.asarray(sizes))",
                "return Batch(jnp.broadcast_to(self._keys(()), shape[:2]), jnp.asarray(sizes))",
            ),
        ),
        ("tests/curator/test_payment.py::test_every_step_has_a_secret_batch_of_its_own",),
    ),
    Mutation(
        "batch-size-shows",
        "",
        "DP-SGLD divides by the number of records that are in a Poisson batch, which is secret.",
        (
            Edit(
                "src/dpmcmc/samplers/dp_sgld.py",
                "weight * release.value",
                "num_records / noise.batch.size[:, None] * release.value",
            ),
        ),
        ("tests/samplers/test_contract.py::test_secret_batches_are_handed_on_and_nothing_else",),
    ),
    # ------------------------------------------------------------------------------------------------ the posterior
    Mutation(
        "penalty-of-sigma",
        "penalty with the wrong sigma",
        "The accept test subtracts σ/2 for σ²/2.",
        (Edit("src/dpmcmc/samplers/acceptance.py", "0.5 * noise_sd**2", "0.5 * noise_sd"),),
        ("tests/samplers/test_integrators.py::test_penalty_test_accepts_with_the_stated_probability",),
    ),
    Mutation(
        "prior-counted-twice",
        "",
        "DP-penalty's accept test counts the prior twice.",
        (
            Edit(
                "src/dpmcmc/samplers/dp_penalty.py",
                "accepted = penalty_test(accept_key, release.value + change, release.noise_sd)",
                "accepted = penalty_test(accept_key, release.value + 2.0 * change, release.noise_sd)",
            ),
        ),
        ("tests/samplers/test_invariance.py::test_stays_in_the_posterior[DPPenalty-all]",),
    ),
    Mutation(
        "kinetic-energy-flipped",
        "",
        "DP-HMC's accept test has the kinetic energies the wrong way round.",
        (
            Edit(
                _HMC,
                "change = change + mass.kinetic_energy(start.momentum) - mass.kinetic_energy(end.momentum)",
                "change = change - mass.kinetic_energy(start.momentum) + mass.kinetic_energy(end.momentum)",
            ),
        ),
        ("tests/samplers/test_invariance.py::test_stays_in_the_posterior[DPHMC-position_first]",),
    ),
    Mutation(
        "momentum-key-twice",
        "the momentum key used twice",
        "DP-HMC draws the momentum and decides with the same key.",
        (
            Edit(
                _HMC,
                "accepted = penalty_test(accept_key, release.value + change, release.noise_sd)",
                "accepted = penalty_test(momentum_key, release.value + change, release.noise_sd)",
            ),
        ),
        ("tests/samplers/test_contract.py::test_no_key_is_used_twice[DPHMC-position_first]",),
    ),
    Mutation(
        "intervals-without-noise",
        "",
        "DP-Laplace leaves what the privacy noise has done to its centre out of its intervals.",
        (
            Edit(
                "src/dpmcmc/tuning/laplace.py",
                "        return self.posterior + self.noise + self.clipping\n",
                "        return self.posterior + self.clipping\n",
            ),
        ),
        ("tests/tuning/test_laplace.py::test_the_search_finds_the_posterior_and_spends_the_budget",),
    ),
    Mutation(
        "jitter-follows-the-gradient",
        "jitter that looks at the data",
        "DP-HMC takes shorter steps where the gradient that it keeps is steep, which the accept test does not know.",
        (
            Edit(
                _HMC,
                "eta = inputs.step_size * jittered(halton, jitter)\n",
                "eta = inputs.step_size * jittered(halton, jitter)\n"
                "        eta = eta / jnp.sqrt(1.0 + jnp.sum(state.gradient**2, axis=-1))\n",
            ),
        ),
        ("tests/samplers/test_invariance.py::test_stays_in_the_posterior[DPHMC-cached]",),
    ),
    Mutation(
        "jitter-follows-the-records",
        "jitter that looks at the data",
        "The step size follows the size of the records, without noise.",
        (
            Edit(
                _CHAINS,
                "    program = compile_run(curator, sampler, queries, shape, inputs, theta)\n",
                '    if hasattr(inputs, "step_size"):\n'
                "        columns = [np.ravel(column) for column in jax.tree.leaves(curator._records.rows)]\n"
                "        size = np.nanmedian(np.abs(np.concatenate(columns)))\n"
                "        inputs = inputs._replace(step_size=inputs.step_size * size / (1.0 + size))\n"
                "    program = compile_run(curator, sampler, queries, shape, inputs, theta)\n",
            ),
        ),
        ("tests/inference/test_sums_alone.py::test_without_the_sums_nothing_of_the_records_is_left",),
    ),
    # -------------------------------------------------------------------------------------------- what a run says
    Mutation(
        "diagnostic-without-noise",
        "an un-noised diagnostic in the result",
        "The result's count of useless records is the true one; the noise was charged for and left out.",
        (
            Edit(
                _CHAINS,
                "        estimate=float(release.value), noise_sd=float(release.noise_sd), "
                "num_records=run.curator.num_records\n",
                "        estimate=float(run.curator._host_total(PLAIN, run.record_check, run.theta[:1], None)[0]),\n"
                "        noise_sd=float(release.noise_sd),\n"
                "        num_records=run.curator.num_records,\n",
            ),
            Edit(
                _CHAINS,
                "from dpmcmc.curator.arithmetic import exact_arithmetic\n",
                "from dpmcmc.curator.arithmetic import exact_arithmetic\nfrom dpmcmc.curator.passes import PLAIN\n",
            ),
        ),
        ("tests/inference/test_sums_alone.py::test_the_record_check_in_the_result_has_noise",),
    ),
    Mutation(
        "error-with-a-value",
        "an error text with a value",
        "Where a run ends by an error of somebody else's code, its text is repeated, which may quote a record.",
        (
            Edit(
                "src/dpmcmc/inference/endings.py",
                '    return f"of an error of type {type(error).__name__}"\n',
                '    return f"of an error of type {type(error).__name__}: {error}"\n',
            ),
        ),
        ("tests/inference/test_sampling.py::test_a_first_block_that_fails_says_what_is_spent",),
    ),
    Mutation(
        "debug-switch-tells",
        "an error text with a value",
        "JAX's switch for finding NaN stays on inside, so that an error tells of a NaN record.",
        (Edit("src/dpmcmc/curator/arithmetic.py", "        jax.debug_nans(False),\n", ""),),
        ("tests/curator/test_curator.py::test_debug_nans_does_not_reveal_a_nan_record",),
    ),
    Mutation(
        "odometer",
        "",
        "A run that decided by its releases when to stop states the ε that it had spent by then.",
        (
            Edit(
                "src/dpmcmc/inference/stepwise.py",
                "        epsilon=epsilon,\n        budget_epsilon=epsilon,\n",
                "        epsilon=min(epsilon, gaussian_epsilon(budget.spent, granted[1])),\n"
                "        budget_epsilon=epsilon,\n",
            ),
            Edit(
                "src/dpmcmc/inference/stepwise.py",
                "from dpmcmc.privacy.exact import rounded_up\n",
                "from dpmcmc.privacy.exact import rounded_up\nfrom dpmcmc.privacy.gaussian import gaussian_epsilon\n",
            ),
        ),
        ("tests/inference/test_stepwise.py::test_a_private_run",),
    ),
    Mutation(
        "statement-of-the-draws-alone",
        "",
        "A run that was stopped states the steps whose draws it has, and not those that were charged.",
        (
            Edit(
                _CHAINS,
                "        steps_charged=outcome.charged,\n",
                "        steps_charged=outcome.num_draws * run.shape.thin,\n",
            ),
        ),
        ("tests/inference/test_sampling.py::test_no_exception_costs_paid_draws",),
    ),
    # ------------------------------------------------------------------------------------------- ledger and checkpoint
    Mutation(
        "ledger-entry-after-the-block",
        "a ledger entry written after the block",
        "A charge is written to the ledger when its number is first asked for, which is after the answer.",
        (
            Edit(
                _BUDGET,
                '        """Number of the last charge in the books; 0 without books."""\n',
                '        """Number of the last charge in the books; 0 without books."""\n'
                "        while self._books is not None and self._late:\n"
                "            meter, costs, what = self._late.pop(0)\n"
                "            self._last_entry = self._books[0].charge(meter, *costs, what)\n",
            ),
            Edit(
                _BUDGET,
                "        self._last_entry = 0\n        self._history: list[Spending] = []\n",
                "        self._last_entry = 0\n        self._late: list[Any] = []\n"
                "        self._history: list[Spending] = []\n",
            ),
            Edit(
                _BUDGET,
                "                self._last_entry = books.charge(meter, costs[0], costs[1], costs[2], what)\n",
                "                self._late.append((meter, costs, what))\n",
            ),
        ),
        ("tests/inference/test_sums_alone.py::test_a_charge_is_in_the_ledger_when_the_records_are_looked_at",),
    ),
    Mutation(
        "hold-not-kept",
        "",
        "What a ledger holds for a run that may go on is given to others.",
        (Edit(_LEDGER, "self.pool()[0] * self._leeway - self.spent - self.held)", "self.pool()[0] - self.spent)"),),
        ("tests/privacy/test_ledger.py::test_what_is_held_cannot_be_taken_and_is_freed_in_the_end",),
    ),
    Mutation(
        "parting-not-final",
        "",
        "A ledger lets more be set apart after a Gaussian charge, where that could follow what was released.",
        (Edit(_LEDGER, "            self.fixed = True\n", ""),),
        ("tests/privacy/test_ledger.py::test_after_a_gaussian_charge_only_what_was_reserved",),
    ),
    Mutation(
        "edited-entry-believed",
        "",
        "A ledger's entries are not compared with their hashes.",
        (
            Edit(
                _LEDGER,
                "            if row.hash != _hash(row.number, row.time, row.kind, row.payload, row.previous):\n",
                "            if not row.hash:\n",
            ),
        ),
        ("tests/privacy/test_ledger_tampering.py::test_a_changed_entry",),
    ),
    Mutation(
        "resume-answers-again",
        "resume that repeats a paid release with new noise uncharged",
        "A search that goes on asks what it knows again, with new noise, and nobody is charged.",
        (
            Edit(
                _JOURNAL,
                "            return self._again(query, theta, proposal)\n",
                "            self._again(query, theta, proposal)\n"
                "            spare = Budget(self._budget.epsilon, self._budget.delta)\n"
                "            spare.reserve_lattice()\n"
                "            options = {'coordinates': coordinates, 'paid_by': spare}\n"
                "            return self._curator.ask(query, theta, proposal, **options)\n",
            ),
        ),
        ("tests/inference/test_resume.py::test_what_was_written_is_not_lost[laplace]",),
    ),
    Mutation(
        "resume-forgets-lost-blocks",
        "resume that repeats a paid release with new noise uncharged",
        "A run that goes on does not count blocks that were charged and lost by a crash.",
        (Edit(_CHAINS, "        run.books.count_all(run.funds)\n", ""),),
        ("tests/inference/test_resume.py::test_all_of_it_lost",),
    ),
    Mutation(
        "resume-with-the-same-key",
        "",
        "A run that goes on draws momenta and accept tests with the key of its beginning once more.",
        (
            Edit(
                _CHAINS,
                "    init_key, *_ = jax.random.split(books.open(curator, source, funds), 3)\n",
                "    init_key, state_key, run_key = jax.random.split(books.open(curator, source, funds), 3)\n",
            ),
            Edit(_CHAINS, "    _, state_key, run_key = jax.random.split(curator.public_key, 3)\n", ""),
        ),
        ("tests/inference/test_resume.py::test_no_key_of_a_block_is_used_twice[penalty]",),
    ),
    Mutation(
        "checkpoint-keeps-batches",
        "",
        "A checkpoint keeps the keys of secret batches.",
        (
            Edit(
                _CHAINS,
                "                entry = 0 if curator.budget is None else curator.budget.last_entry\n"
                '                _write(run, "block",',
                "                if noise.batch is not None:\n"
                '                    arrays["batch"] = np.asarray(jax.random.key_data(noise.batch.key))\n'
                "                entry = 0 if curator.budget is None else curator.budget.last_entry\n"
                '                _write(run, "block",',
            ),
        ),
        ("tests/inference/test_resume.py::test_no_secret_batch_is_in_the_folder",),
    ),
)
"""All of them."""
