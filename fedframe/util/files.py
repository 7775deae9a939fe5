"""Atomic file writing (a temporary file beside the target, then a rename), JSON and safetensors files."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import safetensors
import safetensors.torch
from torch import Tensor

from fedframe.errors import DamageError, RunError
from fedframe.util.checksums import BLANK, IN_JSON, IN_TENSORS, NAME, intact, sealed
from fedframe.util.plain_files import explained, read_bytes


def write_bytes(path: Path, *content: bytes | memoryview) -> None:
    """Write a whole file, given in pieces, or none of it; a full disk is one sentence and leaves the old file."""
    # The process id keeps two writers of one target from renaming each other's half-written file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.writelines(content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(
            f"Could not write {path}: {error.strerror or error}; free some space or write elsewhere."
        ) from error


def write_text(path: Path, content: str) -> None:
    """Write a whole text file or none of it."""
    # A lone surrogate stands for a byte that was no text where it came from: what can be kept of it is a question mark.
    write_bytes(path, content.encode(errors="replace"))


def write_json(path: Path, content: object) -> None:
    """Write a human-readable JSON file; an object gets a checksum as its first entry."""
    if isinstance(content, dict):
        write_bytes(path, *sealed(json_bytes({NAME: BLANK.decode(), **content}), IN_JSON))
    else:
        write_bytes(path, json_bytes(content))


def json_bytes(content: object) -> bytes:
    """Readable JSON in UTF-8; where a text holds a lone surrogate, which UTF-8 cannot, in ASCII."""
    try:
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(content, indent=2) + "\n").encode()


def write_sealed(path: Path, text: str) -> None:
    """Write JSON, the text of an object that is not empty, with a checksum as its first entry."""
    head, brace, rest = text.partition("{")
    sealing = f'{head}{brace}{IN_JSON.decode()}{BLANK.decode()}", {rest.lstrip()}'
    write_bytes(path, *sealed(sealing.encode(errors="replace"), IN_JSON))


@overload
def read_json(path: Path) -> dict[str, Any]: ...


@overload
def read_json(path: Path, kind: type[list[Any]]) -> list[Any]: ...


def read_json(path: Path, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> dict[str, Any] | list[Any]:
    """Read a JSON file that holds an object, or a list if `kind` says so; a damaged one is a DamageError."""
    content = read_bytes(path)
    if intact(content, IN_JSON) is False:
        raise DamageError(f"{path} is damaged: its checksum does not fit its content.", path)
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is damaged and cannot be read: {explained(error)}.", path) from error
    if not isinstance(found, kind):
        raise DamageError(f"{path} is damaged: it holds no {'list' if kind is list else 'object'} of JSON.", path)
    if isinstance(found, dict):
        found.pop(NAME, None)
    return found


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, object]) -> None:
    """Write named tensors and metadata (kept as JSON in the safetensors header), with a checksum of all of it."""
    content = tensors_to_bytes(tensors, {NAME: BLANK.decode(), **metadata})
    write_bytes(path, *sealed(content, IN_TENSORS))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and metadata that `write_tensors` wrote."""
    content = read_bytes(path)
    if intact(content, IN_TENSORS) is False:
        raise DamageError(f"{path} is damaged: its checksum does not fit its content.", path)
    try:
        tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load(content).items()}
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
        notes = json.loads(header.get("fedframe", "{}"))
        if not isinstance(notes, dict):
            raise ValueError("its notes are no object of JSON")
    except (OSError, ValueError, RecursionError, RuntimeError, KeyError, safetensors.SafetensorError) as error:
        raise DamageError(f"{path} is damaged and cannot be read: {explained(error)}.", path) from error
    notes.pop(NAME, None)
    return tensors, notes


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the metadata that `write_tensors` wrote, without the tensors."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            return dict(json.loads((file.metadata() or {}).get("fedframe", "{}")))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DamageError(f"{path} is damaged and cannot be read: {error}.", path) from error


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, object]) -> bytes:
    """Serialise named tensors and metadata as safetensors, which can hold no code."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # A view of a larger tensor would be refused: two names may share its memory.
    plain = {name: t.clone() if t.untyped_storage().nbytes() != t.nbytes else t for name, t in plain.items()}
    content: bytes = safetensors.torch.save(plain, metadata={"fedframe": json.dumps(metadata)})
    return content
