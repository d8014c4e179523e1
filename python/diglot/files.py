"""Files to write: refused early and in one line, never overwritten by accident."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def check_writable(path: str | Path, force: bool) -> None:
    """Raises ValueError unless a file may be written: overwriting takes `force`."""
    path = Path(path)
    folder = path.absolute().parent
    with writing(path):
        if path.is_dir():
            raise ValueError(f"{path} is a folder, not a file to write")
        if path.exists() and not force:
            raise ValueError(f"{path} exists and is not overwritten without force (--force)")
        if not folder.is_dir():
            raise ValueError(f"{path} cannot be written: there is no folder {folder}")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_folder(folder: str | Path, force: bool, makes_parents: bool = True) -> None:
    """Raises ValueError unless files may be written into a folder: one with files takes `force`."""
    path = Path(folder)
    if not path.exists() and not makes_parents:
        check_writable(path, force)
    with writing(path):
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file, not a folder to write into")
        if path.is_dir() and any(path.iterdir()) and not force:
            raise ValueError(f"{path} has files, which are not overwritten without force (--force)")


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Context manager: an error in writing a file becomes a ValueError that names the file."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error


def json_files(folder: Path) -> list[Path]:
    """The .json files below a folder, sorted by path: the places of results."""
    return sorted(folder.rglob("*.json"))


def for_json(value: Any) -> Any:
    """`value` with the numbers that JSON lacks as strings ("inf", "nan")."""
    if isinstance(value, dict):
        return {key: for_json(of) for key, of in value.items()}
    if isinstance(value, (list, tuple)):
        return [for_json(of) for of in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
