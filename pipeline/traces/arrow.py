"""Arrow's compute functions, which are made when pyarrow is imported: no type checker can see them."""

from typing import Any

import pyarrow.compute

pc: Any = pyarrow.compute
