"""Who may import whom, and where devices are named: read from the source, checked against the documents."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support import ROOT

PACKAGES = {"attacks": "attacks", "configs": "configs", "robustbench_quest": ""}
FOUNDATION = {"types", "errors", "registry", "rng", "budget", "files", "_version"}
RESULTS = {"cell_json", "metrics", "names", "records", "store", "stored_cell", "tables", "trust"}
NO_TORCH = {
    *RESULTS,
    "protocols",
    "run",
    "threats",
    "verified_files",
    "yaml_edge",
    *FOUNDATION,
}
# Of these parts, only what is imported when it is used may need torch.
LAZY_TORCH = {
    "attacks/base.py",
    "attacks/settings.py",
    "attacks/fgsm.py",
    "attacks/pgd.py",
    "robustbench_quest/tasks/__init__.py",
    "robustbench_quest/tasks/base.py",
    "robustbench_quest/tasks/classification.py",
}


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))] + [
        ROOT / "run_eval.py"
    ]


def part_of(path: Path) -> str:
    """Return the part of the package that a file belongs to: "attacks", "models", "store" ..."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "robustbench_quest" and len(parts) > 1 else parts[0]


def imports(path: Path) -> set[str]:
    """Return what a file imports, except for types only: our parts as ".part", others by name."""
    inside = path.relative_to(ROOT).with_suffix("").parts
    package = (*([] if inside[0] == "robustbench_quest" else ["robustbench_quest"]), *inside[:-1])
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found.update("." + (*base, *name.split("."))[1] for name in names if len((*base, name)) > 1)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


ALLOWED = {
    **{part: FOUNDATION for part in FOUNDATION},
    "attacks": FOUNDATION | {"attacks"},
    "configs": set(),
    "yaml_edge": {"errors"},
    "identity": FOUNDATION | {"device"},
    "user_sources": FOUNDATION,
    "user_code": FOUNDATION | {"identity", "user_sources"},
    "attention": FOUNDATION | {"attention", "device", "user_code"},
    "checkpoints": FOUNDATION | {"checkpoints", "device", "identity", "yaml_edge"},
    "models": FOUNDATION
    | {"models", "attention", "checkpoints", "device", "identity", "user_code", "user_sources"},
    "datasets": FOUNDATION | {"datasets"},
    "device": FOUNDATION,
    "records": FOUNDATION,
    "run": FOUNDATION,
    "tasks": FOUNDATION | {"tasks", "attacks", "device", "records"},
    "cell_json": FOUNDATION,
    "names": FOUNDATION | {"threats"},
    "verified_files": FOUNDATION | {"records"},
    "stored_cell": FOUNDATION | {"cell_json", "records", "tasks", "verified_files"},
    "store": FOUNDATION | {"stored_cell", "verified_files"},
    "metrics": FOUNDATION | {"records"},
    "trust": FOUNDATION | {"records", "metrics"},
    "tables": FOUNDATION
    | {"metrics", "names", "records", "stored_cell", "tables", "tasks", "threats", "trust"},
    "protocols": FOUNDATION | {"protocol_schema", "yaml_edge"},
    "protocol_schema": FOUNDATION,
    "threats": FOUNDATION | {"records"},
    "environment": FOUNDATION | {"device"},
    "model_calls": FOUNDATION,
    "block": FOUNDATION | {"device", "records", "run", "tasks", "threats", "datasets"},
    "stages": FOUNDATION | {"attacks", "block", "model_calls", "records", "threats"},
    "evaluation": FOUNDATION
    | {"block", "completion", "protocols", "records", "run", "store", "tasks", "threats", "verified_files"},
    "completion": FOUNDATION
    | {"block", "datasets", "environment", "names", "records", "run", "stored_cell", "verified_files"},
    "planning": FOUNDATION
    | {"checkpoints", "datasets", "evaluation", "models", "protocols", "run", "store", "threats"},
    "execution": FOUNDATION
    | {"block", "completion", "device", "models", "names", "planning", "store", "stored_cell"},
    "demo": FOUNDATION | {"demo", "attention", "datasets"},
}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_part_imports_only_what_lies_below_it(path: Path) -> None:
    part = part_of(path)
    if part in ("cli", "__init__", "__main__", "run_eval"):
        return assert_nothing_imports_cli()
    assert part in ALLOWED, (
        f"{part} is new: say in this test, and in docs/architecture.md, what it may import"
    )
    ours = {name[1:] for name in imports(path) if name.startswith(".")}
    assert ours <= ALLOWED[part]


def assert_nothing_imports_cli() -> None:
    for path in sources():
        if part_of(path) not in ("cli", "__main__", "run_eval"):
            assert ".cli" not in imports(path)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_need_no_torch(path: Path) -> None:
    if part_of(path) in NO_TORCH:
        assert not {"torch", "timm", "torchvision"} & imports(path)
    if part_of(path) in ("attacks", "configs"):
        assert "robustbench_quest" not in imports(path), "imports inside mapped folders are relative"


def at_import(path: Path) -> set[str]:
    """Return the packages that importing a file imports, but for those that its functions import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {
        name.split(".")[0]
        for node in top
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }


@pytest.mark.parametrize("name", sorted(LAZY_TORCH))
def test_settings_and_columns_are_read_without_torch(name: str) -> None:
    assert not {"torch", "timm", "torchvision"} & at_import(ROOT / name)


def test_devices_are_named_in_one_place() -> None:
    literal = re.compile(r"""["'](cpu|cuda|mps)(:\d+)?["']|\.cuda\(|\.cpu\(\)""")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        if path.name != "device.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if literal.search(line) and not line.lstrip().startswith("@click.option")
    ]
    assert found == []


def test_no_source_file_is_over_400_lines() -> None:
    long = {path.name: n for path in sources() if (n := len(path.read_text().splitlines())) > 400}
    assert long == {}
