"""Reaching files below one folder and never outside it: from one open folder to the next, and through no link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optistack.errors import InputError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """An open folder. ``path`` is its name for messages; everything else goes by its descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @contextmanager
    def parent(self, parts: tuple[str, ...]) -> Iterator[int]:
        """A descriptor of the folder that the file ``parts`` lies in. OSError where a part is a link or gone."""
        current = os.dup(self.descriptor)
        try:
            for part in parts[:-1]:
                below = os.open(part, _FOLDER, dir_fd=current)
                os.close(current)
                current = below
            yield current
        finally:
            os.close(current)

    def stat(self, parts: tuple[str, ...]) -> os.stat_result:
        """Of the regular file ``parts``. OSError where it is gone or something else."""
        with self.parent(parts) as parent:
            found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ELOOP, "is no regular file", "/".join(parts))
        return found

    def unlink(self, parts: tuple[str, ...]) -> None:
        with self.parent(parts) as parent:
            os.unlink(parts[-1], dir_fd=parent)

    def rmdir(self, parts: tuple[str, ...]) -> None:
        """OSError where the folder ``parts`` is not empty."""
        with self.parent(parts) as parent:
            os.rmdir(parts[-1], dir_fd=parent)

    def open(self, parts: tuple[str, ...], flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
        """A descriptor of the file ``parts``, which is no link. Reading it leaves its time of use alone if it may."""
        with self.parent(parts) as parent:
            flags |= os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                return os.open(parts[-1], flags | os.O_NOATIME, mode, dir_fd=parent)
            except PermissionError:  # O_NOATIME is for a file's owner
                return os.open(parts[-1], flags, mode, dir_fd=parent)

    def replace(self, old: str, new: str) -> None:
        """Rename ``old`` to ``new``, both directly in this folder."""
        os.replace(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)


@contextmanager
def open_folder(path: Path) -> Iterator[Folder]:
    """The folder ``path``. InputError where it is none, is a link, or may not be read."""
    if path.is_symlink():
        raise InputError(f"{path} is a link to {path.resolve()}.", fix="Give that folder itself.")
    if path.resolve() == Path("/"):
        raise InputError("/ is the whole system and no storage tier.", fix="Give the folder of option storage_dir.")
    try:
        descriptor = os.open(path, _FOLDER)
    except FileNotFoundError:
        raise InputError(f"There is no folder {path}.", fix="Give the folder of option storage_dir.") from None
    except NotADirectoryError:
        raise InputError(f"{path} is no folder.", fix="Give the folder of option storage_dir.") from None
    except PermissionError:
        raise InputError(f"{path} may not be read.", fix="Run this as the user that the engine runs as.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}.") from None
    try:
        yield Folder(path, descriptor)
    finally:
        os.close(descriptor)
