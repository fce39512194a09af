"""Types of NumPy arrays, by the type of their elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Quoted, because the agent's processes use no arrays and importing NumPy would take a quarter of their memory.
F64: TypeAlias = "NDArray[np.float64]"
F32: TypeAlias = "NDArray[np.float32]"
I64: TypeAlias = "NDArray[np.int64]"
U8: TypeAlias = "NDArray[np.uint8]"
U16: TypeAlias = "NDArray[np.uint16]"
Bool: TypeAlias = "NDArray[np.bool_]"
