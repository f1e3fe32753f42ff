"""Coefficients of a regression in the data's units: a linear map of draws, by the public formula and schema alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcmc.design import OriginalScale
from dpmcmc.results.quality import Quality

__all__ = ["original_draws", "original_quality"]

Array = NDArray[np.float64]
_ALSO_SCALED = ("group_effects", "noise_scale", "group_scale")  # in units of the response


def original_draws(draws: Mapping[str, np.ndarray], scale: OriginalScale) -> dict[str, np.ndarray]:
    """Map draws (chains × draws × …) of coded coefficients to those in the data's units.

    With A the map of :meth:`dpmcmc.design.Design.original` and y = c + s·(coded y): (α, β) ↦ s·A(α, β) + (c, 0).
    """
    mapped = scale.scale * (_stacked(draws) @ scale.matrix.T)
    result: dict[str, np.ndarray] = {}
    if scale.intercept:
        result["intercept"] = mapped[..., 0] + scale.center
    result["coefficients"] = mapped[..., 1:]
    for name in _ALSO_SCALED:
        if name in draws:
            result[name] = scale.scale * np.asarray(draws[name])
    return result | {name: value for name, value in draws.items() if name not in {*result, "intercept"}}


def original_quality(quality: Quality, draws: Mapping[str, np.ndarray], scale: OriginalScale) -> Quality:
    """Give each coefficient its share of noise.

    Of a coefficient that is only scaled it is what it was. Of a sum of several it is 1 − √(aᵀDΣDa / aᵀΣa) with the
    draws' covariance Σ and D = diag(1 − share): as if the noise were correlated as the draws are.
    """
    coded = _stacked(draws)
    shares = _stacked(
        {name: quality.noise_share[name][None, None] for name in ("intercept", "coefficients") if name in draws}
    )
    flat = coded.reshape(-1, coded.shape[-1])
    flat = flat - flat.mean(axis=0)
    reported = np.std(flat @ scale.matrix.T, axis=0)
    without = np.std((flat * (1.0 - shares.reshape(-1))) @ scale.matrix.T, axis=0)
    found = np.clip(1.0 - without / np.where(reported > 0.0, reported, 1.0), 0.0, 1.0) * (reported > 0.0)
    mapped: dict[str, Any] = {name: value for name, value in quality.noise_share.items() if name != "intercept"}
    mapped["coefficients"] = found[1:]
    if scale.intercept:
        mapped = {"intercept": found[0], **mapped}
    return replace(quality, noise_share=mapped)


def _stacked(draws: Mapping[str, np.ndarray]) -> Array:
    """Put intercept (0 if there is none) and coefficients side by side."""
    coefficients = np.asarray(draws["coefficients"], np.float64)
    intercept = np.asarray(draws.get("intercept", np.zeros(coefficients.shape[:-1])), np.float64)
    return np.concatenate([intercept[..., None], coefficients], axis=-1)
