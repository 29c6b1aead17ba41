"""A cell as JSON, and back: what cell.json holds is enough to print the cell's row of a table.

``identity`` is what can change a number, and hashes to the cell's id; ``names`` is what people read and no
number depends on (see ``names.names_of``). Neither needs the attack, model or data set to exist any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import StoreError
from .types import (
    SCHEMA_VERSION,
    AttackSide,
    AttentionSpec,
    Cell,
    DatasetSpec,
    ModelSpec,
    Options,
    Preprocessing,
    SpaceSpec,
    Threat,
)


def cell_to_json(cell: Cell, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of a cell's cell.json."""
    return {"id": cell.id, "identity": cell.identity(), "names": dict(names)}


def cell_from_json(contents: Mapping[str, Any], where: object) -> Cell:
    """Return the cell that the contents of a cell.json describe; ``where`` names it for messages.

    Fractions among the threat's options stay text, such as "1/255": the id is the same.

    Raises:
        StoreError: they are of another schema version, or describe no cell, or another than they state.
    """
    identity = contents.get("identity")
    check_version(identity, where)
    try:
        cell = _cell(contents["identity"], contents["names"])
        found, stated = cell.id, contents["id"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{where} describes no cell ({error!r}); run its command again") from error
    if found != stated:
        raise StoreError(f"{where} states the id {str(stated)[:12]}, but describes the cell {found[:12]}")
    return cell


def check_version(identity: object, where: object) -> None:
    """Refuse an identity of another schema version.

    Raises:
        StoreError: with both versions.
    """
    version = identity.get("schema") if isinstance(identity, dict) else None
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{where} has schema version {version}, this program {SCHEMA_VERSION}; use another --out"
        )


def _cell(identity: Mapping[str, Any], names: Mapping[str, Any]) -> Cell:
    side, dataset = identity["side"], identity["dataset"]
    return Cell(
        model=_model(identity["model"], names),
        dataset=DatasetSpec(dataset["name"], dataset["fingerprint"], dataset["version"], dataset["task"]),
        threat=_threat(identity["threat"]),
        limit=identity["limit"],
        block_size=identity["block_size"],
        seed=identity["seed"],
        side=None if side is None else AttackSide(_space(side["space"]), side["adaptive"]),
        protocol=names["protocol"],
        precision=identity["precision"],
    )


def _model(identity: Mapping[str, Any], names: Mapping[str, Any]) -> ModelSpec:
    attention, preprocessing = identity["attention"], identity["preprocessing"]
    return ModelSpec(
        name=names["model"],
        checkpoint=identity["checkpoint"],
        arch=identity["arch"],
        attention=None if attention is None else _attention(attention),
        weights=identity["weights"],
        preprocessing=Preprocessing(
            size=preprocessing["size"],
            resize=preprocessing["resize"],
            interpolation=preprocessing["interpolation"],
            mean=_three(preprocessing["mean"]),
            std=_three(preprocessing["std"]),
            crop_mode=preprocessing["crop_mode"],
        ),
        num_classes=names["num_classes"],
        arch_options=_options(identity["arch_options"]),
        source_hash=identity["source"],
        sources=_options(names["sources"]),
        guessed=tuple(names["guessed"]),
    )


def _attention(identity: Mapping[str, Any]) -> AttentionSpec:
    options = _options(identity["options"])
    return AttentionSpec(identity["name"], options, identity["version"], identity["source"])


def _threat(identity: Mapping[str, Any]) -> Threat:
    options = _options(identity["options"])
    return Threat(identity["kind"], identity["name"], options, identity["version"])


def _space(identity: Mapping[str, Any]) -> SpaceSpec:
    std, clamp = identity["std"], identity["clamp"]
    return SpaceSpec(
        identity["kind"],
        None if std is None else _three(std),
        None if clamp is None else (clamp[0], clamp[1]),
    )


def _options(found: Mapping[str, Any]) -> Options:
    return tuple((key, _frozen(value)) for key, value in found.items())


def _three(found: Any) -> tuple[float, float, float]:
    return (found[0], found[1], found[2])


def _frozen(value: Any) -> Any:
    """Return a value that can be hashed, as those of a cell must be."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
