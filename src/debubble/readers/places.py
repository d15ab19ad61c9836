"""Places of files: paths of this machine, and addresses such as ``s3://bucket/run`` that fsspec opens.

Readers use of a path no more than ``Remote`` has: its name, its folder, whether it is there, its size and its bytes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from ..core.errors import Fault, InputError


@dataclass(frozen=True, slots=True)
class Size:
    """What ``stat`` tells of a remote file."""

    st_size: int


@dataclass(frozen=True, slots=True, order=True)
class Remote:
    """A file or folder behind an address; the methods are those of ``Path`` that readers use."""

    address: str

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.address).name

    @property
    def suffix(self) -> str:
        """The ending of the name."""
        return PurePosixPath(self.address).suffix

    @property
    def parent(self) -> Remote:
        """The folder around it."""
        return Remote(self.address.rstrip("/").rpartition("/")[0])

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open its bytes."""
        return cast(BinaryIO, self._system().open(self.address, mode))

    def read_bytes(self) -> bytes:
        """All of its bytes."""
        with self.open() as stream:
            return stream.read()

    def exists(self) -> bool:
        """Whether anything is there."""
        return bool(self._system().exists(self.address))

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return bool(self._system().isdir(self.address))

    def is_file(self) -> bool:
        """Whether it is a file."""
        return bool(self._system().isfile(self.address))

    def stat(self) -> Size:
        """Its size."""
        return Size(int(self._system().info(self.address)["size"] or 0))

    def glob(self, pattern: str) -> Iterator[Remote]:
        """Files of the folder whose names fit a pattern."""
        return (file for file in self.rglob(pattern) if file.parent == Remote(self.address.rstrip("/")))

    def rglob(self, pattern: str) -> Iterator[Remote]:
        """Files of the folder and of those in it whose names fit a pattern."""
        system = self._system()
        folder, here = self.address.rstrip("/"), system._strip_protocol(self.address).rstrip("/")
        for found in system.find(self.address):
            file = Remote(folder + found.removeprefix(here))
            if fnmatch(file.name, pattern):
                yield file

    def _system(self) -> Any:
        scheme = self.address.partition("://")[0]
        try:
            import fsspec

            return fsspec.filesystem(scheme)
        except ImportError as error:
            rule = f"{scheme}:// is opened by a package that is not here ({error})"
            raise InputError(Fault(self.address, rule, "install debubble[remote], and what it names")) from error
        except ValueError as error:
            rule = f"{scheme}:// is not known to fsspec"
            raise InputError(Fault(self.address, rule, "give a path, or an address such as s3://bucket/run")) from error


def place(text: str | Path | Remote) -> Path:
    """A path of this machine, or a ``Remote`` that stands in for one."""
    if isinstance(text, str) and "://" in text:
        return cast(Path, Remote(text))
    return cast(Path, text) if isinstance(text, Remote) else Path(text)


@contextmanager
def local(path: Path | Remote) -> Iterator[Path]:
    """The file on this machine: itself, or a copy for as long as it is needed."""
    if isinstance(path, Path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        with path.open("rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        yield copy
