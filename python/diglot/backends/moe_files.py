"""vLLM's files of measured tiles for mixtures of experts, and the plan of `grouped_mm` from them.

A file, such as "E=64,N=1408,device_name=NVIDIA_H200.json", has tiles for several numbers of tokens.
E counts experts, N is the width between an expert's two matrices, and "dtype" names a quantisation.
vLLM: vllm/model_executor/layers/fused_moe/fused_moe.py, `get_config_file_name`, `get_moe_configs`.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diglot.backends.tunable_files import TunableError
from diglot.backends.tunables import named_numbers, specs

NAME = re.compile(
    r"E=(\d+),N=(\d+),device_name=([^,]+)(?:,dtype=(\w+))?(?:,block_shape=\[(\d+),(\d+)\])?\.json"
)
VERSION = "triton_version"  # a key of newer files
# vLLM's names of a tile's numbers, and those of our tunables.
NUMBERS = {
    "BLOCK_SIZE_M": "products.triton.grouped.rows",
    "BLOCK_SIZE_N": "products.triton.grouped.columns",
    "BLOCK_SIZE_K": "products.triton.grouped.depth",
    "num_warps": "products.triton.grouped.warps",
    "num_stages": "products.triton.grouped.stages",
    "GROUP_SIZE_M": "products.both.group",
}
Tile = Mapping[str, int]  # by vLLM's names

_warned: set[Path] = set()


@dataclass(frozen=True)
class MoeFile:
    """One file's tiles.

    Attributes:
        experts, width: E and N of its name.
        device: of its name, with "_" for spaces.
        dtype: a quantisation, such as "fp8_w8a8"; None for 16-bit floats.
        block: sides of a block of scales; None without blocks.
        triton: the version of Triton that measured it, where the file says so.
        tiles: by tokens.
    """

    experts: int
    width: int
    device: str
    dtype: str | None
    block: tuple[int, int] | None
    triton: str | None
    tiles: Mapping[int, Tile]

    def nearest(self, tokens: int) -> Tile:
        """The tile that was measured for the nearest number of tokens: of two as near, the one that
        the file has first. vLLM chooses so.
        """
        return self.tiles[min(self.tiles, key=lambda measured: abs(measured - tokens))]

    def plan(self, tokens: int) -> dict[str, int]:
        """A plan for `diglot.use_plans`, so that products of rows of groups by tensor descriptors
        have the tile for `tokens` tokens. It is empty where our kernels lack the tile.
        """
        found = {NUMBERS[name]: value for name, value in self.nearest(tokens).items()}
        try:
            for name, value in found.items():
                for full in named_numbers(name):
                    specs()[full].check(value, name)
        except TunableError:
            return {}
        return found


def file_name(
    experts: int,
    width: int,
    device: str,
    dtype: str | None = None,
    block: tuple[int, int] | None = None,
) -> str:
    """The name of the file for these facts. All GPUs of the H200 family share theirs."""
    device = device.replace(" ", "_")
    if "H200" in device.split("_"):
        device = "NVIDIA_H200"
    quantised = "" if dtype is None else f",dtype={dtype}"
    blocks = "" if block is None else f",block_shape=[{block[0]},{block[1]}]"
    return f"E={experts},N={width},device_name={device}{quantised}{blocks}.json"


def read_moe_file(path: Path) -> MoeFile:
    """Reads a file.

    Raises:
        ValueError: its name or its content is wrong. The message says where.
        OSError: it cannot be read.
    """
    named = NAME.fullmatch(path.name)
    if named is None:
        raise ValueError("its name is not like E=64,N=1408,device_name=NVIDIA_H200.json")
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        raise ValueError("it holds no object")
    version = content.pop(VERSION, None)
    if version is not None and not isinstance(version, str):
        raise ValueError(f"{VERSION} is {version!r}, not a text")
    tiles = {_tokens(key): _tile(key, tile) for key, tile in content.items()}
    if not tiles:
        raise ValueError("it has no tiles")
    experts, width, device, dtype, rows, columns = named.groups()
    block = None if rows is None else (int(rows), int(columns))
    return MoeFile(int(experts), int(width), device, dtype, block, version, tiles)


def find_moe_file(
    folder: Path | str,
    experts: int,
    width: int,
    device: str,
    dtype: str | None = None,
    block: tuple[int, int] | None = None,
) -> MoeFile | None:
    """The file for these facts; None if the folder has none, or a wrong one, with one warning."""
    path = Path(folder) / file_name(experts, width, device, dtype, block)
    try:
        return read_moe_file(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if path not in _warned:
            _warned.add(path)
            warnings.warn(f"diglot ignores tiles of experts in {path}: {error}", stacklevel=2)
        return None


def _tokens(key: str) -> int:
    if not key.isdigit() or int(key) == 0:
        raise ValueError(f"{key!r} is no number of tokens")
    return int(key)


def _tile(key: str, tile: object) -> Tile:
    """Numbers of other architectures, such as AMD's waves_per_eu, are left out."""
    if not isinstance(tile, dict):
        raise ValueError(f"{key} holds no object")
    for name in NUMBERS:
        value = tile.get(name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{key}: {name} is {value!r}, not a positive integer")
    return {name: tile[name] for name in NUMBERS}
