"""Old names of functions that are now in rows/, kept for one release."""

from .rows import tile
from .rows.operation import finish_rows, map_tile, store_statistic  # noqa: F401
from .rows.rows import *  # noqa: F403
from .rows.rows import MAPPED_CHUNKS, REDUCED_CHUNKS, SPLIT_COLUMNS, SPLIT_ROWS
from .rows.split import map_split_rows
from .rows.split_columns import CHUNK_STAGES, CHUNK_STATES, load_states  # noqa: F401
from .rows.split_columns import reduce_or_map_column_chunk as take_chunk  # noqa: F401
from .rows.tile import *  # noqa: F403

SHARED_ROWS, SHARED_COLUMNS = SPLIT_ROWS, SPLIT_COLUMNS
REDUCED_COLUMNS, MAPPED_COLUMNS = REDUCED_CHUNKS, MAPPED_CHUNKS
share_rows = map_split_rows
kept, load_shared, offsets, unless = (
    tile.keep_narrow,
    tile.load_parameters,
    tile.row_offsets,
    tile.load_if,
)
