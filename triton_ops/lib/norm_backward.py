"""Old names of functions that are now in norm/, kept for one release."""

from .norm.backward import *  # noqa: F403
from .norm.backward_resident import norm_backward_resident, sums_of_lines, sums_of_rows  # noqa: F401
from .norm.backward_streaming import norm_backward_streaming
from .norm.group_sums import store_sums, sum_groups  # noqa: F401

walk_rows, walk_rows_in_tiles = norm_backward_resident, norm_backward_streaming
