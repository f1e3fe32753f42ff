"""Other coordinates θ = m + C z, in which clipping and noise live. Public: they are chosen from what was released."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmcmc.errors import QueryError

# With rows and columns brought to one scale, a matrix of a larger condition number has no usable inverse in float64.
_LARGEST_CONDITION = 1e14


@dataclass(frozen=True, eq=False)
class Affine:
    """Coordinates z with θ = m + C z.

    A record's score by z is Cᵀ·(score by θ), and its curvature by z is Cᵀ·(curvature by θ)·C. A question that is asked
    in coordinates clips these, and its answer and the sd of its noise are in z. Parameters stay θ everywhere.

    Parameters
    ----------
    center
        m, of shape (d,).
    matrix
        C, of shape (d, d), invertible. Scales may differ as much as they like: it is brought to one scale first.

    Attributes
    ----------
    inverse
        C⁻¹.

    Examples
    --------
    >>> coordinates = Affine([1.0, 2.0], [[2.0, 0.0], [0.0, 0.5]])
    >>> coordinates.to_theta([1.0, 1.0])
    array([3. , 2.5])
    >>> coordinates.to_z([3.0, 2.5])
    array([1., 1.])
    """

    center: Any
    matrix: Any
    inverse: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        center, matrix = _numbers("center", self.center, 1), _numbers("matrix", self.matrix, 2)
        size = len(center)
        if matrix.shape != (size, size):
            raise QueryError(f"matrix has shape {matrix.shape}, center {center.shape}; give ({size}, {size})")
        for name, array in (("center", center), ("matrix", matrix), ("inverse", _inverse(matrix))):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def identity(cls, dimension: int) -> Self:
        """Return the coordinates z = θ."""
        return cls(np.zeros(dimension), np.eye(dimension))

    @property
    def dimension(self) -> int:
        """Length d of the vectors."""
        return len(self.center)

    def to_theta(self, z: ArrayLike) -> NDArray[np.float64]:
        """θ = m + C z, for one vector or many (… × d)."""
        return np.asarray(self.center + self._vectors("z", z) @ self.matrix.T)

    def to_z(self, theta: ArrayLike) -> NDArray[np.float64]:
        """Z = C⁻¹(θ − m), for one vector or many (… × d)."""
        return np.asarray((self._vectors("theta", theta) - self.center) @ self.inverse.T)

    def _vectors(self, name: str, value: ArrayLike) -> NDArray[np.float64]:
        vectors = np.asarray(value, np.float64)
        if vectors.ndim == 0 or vectors.shape[-1] != self.dimension:
            raise QueryError(f"{name} has shape {vectors.shape}; give (…, {self.dimension})")
        return vectors


def _numbers(name: str, value: Any, axes: int) -> NDArray[np.float64]:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.ndim != axes or array.size == 0:
        expected = "(d,)" if axes == 1 else "(d, d)"
        raise QueryError(
            f"{name} has shape {array.shape} and dtype {array.dtype}; give an array of numbers of shape {expected}"
        )
    if not np.all(np.isfinite(array)):
        raise QueryError(f"{name} has NaN or infinite entries; give finite numbers")
    return array.astype(np.float64)


def _inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Invert, with rows and columns brought to one scale (by powers of two, which round nothing)."""
    with np.errstate(all="ignore"):
        rows = _scales(np.abs(matrix).max(axis=1))
        columns = _scales(np.abs(matrix / rows[:, None]).max(axis=0))
        even = matrix / rows[:, None] / columns
        condition = np.linalg.cond(even) if np.all(np.isfinite(even)) else np.inf
        inverse = None
        if condition <= _LARGEST_CONDITION:
            inverse = np.linalg.inv(even) / columns[:, None] / rows
    if inverse is None or not np.all(np.isfinite(inverse)):
        raise QueryError(
            f"matrix is not invertible (condition number {condition:.1e}, its rows and columns at one scale); give a "
            "basis of linearly independent columns, for example an eigenbasis with floored eigenvalues"
        )
    return inverse


def _scales(largest: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(2.0 ** np.frexp(np.where(largest > 0.0, largest, 1.0))[1])
