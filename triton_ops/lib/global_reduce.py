"""Old name of reduce/global_.py, kept for one release."""

from .reduce.global_ import *  # noqa: F403
from .reduce.global_ import count_tiles

own_tiles = count_tiles
