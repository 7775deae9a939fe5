"""Atomic file writing (a temporary file beside the target, then a rename), JSON and safetensors files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedframe.errors import DataError, RunError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or none of it; a full disk ends in one sentence and leaves the old file as it was."""
    # The process id keeps two writers of one target from renaming each other's half-written file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(
            f"Could not write {path}: {error.strerror or error}; free some space or write elsewhere."
        ) from error


def write_text(path: Path, content: str) -> None:
    """Write a whole text file or none of it."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: object) -> None:
    """Write a human-readable JSON file."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; a damaged one is a DataError."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"Could not read {path}: {error}.") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, object]) -> None:
    """Write named tensors and metadata (kept as JSON in the safetensors header)."""
    write_bytes(path, tensors_to_bytes(tensors, metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and metadata that `write_tensors` wrote."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(header.get("fedframe", "{}"))
    except FileNotFoundError as error:
        raise DataError(f"There is no {path}.") from error
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DataError(f"{path} is damaged and cannot be read: {error}.") from error


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the metadata that `write_tensors` wrote, without the tensors."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            return dict(json.loads((file.metadata() or {}).get("fedframe", "{}")))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DataError(f"{path} is damaged and cannot be read: {error}.") from error


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, object]) -> bytes:
    """Serialise named tensors and metadata as safetensors, which can hold no code."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # A view of a larger tensor would be refused: two names may share its memory.
    plain = {name: t.clone() if t.untyped_storage().nbytes() != t.nbytes else t for name, t in plain.items()}
    content: bytes = safetensors.torch.save(plain, metadata={"fedframe": json.dumps(metadata)})
    return content
