"""One cell: what it is, and its records, from the store or computed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .block import Advance, Job
from .completion import complete, compute, lacking, unfailed
from .errors import DataError, OptionError, unknown
from .protocols import load_protocol
from .records import Records
from .run import How, Run
from .store import Store
from .tasks import task_of
from .threats import kind_of
from .types import CLEAN, AttackSide, Cell, DatasetSpec, ModelSpec, Note, Threat
from .verified_files import silent

if TYPE_CHECKING:
    from .datasets.base import Dataset
    from .models.classifier import Classifier


def evaluate(
    model: Classifier,
    dataset: Dataset,
    threat: Threat = CLEAN,
    *,
    store: str | Store | None = None,
    advance: Advance | None = None,
    note: Note = silent,
    **settings: Any,
) -> Records:
    """Return the records of a cell: read from the store where they are there, computed where they are not.

    Args:
        model: a Classifier; its state, training flags and gradients are left as they were.
        dataset: images and labels.
        threat: CLEAN, or what ``threat(name, ...)`` returns.
        store: folder of the result store; None keeps nothing.
        advance: told of progress.
        note: told, in one line each, what of the store was damaged and is made again.
        settings: fields of ``Run`` (limit, seed, block_size, protocol, adaptive) and of ``How`` (batch_size,
            workers, keep_images), by name.

    Raises:
        QuestError: the model was changed after it was wrapped.
        OptionError: no such setting, or a size that makes no sense.
        DataError: labels that the model cannot predict, or an image that cannot be read.
        StoreError: the store is of another version or cannot be written to.
    """
    model.check_unchanged()
    run, how = _split(settings)
    kept = Store(store) if isinstance(store, str) else store
    if kept is not None:
        dataset.remember_contents_in(kept.contents)
    if how.keep_images and kept is None:
        raise OptionError(f"keep_images={how.keep_images} needs a store to keep them in")
    cell = make_cell(model.spec, dataset, threat, run)
    job = Job(model, dataset, cell, how, advance or _ignore)
    if kept is None:
        wanted = set(range(len(cell.blocks)))
        return pa.concat_tables([unfailed(done)[0] for done in compute([job], [wanted])])
    stored = kept.cell(cell)
    lacks = [lacking(stored, how, note)]
    for error in complete([job], [stored], lacks, note):
        if error is not None:
            raise error
    return stored.read()


def make_cell(
    model: ModelSpec,
    dataset: Dataset,
    threat: Threat = CLEAN,
    run: Run | None = None,
    spec: DatasetSpec | None = None,
) -> Cell:
    """Return the cell of a model, a data set and a threat, after checking that they fit together.

    A cell holds of ``run`` what can change its numbers: the seed where the threat draws, the space and the
    gradient of an attack where it sees the model. Clean cells are the same under every seed and protocol.
    ``spec`` is the data set's, for who asked it already; finding it out looks at every file.

    Raises:
        OptionError: a threat that makes no sense for the model.
        DataError: labels that the model cannot predict.
    """
    run = run or Run()
    kind = kind_of(threat)
    if not len(dataset):
        raise DataError(f"data set {dataset.name} holds no images")
    spec = dataset.spec if spec is None else spec
    task_of(spec).check(model, dataset)
    kind.check(threat, model)
    protocol = load_protocol(run.protocol)
    adaptive = protocol.adaptive if run.adaptive is None else run.adaptive
    return Cell(
        model=model,
        dataset=spec,
        threat=threat,
        limit=len(dataset) if run.limit is None else min(run.limit, len(dataset)),
        block_size=run.block_size or kind.block_size,
        seed=run.seed if kind.seeded else None,
        side=AttackSide(protocol.space, adaptive) if kind.sees_model else None,
        protocol=protocol.name if kind.sees_model else "",
    )


def _split(settings: dict[str, Any]) -> tuple[Run, How]:
    """Return the settings of a run, and how it is done."""
    names = {kind: {field.name for field in dataclasses.fields(kind)} for kind in (Run, How)}
    for name in settings:
        if name not in names[Run] | names[How]:
            raise OptionError(unknown("setting", name, names[Run] | names[How]))
    run, how = ({name: settings[name] for name in settings if name in names[kind]} for kind in (Run, How))
    return Run(**run), How(**how)


def _ignore(images: float, computed: bool = True) -> None:
    return None
