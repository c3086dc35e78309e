"""Types of the arrays that devices, nodes and cards are computed with. Pure; one name for each
element type.

Shapes are said where an array is defined: these aliases say only what an element is.
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
"""Amounts and counts, in the unit of their column."""
Floats = npt.NDArray[np.float64]
"""Scores and costs."""
Bools = npt.NDArray[np.bool_]
"""Masks."""
Codes = npt.NDArray[np.uint8]
"""Reason codes, states and flags, one byte each."""
Positions = npt.NDArray[np.intp]
"""Indices into another array."""
