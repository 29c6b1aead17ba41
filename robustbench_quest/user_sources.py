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


def sources_sha256(file: Path) -> str:
    """Return one sha256 for ``local_sources(file)``; for a file that imports none beside it, its own."""
    files = local_sources(file)
    hashes = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    if len(files) == 1:
        return hashes[files[0]]
    # By name, not by folder: where the files lie changes nothing.
    return hashlib.sha256(repr(sorted((path.name, hashes[path]) for path in files)).encode()).hexdigest()


def source_sha256(defined: object) -> str:
    """Return the sha256 of the sources that define a class or function, or "" where there are none."""
    try:
        file = inspect.getsourcefile(defined)  # type: ignore[arg-type]
    except TypeError:
        return ""
    return sources_sha256(Path(file)) if file and Path(file).is_file() else ""


def local_sources(file: Path) -> list[Path]:
    """Return ``file`` and every file that it imports from its own folder or package, also through others.

    Found by reading the import statements, so that the answer does not depend on what else is loaded.
    Installed packages are left out: their versions are recorded with the results.
    """
    file = file.resolve()
    found: list[Path] = []
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.append(path)
        if not _installed(path):
            waiting += [module for module in _imported(path, file.parent) if not _installed(module)]
    return sorted(found)


def _imported(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files that the import statements of ``path`` can mean."""
    bases = dict.fromkeys((folder, _above_package(path)))
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                for base in bases:
                    yield from _files(base, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            # One dot is the package that the file is in, each further dot the one above.
            starts = [path.parents[node.level - 1]] if node.level else list(bases)
            for base in starts:
                for alias in node.names:
                    yield from _files(base, [*module, alias.name])


def _files(base: Path, parts: list[str]) -> Iterator[Path]:
    """Yield the module ``parts`` below ``base`` and the packages around it, as far as they are files."""
    for end in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:end])
        for candidate in (place.with_name(place.name + ".py"), place / "__init__.py"):
            if candidate.is_file():
                yield candidate.resolve()


def _above_package(path: Path) -> Path:
    """Return the folder from which the file's package, if it is in one, is imported by name."""
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _installed(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in _INSTALLED)
