"""Where YAML that people write comes in: read within bounds, and checked against a pydantic model.

pydantic's errors become our messages here and nowhere else. A schema's own validators raise ``ValueError``:
with a text that begins with "must", which is said of the key and followed by the value; or with a whole
sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from .errors import QuestError, brief, unknown

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    _M = TypeVar("_M", bound=BaseModel)

MOST_BYTES = 1 << 18  # which PyYAML reads in about two seconds
MOST_ALIASES = 16  # with many, a small file can stand for more values than any memory holds

_FOREIGN = ("extra_forbidden", "invalid_key")  # pydantic's names of errors
_KINDS = {
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
}


def read_yaml(path: Path, error: type[QuestError]) -> dict[str, Any]:
    """Return the mapping that a YAML file holds.

    Args:
        path: the file.
        error: the class of what is raised.

    Raises:
        error: it cannot be read, is too large, is not YAML, gives a key twice, or holds no mapping.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as fault:
        raise error(f"{path} cannot be read: {fault.strerror}") from fault
    if len(text) > MOST_BYTES:
        raise error(f"{path} has more than {MOST_BYTES:,} bytes, expected a short file of `key: value` lines")
    try:
        content = yaml.load(text.decode("utf-8-sig"), _Loader)
    # A number or a date that Python cannot hold is a ValueError, as is text that is not UTF-8.
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        raise error(f"{path} is not YAML: {' '.join(str(fault).split())[:120]}") from fault
    if not isinstance(content, dict):
        raise error(f"{path} must hold `key: value` lines; it holds {type(content).__name__}")
    return content


def checked(model: type[_M], content: Mapping[str, Any], where: str, error: type[QuestError]) -> _M:
    """Return ``content`` as an instance of a schema.

    Args:
        model: the schema, which forbids keys that it does not have.
        content: what was read.
        where: the file, and the place in it, for messages.
        error: the class of what is raised.

    Raises:
        error: a key or value that cannot be used; the message names ``where`` and the key.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(content)
    except ValidationError as fault:
        found = fault.errors(include_url=False)
        # A key that is misspelt is the likely cause of the rest.
        first = next((f for f in found if f["type"] in _FOREIGN), found[0])
        raise error(f"{where}: {_message(model, first)}") from fault


def _message(model: type[BaseModel], found: ErrorDetails) -> str:
    # pydantic marks a key that is itself wrong by a further "[key]".
    *parents, key = [str(part) for part in found["loc"] if part != "[key]"] or [""]
    within = "".join(f"{parent}: " for parent in parents)
    if found["type"] in _FOREIGN:
        return within + unknown("key", key, _fields(model, parents))
    if found["type"] == "missing":
        return f"{within}{key} is missing; add it"
    said = _KINDS.get(found["type"]) or str(found.get("ctx", {}).get("error", found["msg"]))
    return f"{within}{key} {said}; got {brief(found['input'])}" if said.startswith("must") else within + said


def _fields(model: type[BaseModel], parents: list[str]) -> list[str]:
    """Return the keys of a schema, or of that below ``parents``."""
    from pydantic import BaseModel

    for parent in parents:
        kind = model.model_fields[parent].annotation
        kinds = (kind, *getattr(kind, "__args__", ()))
        model = next(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
    return [field.alias or name for name, field in model.model_fields.items()]


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which by itself lets the last of two equal keys win and follows any aliases."""

    aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MOST_ALIASES:
                raise yaml.composer.ComposerError(
                    None, None, f"it has more than {MOST_ALIASES} aliases (*name); write the values out"
                )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        twice = next((key for key, count in keys.items() if count > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice!r} is there twice; leave one"
            )
        return super().construct_mapping(node, deep)
