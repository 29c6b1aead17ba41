"""What lies in a folder of images, found without opening one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError

ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


@dataclass(frozen=True)
class Listing:
    """The files of a folder, by name.

    Args:
        root: the folder.
        folders: folder directly below the root -> the images in and below it; empty ones are in it too.
        loose: images directly in the root.
        hidden: how many names start with a dot and were left out, folders counted as one.
        others: files that are not images by their ending.

    Images are paths relative to the root, with forward slashes, sorted.
    """

    root: Path
    folders: dict[str, tuple[str, ...]]
    loose: tuple[str, ...]
    hidden: int
    others: tuple[str, ...]


def list_images(root: Path) -> Listing:
    """Return what is in ``root``. Symbolic links are followed, also to folders.

    Raises:
        DataError: there is no such folder, it is a file, it cannot be read, or a name in it is not UTF-8.
    """
    if not root.exists():
        raise DataError(f"no data at {root}: expected a folder of images; check --data")
    if not root.is_dir():
        raise DataError(f"{root} is a file: expected a folder of images; unpack it, or check --data")
    images: list[str] = []
    others: list[str] = []
    hidden = 0
    names: set[str] = set()
    for folder, files, left_out in _walk(root):
        hidden += left_out
        parts = folder.relative_to(root).parts
        names.update(parts[:1])
        for file in files:
            target = images if file.lower().endswith(ENDINGS) else others
            target.append("/".join((*parts, file)))
    _require_utf8([*images, *names], root)
    folders: dict[str, list[str]] = {name: [] for name in sorted(names)}
    loose: list[str] = []
    for image in sorted(images):
        folder_name, slash, _ = image.partition("/")
        (folders[folder_name] if slash else loose).append(image)
    return Listing(
        root,
        {name: tuple(found) for name, found in folders.items()},
        tuple(loose),
        hidden,
        tuple(sorted(others)),
    )


def _walk(root: Path) -> Iterator[tuple[Path, list[str], int]]:
    """Yield each visible folder, its visible files, and how many of its names are hidden."""

    def fail(error: OSError) -> None:
        # os.walk skips what it cannot read, which would shrink the data set without a word.
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from None

    for path, folders, files in os.walk(root, followlinks=True, onerror=fail):
        visible = [name for name in folders if not name.startswith(".")]
        hidden = len(folders) - len(visible) + sum(name.startswith(".") for name in files)
        folders[:] = [name for name in visible if not _leads_back(Path(path, name))]
        yield Path(path), [name for name in files if not name.startswith(".")], hidden


def _leads_back(folder: Path) -> bool:
    """Whether a folder is a link to one of its own parents, which would be walked forever."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _require_utf8(names: Sequence[str], root: Path) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{os.fsencode(name)!r} in {root} is not UTF-8: results are keyed by name; rename it"
            ) from None
