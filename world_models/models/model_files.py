"""Write a trained model as a directory, and find and rebuild it from there.

<name>.json (the config nodes that rebuild it) · spec.json · report.json · model.safetensors · manifest.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from robopolicy.config.schema import plain
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.untrusted import check_links, check_numbers, pointed, read_json, refusing
from robopolicy.utils.allocation import allocating_at_most, budget
from robopolicy.utils.provenance import version
from robopolicy.utils.storage import load_weights, read_tensors, verify, write_manifest, write_tensors


class ReportedModel(nn.Module):
    """Model with a report on its quality, which is empty until the end of training."""

    def __init__(self) -> None:
        super().__init__()
        self.report: dict[str, Any] = {}


@dataclass(frozen=True)
class ModelFiles:
    """Directory of one kind of model.

    Args:
        kind: what it is, for messages. algo: the algorithm that trains it.
        name: of its JSON file. folder: of the directory within a checkpoint.
        nodes: key of the config nodes in the JSON file. format: version of the files.
    """

    kind: str
    algo: str
    name: str
    folder: str
    nodes: str
    format: int

    def write(self, folder: Path, model: ReportedModel, *, nodes: Any, spec: str) -> None:
        """Fill an empty folder; `spec` is the text of spec.json."""
        if nodes is None:
            raise CheckpointError(f"this {self.kind} does not know the config nodes that rebuild it")
        meta = {"format": self.format, "robopolicy": version(), self.nodes: plain(nodes)}
        texts = {self.name: json.dumps(meta, indent=1), "spec": spec, "report": json.dumps(model.report, indent=1)}
        for name, text in texts.items():
            (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        write_tensors(model.state_dict(), folder / "model.safetensors")
        write_manifest(folder)

    def find(self, path: Path | str, *, which: Literal["latest", "best"] = "latest") -> Path:
        """Return the model directory that a run directory, checkpoint or model directory stands for."""
        path, train = Path(path), f"`train algo={self.algo}`"
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such directory; expected a run directory of {train}")
        if (path / "checkpoints").is_dir():
            pointer = path / "checkpoints" / which
            if not pointer.is_file():
                raise CheckpointError(f"{path}: its training has not written a {which!r} checkpoint yet")
            path = pointed(pointer)
        path = path / self.folder if (path / self.folder).is_dir() else path
        if not (path / f"{self.name}.json").is_file():
            policy = (path / "policy").is_dir() or (path / "policy.json").is_file()
            raise CheckpointError(
                f"{path}: expected a {self.kind} ({self.name}.json), {'a policy lies there' if policy else 'it is not'}"
                f". Give a run directory of {train}."
            )
        return path

    def load[M: ReportedModel](self, folder: Path, read_spec: Callable[[Any], Any], make: Callable[[Any, Any], M]) -> M:
        """Rebuild a trained model by `make` of its spec and nodes, and load its weights strictly.

        Raises:
            CheckpointError: missing, damaged, of another format, not trained to its end, weights that are not finite.
        """
        check_links(folder)
        verify(folder)
        meta, report = read_json(folder / f"{self.name}.json"), read_json(folder / "report.json", finite=False)
        again = f"Train it again, or use the version that wrote it ({meta.get('robopolicy')})."
        if meta.get("format") != self.format:
            raise CheckpointError(f"{folder}: format {meta.get('format')!r}, expected {self.format}. {again}")
        if not report:
            raise CheckpointError(f"{folder}: its training has not ended. Repeat its command: it goes on.")
        spec = read_spec(read_json(folder / "spec.json", finite=False))
        weights, where = folder / "model.safetensors", f"{folder}/{self.name}.json"
        check_numbers(meta.get(self.nodes), f"{where}: {self.nodes}")
        try:
            with allocating_at_most(budget(weights), where), refusing(f"{where}: {self.nodes}"):
                model = make(spec, meta[self.nodes])
        except ConfigError as error:
            raise CheckpointError(f"{where} does not describe a {self.kind} of this robopolicy: {error}") from error
        tensors = read_tensors(weights)
        try:
            load_weights(model, tensors, where=str(folder))
        except CheckpointError as error:
            raise CheckpointError(
                f"{folder}: its weights are not those of a {self.kind} of this robopolicy. {again} {error}"
            ) from error
        model.report = report
        return model.eval()
