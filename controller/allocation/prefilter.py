"""Which cards a request could take, for the whole cluster at once: columns of reason codes, kept by difference.

Called by `decide` before it searches single nodes. For each shape of request (class, selectors, capacity, tolerations)
one `RequestColumns` is kept: per device row the first reason that rules the card out (0 = it fits), and per node how many
fit. A decision recomputes only the rows that changed since the last one, so its cost does not grow with the cluster.

What it says is necessary, not sufficient: constraints, counters and several requests on one card are the search's business
(`search.solve`). It must never rule out a card that the search would take.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from controller.allocation.request import RequestView
from controller.inventory.inventory import Inventory
from hami_dra.api import names
from hami_dra.vendors.protocol import Ask, Codes, Ints
from hami_dra.vendors.reasons import CODES, NUMBER
from hami_dra.vendors.registry import vendor_of

NOT_OF_CLASS: Final = 255
"""The row is free, or its device is not of the request's class: not a card as far as this request is concerned."""
SHAPES_KEPT: Final = 128
