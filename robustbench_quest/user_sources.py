"""The source files of a user's code: the file itself and the files beside it that it imports."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_INSTALLED = tuple(
    Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)


def source_sha256(defined: object) -> str:
    """Return the sha256 of the sources that define a class or function, or "" where there are none."""
    try:
        file = inspect.getsourcefile(defined)  # type: ignore[arg-type]
    except TypeError:
        return ""
    return sources_sha256(Path(file)) if file and Path(file).is_file() else ""


def sources_sha256(file: Path) -> str:
    """Return one sha256 for ``local_sources(file)``; for a file that imports none beside it, its own."""
    # By name, not by folder: where the files lie changes nothing.
    found = sorted((path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in local_sources(file))
    return found[0][1] if len(found) == 1 else hashlib.sha256(repr(found).encode()).hexdigest()


def local_sources(file: Path) -> list[Path]:
    """Return ``file`` and every file that it imports from its own folder or package, also through others.

    Found by reading the import statements, so that the answer does not depend on what else is loaded.
    Installed packages are left out: their versions are recorded with the results.
    """
    file = file.resolve()
    found, waiting = {file}, [file]
    while waiting:
        path = waiting.pop()
        if not _installed(path):
            new = {module for module in _imported(path, file.parent) if not _installed(module)} - found
            found |= new
            waiting += new
    return sorted(found)


def _imported(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files that the import statements of ``path`` can mean."""
    above = path.parent  # from where the file's package, if it is in one, is imported by name
    while (above / "__init__.py").is_file():
        above = above.parent
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        module = node.module if isinstance(node, ast.ImportFrom) else None
        # One dot is the package that the file is in, each further dot the one above.
        for base in [path.parents[level - 1]] if level else {folder, above}:
            for alias in node.names:
                yield from _files(base, f"{module}.{alias.name}" if module else alias.name)


def _files(base: Path, name: str) -> Iterator[Path]:
    """Yield the module ``name`` below ``base`` and the packages around it, as far as they are files."""
    place = base
    for part in name.split("."):
        place /= part
        for candidate in (place.with_name(part + ".py"), place / "__init__.py"):
            if candidate.is_file():
                yield candidate.resolve()


def _installed(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in _INSTALLED)
