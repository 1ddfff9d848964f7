"""The arrays that modules hand to one another, by what they hold; their shapes stand where they are used."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

TokenIds = npt.NDArray[np.int32]
"""Of one text: shape (tokens,)."""

Lengths = npt.NDArray[np.int64]
"""In tokens, of each ticket: shape (tickets,)."""
