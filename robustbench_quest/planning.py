"""What is asked becomes cells: requests in, a plan out, each setting with where it came from.

The command line, Python and files of zoos make the same requests. A plan loads no weights: models are
resolved on the meta device, so the ids of a zoo's cells are known on a machine that could not hold one of its
models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .budget import UNITS
from .datasets import open_dataset
from .errors import OptionError
from .evaluation import make_cell
from .models.request import ModelRequest
from .models.resolve import resolve_model
from .protocols import Protocol, load_protocol
from .run import How, Run
from .store import Store
from .threats import kind_with, threat
from .types import CLEAN, Cell, ModelSpec, Note, Threat

if TYPE_CHECKING:
    from .checkpoints.setting import Setting
    from .datasets.base import Dataset


@dataclass(frozen=True)
class DatasetRequest:
    """The data set that is asked for.

    Args:
        name: registered; None is "folder" where there is a root, else what the models were trained on.
        root: where its images are.
        options: settings of its reader.
    """

    name: str | None = None
    root: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ThreatRequest:
    """A threat that is asked for, once for each of its budgets.

    Args:
        name: registered with one of the kinds of threat.
        options: settings; those left out are the protocol's, else the threat's own defaults. ``eps`` may be
            several budgets, as a sequence or as "1/255,2/255".
        source: what gave the options, for explanations.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = "given"


@dataclass(frozen=True)
class EvalRequest:
    """Everything that is asked for. Clean images are evaluated beside every threat.

    Args:
        models: one or more.
        dataset: on what.
        threats: under which threats.
        run: what can change a number.
        how: what changes none.
        device: auto, cpu, cuda, cuda:1 or mps.
    """

    models: Sequence[ModelRequest]
    dataset: DatasetRequest = field(default_factory=DatasetRequest)
    threats: Sequence[ThreatRequest] = ()
    run: Run = field(default_factory=Run)
    how: How = field(default_factory=How)
    device: str = "auto"


@dataclass(frozen=True)
class PlannedModel:
    """A model, without its weights: what it is, and its settings with their sources."""

    request: ModelRequest
    spec: ModelSpec
    settings: Sequence[Setting]
    trained_on: str | None


@dataclass(frozen=True)
class PlannedThreat:
    """A threat, and for each of its settings where the value came from."""

    threat: Threat
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """The cells of a request, and what they were made of.

    Args:
        request: what was asked for.
        models: in the order asked for; each has a name of its own.
        dataset: open; no image was decoded.
        threats: clean images first.
        cells: of each model, one per threat, in their order.
    """

    request: EvalRequest
    models: Sequence[PlannedModel]
    dataset: Dataset
    threats: Sequence[PlannedThreat]
    cells: Sequence[Sequence[Cell]]


def plan(request: EvalRequest, store: Store | None = None, note: Note | None = None) -> Plan:
    """Return the cells of a request; nothing is computed, and no weights are loaded.

    Args:
        request: what is asked for.
        store: where results will be kept; what is known of files' contents is remembered beside it.
        note: told, in a sentence, that many files must be read.

    Raises:
        QuestError: a model, a data set or a threat that cannot be, or that do not fit together.
    """
    protocol = load_protocol(request.run.protocol)
    models = _named([_resolved(model) for model in request.models])
    dataset = _dataset(request.dataset, models)
    if store is not None:
        dataset.remember_contents_in(store.contents, note)
    threats = plan_threats(request.threats, protocol, dataset)
    spec = dataset.spec
    cells = [
        [make_cell(model.spec, dataset, planned.threat, request.run, spec) for planned in threats]
        for model in models
    ]
    return Plan(request, models, dataset, threats, cells)


def plan_threats(
    requests: Sequence[ThreatRequest], protocol: Protocol, dataset: Dataset
) -> list[PlannedThreat]:
    """Return clean images first, then every threat at every budget, each once.

    Settings come from the request, else the protocol, else the threat's defaults; eps from the request, else
    the data set, else the protocol, the latter two for budgets in pixel levels (linf).

    Raises:
        OptionError: no such threat or setting, a bad value, or no budget where there is no default.
    """
    planned = [PlannedThreat(CLEAN, {})]
    for request in requests:
        kind = kind_with(request.name)
        known = kind.settings(request.name)
        preset = protocol.attacks.get(request.name, {})
        options = {**preset, **request.options}
        sources = {key: "default" for key in known}
        sources |= {key: f"protocol {protocol.name}" for key in preset}
        sources |= {key: request.source for key in request.options}
        for budget, source in _budgets(request, options, protocol, dataset) if "eps" in known else [({}, {})]:
            built = threat(request.name, **{**options, **budget})
            planned.append(PlannedThreat(built, {**sources, **source}))
    return list({p.threat: p for p in planned}.values())


def _budgets(
    request: ThreatRequest, options: Mapping[str, Any], protocol: Protocol, dataset: Dataset
) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Yield {"eps": budget} and {"eps": its source}, once for each budget."""
    given = options.get("eps")
    if given is not None:
        several = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
        for budget in several if isinstance(several, list | tuple) else [given]:
            if budget == "":
                raise OptionError(f"`eps` {given!r} has an empty entry; write it as 1/255 or 1/255,2/255")
            yield {"eps": budget}, {"eps": request.source}
        return
    norm = options.get("norm", "linf")
    if norm in UNITS and not UNITS[norm].in_levels:
        raise OptionError(f"`norm` {norm} has no default budget; give one, such as `eps` 0.5")
    if dataset.default_eps is not None:
        yield {"eps": dataset.default_eps}, {"eps": f"default of data set {dataset.name}"}
    else:
        yield {"eps": protocol.eps}, {"eps": f"protocol {protocol.name}"}


def _resolved(request: ModelRequest) -> PlannedModel:
    found = resolve_model(request)
    return PlannedModel(request, found.spec, found.settings, found.trained_on)


def _named(models: Sequence[PlannedModel]) -> list[PlannedModel]:
    """Return the models, those of one name with the shortest end of their paths that tells them apart."""
    names = [model.spec.name for model in models]
    named = []
    for model in models:
        rivals = [m.request.checkpoint for m in models if m.spec.name == model.spec.name]
        path = model.request.checkpoint
        if names.count(model.spec.name) > 1 and path is not None:
            others = [Path(rival) for rival in rivals if rival not in (None, path)]
            name = distinguishing_end(Path(path), others)
            model = dataclasses.replace(model, spec=dataclasses.replace(model.spec, name=name))
        named.append(model)
    return named


def distinguishing_end(path: Path, others: Sequence[Path]) -> str:
    """Return the shortest end of ``path``, without its suffix where that is enough, that no other path has.

    >>> distinguishing_end(Path("zoo/a/vit.pt"), [Path("zoo/b/vit.pt")])
    'a/vit'
    >>> distinguishing_end(Path("zoo/vit.pt"), [Path("zoo/vit.pth")])
    'vit.pt'
    """
    whole, rivals = path.absolute().parts, [other.absolute().parts for other in others]
    if all(other.stem != path.stem or other.parent.absolute() != path.parent.absolute() for other in others):
        whole = (*whole[:-1], path.stem)
        rivals = [(*parts[:-1], Path(parts[-1]).stem) for parts in rivals]
    for length in range(1, len(whole) + 1):
        end = whole[-length:]
        if all(parts[-length:] != end for parts in rivals):
            return "/".join(end)
    return str(path)


def _dataset(request: DatasetRequest, models: Sequence[PlannedModel]) -> Dataset:
    """Return the one named, else the folder at the root, else what the models were trained on."""
    name = request.name
    if name is None and request.root is not None:
        name = "folder"
    if name is None:
        trained = {model.trained_on for model in models}
        name = trained.pop() if len(trained) == 1 else None
        if name is None:
            raise OptionError("the checkpoints name no common data set; give `dataset` and `root`")
    return open_dataset(name, request.root, **request.options)
