"""What lies in a folder of images, found without opening one of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..files import shown

ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
# Made by storage systems, file managers and archivers, often with thumbnails of the images; never data.
SYSTEM = frozenset(
    (
        *("@eadir", "@tmp", "#recycle", "#snapshot"),  # Synology
        *("@recycle", "@recently-snapshot"),  # QNAP
        *("~snapshot", "lost+found"),  # NetApp, ext4
        *("$recycle.bin", "recycler", "system volume information", "found.000"),  # Windows
        *("thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "picasa.ini"),
        *("__macosx", "network trash folder", "temporary items", "icon\r"),  # macOS
    )
)


@dataclass(frozen=True)
class Listing:
    """The files of a folder, by name.

    Args:
        root: the folder.
        folders: folder directly below the root -> the images in and below it; empty ones are in it too.
        loose: images directly in the root.
        hidden: how many names start with a dot and were left out, folders counted as one.
        others: files that are not images by their ending.
        system: names of ``SYSTEM``, which were left out with all that is in them.

    Images are paths relative to the root, with forward slashes, sorted.
    """

    root: Path
    folders: dict[str, tuple[str, ...]]
    loose: tuple[str, ...]
    hidden: int
    others: tuple[str, ...]
    system: tuple[str, ...]


def list_images(root: Path) -> Listing:
    """Return what is in ``root``. Symbolic links are followed, also to folders, unless they lead back.

    Raises:
        DataError: there is no such folder, it is a file, it cannot be read, or a name in it is not UTF-8.
    """
    _require_folder(root)
    images: list[str] = []
    others: list[str] = []
    hidden = 0
    names: set[str] = set()
    system: list[str] = []
    for folder, files, left_out in _walk(root):
        hidden += sum(name.startswith(".") for name in left_out)
        parts = folder.relative_to(root).parts
        names.update(parts[:1])
        for file in files:
            target = images if file.lower().endswith(ENDINGS) else others
            target.append("/".join((*parts, file)))
        system += ["/".join((*parts, name)) for name in left_out if not name.startswith(".")]
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
        tuple(sorted(system)),
    )


def _require_folder(root: Path) -> None:
    try:
        is_folder = stat.S_ISDIR(os.stat(root).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"no data at {shown(root)}: expected a folder of images; check --data") from None
    except (OSError, ValueError) as error:  # too long, a loop of links, forbidden; or with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"{shown(root)} cannot be read: {reason}; expected a folder of images, check --data"
        ) from None
    if not is_folder:
        raise DataError(f"{shown(root)} is a file: expected a folder of images; unpack it, or check --data")


def _walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder that counts, its files that count, and the names in it that do not."""

    def fail(error: OSError) -> None:
        # os.walk skips what it cannot read, which would shrink the data set without a word.
        raise DataError(f"{shown(error.filename)}: cannot be read: {error.strerror}") from None

    for path, folders, files in os.walk(root, followlinks=True, onerror=fail):
        left_out = [name for name in (*folders, *files) if _is_litter(name)]
        folders[:] = [
            name for name in folders if not _is_litter(name) and not _leads_back(Path(path, name), root)
        ]
        yield Path(path), [name for name in files if not _is_litter(name)], left_out


def _is_litter(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM


def _leads_back(folder: Path, root: Path) -> bool:
    """Whether a folder is a link to where the walk came through, which would be walked forever."""
    if not folder.is_symlink():
        return False
    target = folder.resolve()
    parents = [folder.parent, *folder.parent.parents]
    came_through = parents[: parents.index(root) + 1]
    return any(parent.resolve().is_relative_to(target) for parent in came_through)


def _require_utf8(names: Sequence[str], root: Path) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{os.fsencode(name)!r} in {shown(root)} is not UTF-8: results are keyed by name; rename it"
            ) from None
