"""An attack on one block: stage by stage on the images that are still robust, each judged as it comes.

An attack proposes, this module judges: it scores every proposed image once, checks the eps ball and the range
of the attack's space, and keeps of every image the worst that was found. The clean image lies in every ball:
where the model is wrong on it and right on what an attack returned, the clean image is the result, so robust
accuracy never exceeds clean accuracy.

Clean images are answered again here, although a clean cell may hold their records: the loss before the attack
needs logits in full precision, which records do not hold, and the bytes of an attack's records must not
depend on what else is in a store, or on the batch size with which it was computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .attacks.norms import NORMS, ROUNDING
from .block import Block, Columns, Images, block_records, in_range, joined, kept_images
from .model_calls import ModelCalls
from .records import columns_of
from .rng import ImageRng
from .threats import build_attack

if TYPE_CHECKING:
    from .attacks.base import Attack
    from .models.space import Space

Rows = npt.NDArray[np.int64]

# Columns that add up over the stages, whether or not a stage broke the image.
COUNTS = ("queries", "grad_zero", "grad_nonfinite")


def attack(block: Block) -> tuple[Columns, Images]:
    """Attack a block; a ``threats.Compute``."""
    whole = build_attack(block.job.cell.threat)
    stages = whole.stages()
    judge = _Judge(block, whole)
    columns, images = judge.unbroken(), kept_images(block)
    if images:
        images["perturbed"] = images["clean"].copy()
    # What a stage found is kept as records, without pixels: with pixels wanted, all stages run again.
    files = block.stages if len(stages) > 1 and not images else None
    start = 0
    for number in reversed(range(len(stages) if files else 0)):
        found = files.read(number, stages[number][0]) if files else None
        if found is not None:
            kept = columns_of(found)
            columns, start = {name: kept[name] for name in columns}, number + 1
            break
    with _Progress(block, whole.passes) as progress:
        for number, (name, one) in list(enumerate(stages))[start:]:
            rows = judge.todo(columns, first=number == 0)
            if len(rows):
                calls = ModelCalls(judge.space, block.job.how.batch_size, judge.objective, progress.report)
                judge.run(name, one, rows, calls).into(columns, images)
            if files is not None and number + 1 < len(stages):
                files.write(number, name, block_records(block, columns))
    return columns, images


@dataclass(frozen=True)
class _Found:
    """What one attack found for some images of a block.

    Args:
        rows: which images.
        columns: their columns, but for ``broken_by``.
        worse: which of them take the place of what was known of the image before.
        fails: on which of them the model is wrong.
        pixels: what the attack returned, in pixels.
        name: of the attack.
    """

    rows: Rows
    columns: Columns
    worse: npt.NDArray[np.bool_]
    fails: npt.NDArray[np.bool_]
    pixels: Tensor
    name: str

    def into(self, columns: Columns, images: Images) -> None:
        """Write into the block's columns, and into the images that are kept of it."""
        taken = self.rows[self.worse]
        for name, values in self.columns.items():
            if name in COUNTS:
                columns[name][self.rows] += values
            else:
                columns[name][taken] = values[self.worse]
        broken = self.rows[self.fails]
        columns["broken_by"][broken[columns["broken_by"][broken] == ""]] = self.name
        if images:
            kept = np.flatnonzero(self.worse & (self.rows < len(images["perturbed"])))
            images["perturbed"][self.rows[kept]] = self.pixels[torch.from_numpy(kept)].numpy(force=True)


class _Judge:
    """A block's clean images and what the model answers to them; and what attacks make of them."""

    def __init__(self, block: Block, whole: Attack) -> None:
        job = block.job
        if job.cell.side is None:
            raise ValueError(
                "the cell of an attack must say what the attack sees of the model; use make_cell"
            )
        self.block = block
        self.whole = whole
        self.task = job.task
        self.objective = job.task.objective()
        self.space: Space = job.model.space(job.cell.side)
        self.x = torch.cat([block.pixels(part) for part in block.batches()])
        self.z = self.space.encode(self.x)
        self.targets = block.targets.to(self.x.device)
        self.outputs = torch.cat([job.model(self.x[part]) for part in block.batches()])
        self.scored = job.task.score(self.outputs, self.targets)
        self.aimed = self.objective.answer(self.outputs) if whole.labels == "predicted" else self.targets

    def unbroken(self) -> Columns:
        """Return the block's columns before the first attack."""
        count, right = len(self.x), self.scored[self.task.success]
        return {
            **{name: values.copy() for name, values in self.scored.items()},
            **self.task.compare(self.scored, self.outputs, self.outputs, self.aimed),
            **{name: np.zeros(count) for name in NORMS},
            **{name: np.zeros(count, dtype=np.int64) for name in (*COUNTS, "restart")},
            "broken_by": np.where(right, "", "clean").astype(object),
            "violation": np.zeros(count, dtype=bool),
        }

    def todo(self, columns: Columns, *, first: bool) -> Rows:
        """Return the images to attack: those still robust, or, for an attack by itself, all."""
        if first and not self.whole.only_robust:
            return np.arange(len(self.x))
        return np.flatnonzero(columns["broken_by"] == "")

    def run(self, name: str, one: Attack, rows: Rows, calls: ModelCalls) -> _Found:
        """Attack the images ``rows``, and judge what comes back."""
        job = self.block.job
        stream = f"{job.cell.threat.name}/{name}" if name else job.cell.threat.name
        rng = ImageRng(job.cell.seed or 0, stream, [self.block.image_ids[row] for row in rows.tolist()])
        index = torch.from_numpy(rows).to(self.x.device)
        x, z, targets = self.x[index], self.z[index], self.targets[index]
        proposal = one.run(calls, z, targets, rng)
        parts = [slice(start, start + calls.batch_size) for start in range(0, len(z), calls.batch_size)]
        outputs = torch.cat([self.space(proposal.images[part]) for part in parts])
        scored = self.task.score(outputs, targets)
        pixels = self.space.decode(proposal.images)
        before = {key: values[rows] for key, values in self.scored.items()}
        fails = ~scored[self.task.success]
        columns = {
            **scored,
            **self.task.compare(before, self.outputs[index], outputs, self.aimed[index]),
            **joined([_lengths(pixels[part], x[part]) for part in parts]),
            **{key: getattr(proposal, key) for key in (*COUNTS, "restart")},
            "violation": np.concatenate(
                [self._strayed(one, proposal.images[part], z[part]) for part in parts]
            ),
        }
        # Where the model withstands, an attack by itself shows what it returned, unless the clean image was
        # wrong already; after several attacks the clean image stands.
        shown = before[self.task.success] & (not self.whole.only_robust)
        return _Found(rows, columns, fails | shown, fails, pixels, name or job.cell.threat.name)

    def _strayed(self, one: Attack, found: Tensor, clean: Tensor) -> npt.NDArray[np.bool_]:
        """Return which images left the attack's budget, or the range of its space."""
        bounds, budget = self.space.bounds, one.budget
        inside = np.ones(len(found), dtype=bool)
        if bounds is not None:
            inside &= in_range(found, bounds).numpy(force=True)
        if budget is not None:
            norm, eps = NORMS[budget.norm], float(budget.eps)
            allowed = eps * (1 + ROUNDING) + norm.tolerance(clean[0].numel()) if eps else 0.0
            inside &= _lengths(found, clean)[budget.norm] <= allowed
        return ~inside


def _lengths(images: Tensor, clean: Tensor) -> Columns:
    """Return how far images are from the clean ones in every norm, in float64 on the host."""
    wide, clean_wide = (torch.from_numpy(part.numpy(force=True)).double() for part in (images, clean))
    return {name: norm.measure(wide - clean_wide).numpy() for name, norm in NORMS.items()}


class _Progress:
    """Reports model calls as shares of the images of a block, which in the end are all reported."""

    def __init__(self, block: Block, passes: int) -> None:
        self._advance = block.job.advance
        self._count = len(block.positions)
        self._passes = passes
        self._done = 0.0

    def report(self, images: int) -> None:
        """Take note of a model call."""
        share = min(images / self._passes, self._count - self._done)
        self._done += share
        self._advance(share)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._advance(self._count - self._done)
