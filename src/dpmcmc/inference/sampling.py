"""``sample`` and ``resume``: which kind of run it is, and what becomes of its result."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import jax

from dpmcmc import checks
from dpmcmc.curator import processes
from dpmcmc.data import Table
from dpmcmc.errors import CheckpointError, DPMCMCError, DPMCMCWarning, LedgerError, QueryError, RunError
from dpmcmc.inference import chains, planning, stepwise, tuned
from dpmcmc.inference.books import Books, complete_run, load_settings
from dpmcmc.inference.checkpoint import Checkpoint, RunFolder
from dpmcmc.inference.endings import NOT_WRITTEN, terminated_like_interrupted, undisturbed
from dpmcmc.inference.settings import Settings
from dpmcmc.models import Model, allowed
from dpmcmc.models.units import row_model
from dpmcmc.privacy import Ledger
from dpmcmc.results import Posterior
from dpmcmc.samplers import DPLaplace, Sampler, SurrogateHMC


def sample(
    model: Model,
    data: Any,
    *,
    sampler: Sampler | DPLaplace | SurrogateHMC | Literal["auto"] = "auto",
    epsilon: float | None = None,
    delta: float | None = None,
    num_chains: int = 4,
    num_steps: int | None = None,
    num_warmup: int | None = None,
    init: Any = None,
    thin: int = 1,
    progress: bool = True,
    seed: int | None = None,
    devices: int | Sequence[jax.Device] | None = None,
    check_records: bool = True,
    exact: bool = False,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    same_people: bool = False,
    checkpoint: str | os.PathLike[str] | RunFolder | None = None,
) -> Posterior:
    """Draw from the posterior, privately.

    Parameters
    ----------
    model
        A :class:`dpmcmc.Model`.
    data
        The records, one row per person; or a :class:`dpmcmc.Table`, which may be a file larger than memory. If
        the whole table is float32, so is the arithmetic (see the page on speed and scale in the docs).
    sampler
        ``"auto"``, the default, needs no settings. It looks at the posterior, privately and within the budget, and
        draws from a Gaussian where that is enough, from a curved surrogate where it is not, and runs a chain with exact
        accept tests where no surrogate fits; :attr:`Posterior.quality` says what it chose, why, and what speaks against
        the result. ``DPLaplace()`` always takes the Gaussian. With settings of your own: ``DPHMC(...)``,
        ``DPPenalty(...)``, ``DPSGLD(...)``, ``DPSGNHT(...)``, ``SurrogateHMC(...)``; or, on data that are not secret,
        ``HMC(...)`` or ``RWMH(...)``, which take no budget.
    epsilon, delta
        The privacy budget of all that is returned. It decides the number of steps, or, for "auto" and DPLaplace, how
        much noise there is in the intervals (see :func:`dpmcmc.plan`).
    num_chains
        Number of chains; they share the budget.
    num_steps
        Steps of each chain; may only lower what the budget allows. Required for HMC and RWMH. For "auto" and DPLaplace:
        draws of each chain (1000), which are free; where "auto" runs a chain, that is as long as the budget allows, and
        at most so many draws of it are kept, equally far apart (default: all). For SurrogateHMC, whose steps cost what
        their moves are long: at most so many.
    num_warmup
        How many of each chain's draws (after thinning) to set apart as warm-up. Default: the first half. "auto" and
        DPLaplace take none, nor ``thin``: draws of a Gaussian are independent, those of a surrogate nearly so, and of a
        chain of "auto" the first quarter is left out.
    init
        Starting points: None draws them from the prior; else an array of chains × unconstrained parameters, or a dict
        of constrained values with a leading axis of chains. For SurrogateHMC None draws them from the surrogate. For
        "auto" and DPLaplace, where the search starts: None for the prior's centre (or next to it), one unconstrained
        vector, or a dict of constrained values. They must not be taken from the data.
    thin
        Keep every ``thin``-th draw.
    progress
        Show a progress bar, if there is a terminal.
    seed
        For reproducible research: a seeded run is marked *not private* everywhere it is shown.
    devices
        Number or list of JAX devices to spread the records over. Default: one, or, under ``jax.distributed``, all of
        them: each process then gives its own part of the rows, and all get the same draws. Draws do not depend on it.
    check_records
        Spend a little of the budget (at most 0.1 % of its μ; for minibatch samplers 0.5 % of ε) on a noised count of
        the records that count as nothing: a value missing or infinite, or an outcome that is impossible in the model.
        A table that is coded wrongly is noticed in no other way.
    exact
        For "auto" only: spend what is left after the first look at the posterior on a chain whose accept tests are
        exact, even if a Gaussian or a surrogate would do. Its draws are correlated and fewer, and of the right
        posterior as far as no log-ratio is clipped. Refused, before anything is spent, for more than 12 parameters or
        where records and budget do not suffice for a surrogate. If it then turns out that nothing pays for a chain
        (values that are absurd), the draws are a surrogate's or a Gaussian's, and flagged.
    ledger
        A :class:`dpmcmc.Ledger`, its file or its URL: the budget of these people, shared with all other runs on them.
        What this run may spend is kept for it, and every charge is committed there before the records are looked at. A
        run that does not fit is refused with what it could have, and so are data that the ledger does not know. None:
        the run stands alone, and its statement says so.
    same_people
        With a ledger: data that it does not know (a correction, a later export, other columns) are about the same
        people all the same. That is yours to decide, and is written down.
    checkpoint
        A new folder that keeps what was released so far, so that :func:`dpmcmc.resume` can go on after a crash, and in
        the end holds the results: ``posterior.nc``, the statement, the summary and a report.

    Returns
    -------
    Posterior

    Raises
    ------
    DPMCMCError
        An argument does not fit, or the budget buys no step. Raised before anything is spent.
    RunError
        Something failed in the first block, so that there are no draws; it says what is spent. With a checkpoint,
        whatever fails after the first charge.
    LedgerError, CheckpointError
        The ledger cannot be used, or belongs to other data; the folder cannot be used. Nothing was spent.

    Warns
    -----
    DPMCMCWarning
        The result has a problem, or the run ended early; each says what to do. They also stand in
        :attr:`Posterior.warnings`.

    Notes
    -----
    Ctrl-C, or anything that fails after the first block, ends the run and returns what is done so far: those draws are
    paid for. With a checkpoint they raise instead (Ctrl-C and SIGTERM ``KeyboardInterrupt``), and the run goes on with
    :func:`dpmcmc.resume`. With several processes they raise, too, on all of them: the draws so far are the error's
    ``posterior``. Everything is compiled before anything is charged; a second call with the same model, shapes
    and class of sampler compiles nothing.
    """
    planning.check_sampler(sampler)
    num_chains, thin = checks.count("num_chains", num_chains), checks.count("thin", thin)
    if num_steps is not None:
        num_steps = checks.count("num_steps", num_steps)
    if exact and sampler != "auto":
        raise QueryError(f'exact = {exact!r} goes with sampler="auto" only; leave it out for {sampler.name}')
    settings = Settings(
        epsilon=epsilon,
        delta=delta,
        num_chains=num_chains,
        num_steps=num_steps,
        num_warmup=num_warmup,
        thin=thin,
        init=init,
        progress=progress,
        seed=seed,
        devices=devices,
        check_records=check_records,
    )
    folder = checkpoint if isinstance(checkpoint, RunFolder) or checkpoint is None else RunFolder(checkpoint)
    with processes.together(_told_apart(model, sampler, settings, exact)):
        books = Books(sampler, settings, exact, ledger=ledger, folder=folder, same_people=same_people)
        posterior, texts = _drawn(model, data, sampler, settings, exact, books)
        if posterior.privacy.interrupted and jax.process_count() > 1:
            # An error, so that nobody takes it for the whole run that the others may still be waiting for.
            text = texts[0].replace("these are returned", "these are attached to this error as `posterior`")
            raise RunError(text, posterior=posterior)
    return _told(posterior, texts)


def resume(
    checkpoint: str | os.PathLike[str],
    model: Model | None = None,
    data: Any = None,
    *,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    progress: bool = True,
    devices: int | Sequence[jax.Device] | None = None,
) -> Posterior:
    """Go on with a run that was stopped: by a crash, Ctrl-C, or an error that has gone.

    What was released is in the checkpoint and is not asked again; what was charged counts, also where a crash has lost
    the answer (of one block, or one question). Momenta, proposals and accept tests from here on are fresh.

    Parameters
    ----------
    checkpoint
        The folder that :func:`dpmcmc.sample` was given.
    model, data
        Those that the run was begun with. Not needed if it is complete.
    ledger
        The ledger that it was begun with, if that has moved, or is a URL with a password (which no file keeps).
    progress, devices
        As for :func:`dpmcmc.sample`.

    Returns
    -------
    Posterior
        Of the whole run. If it was complete already, that is what is returned, and nothing is spent.

    Raises
    ------
    CheckpointError
        There is no such run, it is damaged, another process is at it, or model or data are others.
    """
    complete = complete_run(checkpoint)
    if complete is not None:
        return complete
    kept = Checkpoint(checkpoint)
    try:
        return _gone_on(kept, model, data, ledger, progress, devices)
    except (DPMCMCError, DPMCMCWarning, OSError):
        raise
    except Exception as error:
        raise CheckpointError(
            f"the run in {kept.shown!r} cannot go on here (an error of type {type(error).__name__}): its checkpoint "
            "was edited, or model or data are others than it was begun with"
        ) from error


def _gone_on(
    kept: Checkpoint,
    model: Model | None,
    data: Any,
    ledger: Ledger | str | os.PathLike[str] | None,
    progress: bool,
    devices: int | Sequence[jax.Device] | None,
) -> Posterior:
    """Go on with an open checkpoint, and let go of it."""
    try:
        sampler, settings, exact = load_settings(kept, progress=progress, devices=devices)
        if model is None:
            raise QueryError(
                "model and data are needed to go on: give those that the run was begun with (or, of a run that `dpmcmc "
                "sample` began, use `dpmcmc resume`)"
            )
        place = kept.facts["ledger"] if ledger is None else ledger
        same_people = bool(kept.facts["same_people"]) and place is not None
        books = Books(sampler, settings, exact, ledger=place, checkpoint=kept, same_people=same_people)
        ended = books.ended()
    except BaseException:
        kept.close()
        raise
    if ended is not None:
        return ended
    posterior, texts = _drawn(model, data, sampler, settings, exact, books)
    return _told(posterior, texts)


def _told_apart(model: Model, sampler: Any, settings: Settings, exact: bool) -> str:
    """Return what must be the same on all processes, as text."""
    shown = settings._replace(progress=False, devices=None)
    return repr((getattr(model, "name", None), getattr(model, "parameters", None), sampler, exact, shown))


def _drawn(
    model: Model, data: Any, sampler: Any, settings: Settings, exact: bool, books: Books
) -> tuple[Posterior, tuple[str, ...]]:
    """Run it, and close the books on it, however it ends."""
    stopped: BaseException | None = None
    try:
        with terminated_like_interrupted(books.goes_into_a_folder):
            if sampler == "auto" or isinstance(sampler, DPLaplace):
                method: tuned.Method = "auto" if sampler == "auto" else "DP-Laplace"
                posterior, texts = tuned.draw(model, data, method, settings, books, exact=exact)
            elif isinstance(sampler, SurrogateHMC):
                posterior, texts = stepwise.draw(model, data, sampler, settings, books)
            else:
                posterior, texts = chains.draw(model, data, sampler, settings, books)
        with undisturbed():
            posterior = _with_rows(posterior, model, data)
            posterior = replace(posterior, spending=books.spending())
            posterior = replace(posterior, privacy=replace(posterior.privacy, ledger=_standing(books, posterior)))
            if books.resumed:
                _check(posterior)
            problem = books.finish(posterior)
        return posterior, texts if problem is None else (problem, *texts)
    except (RunError, KeyboardInterrupt) as error:
        how = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        stopped = _with_a_way_on(error, books.how_to_go_on())
    except BaseException:
        books.give_up("failed")
        raise
    books.give_up(how)
    raise stopped


def _check(posterior: Posterior) -> None:
    """Compute the statement of a run again that several processes have had a part in, before it is written."""
    try:
        posterior.privacy.check()
    except QueryError as error:
        raise RunError(f"the run is done, but its parts do not belong together: {error}; nothing was written") from None


def _standing(books: Books, posterior: Posterior) -> dict[str, Any] | None:
    try:
        return books.standing()
    except LedgerError as error:
        text = f"{NOT_WRITTEN} {error}"
    if not books.can_resume:
        text += "; its draws are paid for, and attached to this error as `posterior` (its statement lacks the ledger)"
    raise RunError(text, posterior=posterior)


def _with_a_way_on(error: RunError | KeyboardInterrupt, way: str) -> BaseException:
    """Return the error with what can be done about it."""
    if not way:
        return error
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt(f"{error}{way}")
    told = RunError(f"{error}{way}", error.unconstrained_draws, error.posterior)
    told.__cause__ = error.__cause__
    return told


def _told(posterior: Posterior, texts: Sequence[str]) -> Posterior:
    """Give all warnings, and the posterior with them."""
    for text in texts:
        try:
            warnings.warn(text, DPMCMCWarning, stacklevel=3)
        except DPMCMCWarning as error:  # who makes errors of warnings gets the draws with them: they are paid for
            error.posterior = posterior
            raise
    return posterior


def _with_rows(posterior: Posterior, model: Model, data: Any) -> Posterior:
    """Let the result know, where that is known, how rows are coded and what is predicted for them: public things."""
    rows = row_model(model)
    if rows.design is None and rows.predict is None:
        return posterior
    schema = data.schema if isinstance(data, Table) else None
    predictor = None if rows.predict is None else _without_records(rows.predict, posterior.privacy.num_records)
    return replace(posterior, design=rows.design, predictor=predictor, schema=schema)


def _without_records(predict: Callable[..., Any], num_records: int) -> Callable[..., Any]:
    """Refuse, when it is called, a function that has captured an array as long as the records, as of a likelihood.

    What it predicts comes with the statement of the draws, and would hold sums without noise.
    """

    def predictor(parameters: Any, record: Any) -> Any:
        allowed.check_constants("predict", jax.make_jaxpr(predict)(parameters, record), num_records)
        return predict(parameters, record)

    return predictor
