"""One cell, one block: images through the threat and the model to records.

The evaluator judges what an attack proposes. It checks the range of the input once per batch and the eps ball
and range of every returned image, scores each image once, and records what it finds.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from .device import full_precision
from .errors import DataError, OptionError
from .records import Records, make_records
from .rng import ImageRng
from .scoring import Columns, cross_entropy, distances, predictions, score
from .store import Store, StoredCell, write_atomically
from .threats import build_attack
from .types import CLEAN, Cell, Threat

if TYPE_CHECKING:
    from .attacks.base import Attack, Model, Proposal
    from .datasets.base import Dataset
    from .datasets.loader import Batch
    from .models.classifier import Classifier

CLEAN_BLOCK = 1024
ATTACK_BLOCK = 256
DEFAULT_BATCH = 32

# float32 rounds a sum such as pixel + eps by up to 6e-8; an attack that is off by more left the ball.
ROUNDING = 1e-6

Advance = Callable[[float], None]
"""Called with the number of images, or a fraction of one, that were finished since the last call."""


def make_cell(
    model: Classifier,
    dataset: Dataset,
    threat: Threat = CLEAN,
    *,
    limit: int | None = None,
    seed: int = 0,
    block_size: int | None = None,
    protocol: str = "pixel",
) -> Cell:
    """Return the cell of a model, a data set and a threat, after checking that they fit together.

    Raises:
        OptionError: ``limit`` or ``block_size`` is not positive.
        DataError: labels that the model cannot predict.
    """
    _check_at_least(1, {"--limit": limit, "--block-size": block_size})
    _check_labels(model, dataset)
    size = len(dataset.image_ids)
    return Cell(
        model=model.spec,
        dataset=dataset.spec,
        threat=threat,
        limit=size if limit is None else min(limit, size),
        seed=seed,
        block_size=block_size or (CLEAN_BLOCK if threat.is_clean else ATTACK_BLOCK),
        protocol=protocol,
    )


def evaluate(
    model: Classifier,
    dataset: Dataset,
    threat: Threat = CLEAN,
    *,
    store: str | Store | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = DEFAULT_BATCH,
    block_size: int | None = None,
    protocol: str = "pixel",
    workers: int = 0,
    keep_images: int = 0,
    advance: Advance | None = None,
) -> Records:
    """Return the records of a cell: read from the store where they are there, computed where they are not.

    Args:
        model: a Classifier; its state, training flags and gradients are left as they were.
        dataset: images and labels.
        threat: CLEAN, or what ``threat(name, ...)`` returns.
        store: folder of the result store; None keeps nothing.
        limit: number of images, a prefix of the data set's fixed order; None is all.
        seed: of every draw.
        batch_size: images per model call; splits a block and changes no draw.
        block_size: images per block, the unit of work and resume; default 1,024, for attacks 256.
        protocol: named attack settings; decides the space in which attacks run.
        workers: processes that read images; 0 reads in this one.
        keep_images: clean and perturbed pixels of the first images to keep beside the cell as npz.
        advance: told of progress.
    """
    check_sizes(batch_size, workers, keep_images)
    cell = make_cell(model, dataset, threat, limit=limit, seed=seed, block_size=block_size, protocol=protocol)
    run = _Run(model, dataset, cell, batch_size, workers, keep_images, advance or _ignore)
    if store is None:
        return pa.concat_tables([run.block(number)[0] for number in range(len(cell.blocks))])
    stored = (store if isinstance(store, Store) else Store(store)).cell(cell)
    return _complete(run, stored)


def check_sizes(batch_size: int, workers: int, keep_images: int) -> None:
    """Refuse sizes that make no sense; they change no number.

    Raises:
        OptionError: one is too small.
    """
    _check_at_least(1, {"--batch-size": batch_size})
    _check_at_least(0, {"--workers": workers, "--keep-images": keep_images})


def _complete(run: _Run, stored: StoredCell) -> Records:
    from .environment import environment

    cell = stored.cell
    missing = stored.missing()
    pictures = [number for number, block in enumerate(cell.blocks) if block.start < run.keep_images]
    wanted = [n for n in pictures if n in missing or not _images_path(stored, n).exists()]
    if missing:
        stored.write_cell(run.names())
    for number in sorted({*missing, *wanted}):
        records, images = run.block(number)
        if images:
            write_atomically(_images_path(stored, number), _npz(images))
        if number in missing:
            stored.write_block(
                number, records, {**environment(run.model.device), "batch_size": run.batch_size}
            )
    run.advance(
        sum(len(block) for number, block in enumerate(cell.blocks) if number not in {*missing, *wanted})
    )
    return stored.finish()


class _Run:
    """One cell being computed."""

    def __init__(
        self,
        model: Classifier,
        dataset: Dataset,
        cell: Cell,
        batch_size: int,
        workers: int,
        keep_images: int,
        advance: Advance,
    ) -> None:
        self.model = model
        self.dataset = dataset
        self.cell = cell
        self.batch_size = batch_size
        self.workers = workers
        self.keep_images = keep_images
        self.advance = advance
        self.attack: Attack | None = None if cell.threat.is_clean else build_attack(cell.threat)

    def names(self) -> dict[str, Any]:
        """Return what people read of the cell."""
        model = self.cell.model
        return {
            "model": model.name,
            "attention": str(model.attention) if model.attention else "the model's own",
            "dataset": self.dataset.name,
            "threat": repr(self.attack) if self.attack else "clean",
            "sources": dict(model.sources),
            "guessed": list(model.guessed),
            "num_classes": self.model.num_classes,
        }

    def block(self, number: int) -> tuple[Records, dict[str, npt.NDArray[Any]]]:
        """Return one block's records, and the images to keep."""
        from .datasets.loader import load_batches

        block = self.cell.blocks[number]
        indices = self.dataset.order[block.start : block.stop].tolist()
        parts: list[Columns] = []
        kept: list[dict[str, npt.NDArray[Any]]] = []
        position = block.start
        with full_precision(self.model.device), torch.no_grad():
            for batch in load_batches(
                self.dataset, self.model.preprocessing, indices, self.batch_size, self.workers
            ):
                columns, images = self._batch(batch, position)
                parts.append(columns)
                if position < self.keep_images:
                    kept.append(
                        {name: array[: self.keep_images - position] for name, array in images.items()}
                    )
                position += len(batch.image_ids)
        merged = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}
        images = {name: np.concatenate([part[name] for part in kept]) for name in kept[0]} if kept else {}
        return make_records(merged, attacked=self.attack is not None), images

    def _batch(self, batch: Batch, position: int) -> tuple[Columns, dict[str, npt.NDArray[Any]]]:
        x, y = batch.pixels.to(self.model.device), batch.labels.to(self.model.device)
        check_pixels(x, batch.image_ids)
        count = len(batch.image_ids)
        shared: Columns = {
            "index": np.arange(position, position + count, dtype=np.int32),
            "image_id": np.array(batch.image_ids, dtype=object),
            "input_crc": batch.input_crc,
            "label": batch.labels.numpy().astype(np.int32),
        }
        clean_logits = self.model(x)
        clean = score(clean_logits, y)
        images = {"clean": x.numpy(force=True), "image_id": np.array(batch.image_ids)}
        if self.attack is None:
            self.advance(count)
            return {**shared, **clean}, images

        rng = ImageRng(self.cell.seed, self.cell.threat.name, batch.image_ids)
        with _progress(self.model.space(self.cell.protocol), self.attack, count, self.advance) as space:
            proposal = self.attack.run(space, x, y, rng)
        adversarial, logits = proposal.images, self.model(proposal.images)
        final = score(logits, y)
        # The clean image lies in every ball. Where the model is wrong on it and right on what the attack
        # returned, the clean image is the result: robust accuracy never exceeds clean accuracy.
        clean_fails = final["correct"] & ~clean["correct"]
        if clean_fails.any():
            use_clean = torch.from_numpy(clean_fails).to(x.device)
            adversarial = torch.where(use_clean[:, None, None, None], x, adversarial)
            logits = torch.where(use_clean[:, None], clean_logits, logits)
            final = score(logits, y)
        images["perturbed"] = adversarial.numpy(force=True)
        used = clean_logits.argmax(1) if self.attack.labels == "predicted" else y
        losses = {"loss_start": cross_entropy(clean_logits, used), "loss_end": cross_entropy(logits, used)}
        extra = self._attack_columns(x, adversarial, proposal, clean, final)
        return {**shared, **final, **losses, **extra}, images

    def _attack_columns(
        self, x: Tensor, adversarial: Tensor, proposal: Proposal, clean: Columns, final: Columns
    ) -> Columns:
        attack = self.attack
        assert attack is not None
        linf, l2 = distances(x, adversarial)
        moved = linf if attack.norm == "linf" else l2
        flat = adversarial.flatten(1)
        in_range = ((flat >= 0) & (flat <= 1)).all(dim=1).numpy(force=True)  # NaN pixels are outside
        in_ball = moved <= float(attack.eps) * (1 + ROUNDING) + ROUNDING * (attack.eps > 0)
        broken_by = np.where(final["correct"], "", self.cell.threat.name)
        return {
            "clean_pred": predictions(clean),
            "linf": linf,
            "l2": l2,
            "queries": proposal.queries,
            "grad_zero": proposal.grad_zero,
            "grad_nonfinite": proposal.grad_nonfinite,
            "restart": proposal.restart,
            "broken_by": np.where(clean["correct"], broken_by, "clean").astype(object),
            "violation": ~(in_range & in_ball),
        }


def check_pixels(x: Tensor, image_ids: Sequence[str]) -> None:
    """Refuse a batch with values outside [0, 1], naming the first such image and the likely cause.

    Raises:
        DataError: a value is below 0, above 1 or NaN.
    """
    inside = ((x >= 0) & (x <= 1)).flatten(1).all(dim=1)
    if not bool(inside.all()):
        first = int((~inside).nonzero()[0])
        low, high = float(x[first].min()), float(x[first].max())
        raise DataError(
            f"pixels must lie in [0, 1], but {image_ids[first]} has values from {low:.3g} to {high:.3g}: "
            "probably normalised already; normalisation belongs in the Classifier (mean=, std=)"
        )


def _check_at_least(least: int, values: Mapping[str, int | None]) -> None:
    for flag, value in values.items():
        if value is not None and value < least:
            raise OptionError(f"{flag} must be at least {least}, but is {value}")


def _check_labels(model: Classifier, dataset: Dataset) -> None:
    labels = dataset.labels
    if not len(labels):
        raise DataError(f"data set {dataset.name} holds no images")
    if int(labels.max()) >= model.num_classes or int(labels.min()) < 0:
        worst = int(labels.argmax()) if int(labels.max()) >= model.num_classes else int(labels.argmin())
        raise DataError(
            f"label {int(labels[worst])} of {dataset.image_ids[worst]} is out of range: the model has "
            f"classes 0-{model.num_classes - 1}; check the labels, or take the checkpoint for this data"
        )
    if dataset.num_classes is not None and dataset.num_classes != model.num_classes:
        raise DataError(
            f"data set {dataset.name} has {dataset.num_classes} classes, the model {model.num_classes}; "
            "check --data and --ckpt"
        )


@contextlib.contextmanager
def _progress(space: Model, attack: Attack, count: int, advance: Advance) -> Iterator[Model]:
    """Pass on ``space``, reporting each call as its share of the attack's expected forward passes."""
    done = 0.0

    class Counted:
        bounds = getattr(space, "bounds", (0.0, 1.0))

        def __call__(self, x: Tensor) -> Tensor:
            nonlocal done
            logits = space(x)
            share = min(len(x) / attack.passes, count - done)
            done += share
            advance(share)
            return logits

    yield Counted()
    advance(count - done)


def _images_path(stored: StoredCell, number: int) -> Any:
    return stored.path / f"block-{number:05d}.images.npz"


def _npz(arrays: dict[str, npt.NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _ignore(_: float) -> None:
    return None
