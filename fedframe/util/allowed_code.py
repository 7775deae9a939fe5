"""Which code may be run on this machine: what the person here has named or allowed, each by a digest of its files.

A kit or a run folder may name any file or module as its net or method, and whatever is imported is run. So whoever
reads such a name asks here (`check_named`) before it is imported, and nothing is unless someone here has typed its
name (`fedframe run my_file.py:MyPart`, `fedframe.run(...)`) or has allowed it (`--allow-code my_file.py`,
`fedframe.allow_code(...)`). Permissions are kept in the user's own
configuration folder, never in a run's: your own runs go on without a question. They hold for the files as they were;
an edited file has to be named or allowed again, or used with `--changed-code`, where it was allowed before its edit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from fedframe.errors import SettingError
from fedframe.util.code_files import code_files, import_root

ZOOS = (
    "timm",
    "torchvision",
    "transformers",
)  # installed packages whose nets are named by their registries: no code is named
PASSED_ON = "FEDFRAME_ALLOWED_CODE"  # digests, for the processes that this one starts
_places: set[str] = set()  # what was allowed in this process, should the user's folder not be writable


def code_place(text: str) -> str | None:
    """The file or module in `my_file.py:MyNet` or `package.module:MyNet`; None for a text that names no code."""
    place, colon, name = text.strip().rpartition(":")
    if not colon or not name.isidentifier() or text.strip().partition(":")[0] in ZOOS:
        return None
    if place.endswith(".py"):
        return str(Path(place).expanduser().absolute())
    return place if all(piece.isidentifier() for piece in place.split(".")) else None


def places_in(*texts: object) -> list[str]:
    """The files and modules that a method's or a net's name has in it; a method joins several with +."""
    pieces = [piece for text in texts if isinstance(text, str) for piece in text.split("+")]
    return [place for piece in pieces if (place := code_place(piece)) is not None]


def digest_of(place: str) -> str:
    """A digest of the files of some code, by their places within its project, so that a copy elsewhere is the same."""
    digest = hashlib.blake2b(digest_size=20)
    files = code_files(place)
    if place.endswith(".py"):
        root = import_root(Path(place).expanduser().resolve())
    else:
        digest.update(place.encode())
        root = Path(os.path.commonpath(files)).parent if files else Path()
    for file in files:
        name = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
        content = file.read_bytes()
        digest.update(f"{name.as_posix()}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def list_folder() -> Path:
    """Where permissions are kept: a file per digest, which names the place."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "fedframe" / "allowed-code"


# -- giving and asking -------------------------------------------------------------------------------------------------
def allow_code(place: str | Path) -> None:
    """Allow the code of a file or a module, as it is now, on this machine."""
    text = str(place)
    if text.endswith(".py"):
        path = Path(text).expanduser().absolute()
        if not path.is_file():
            raise SettingError(f"allow_code: there is no file {path}; name a file such as my_file.py, or a module.")
        text = str(path)
    elif not all(piece.isidentifier() for piece in text.split(".")):
        raise SettingError(f"allow_code = {text!r} is neither a file such as my_file.py nor a module such as my_nets.")
    grant(text)


def allow_typed(*texts: object) -> None:
    """Allow the code that the person here has named as a method or a net."""
    for place in places_in(*texts):
        if not place.endswith(".py") or Path(place).is_file():
            grant(place)


def allow_edited(*texts: object) -> None:
    """Allow code as it is now that was allowed here before its edit: what `--changed-code` says."""
    for place in places_in(*texts):
        if place in known_places():
            grant(place)


def grant(place: str) -> None:
    """Keep a permission: for this process, for those that it starts, and for later ones."""
    digest = digest_of(place)
    if is_granted(digest) and place in _places:
        return
    _places.add(place)
    os.environ[PASSED_ON] = ",".join(sorted({digest, *passed_on()}))
    with contextlib.suppress(OSError):  # a home that cannot be written to: the permission ends with the process
        folder = list_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = folder / f".{digest}.{os.getpid()}.part"
        draft.write_text(f"{place}\n", "utf-8", "surrogateescape")
        draft.replace(folder / digest)


def passed_on() -> set[str]:
    """What this process, or one that has started it, was allowed."""
    return {each for each in os.environ.get(PASSED_ON, "").split(",") if each}


def is_granted(digest: str) -> bool:
    """Whether someone has allowed this."""
    return digest in passed_on() or (list_folder() / digest).is_file()


def known_places() -> set[str]:
    """The files and modules that were allowed once, in whatever state."""
    found = set(_places)
    with contextlib.suppress(OSError):
        for path in list_folder().iterdir():
            found.add(path.read_text("utf-8", "surrogateescape").strip())
    return found


def check_allowed(place: str, what: str) -> None:
    """Refuse code that nobody here has named or allowed; a file that is not there is left to whoever loads it."""
    if place.endswith(".py"):
        place = str(Path(place).expanduser().absolute())
        if not Path(place).is_file():
            return
    if is_granted(digest_of(place)):
        return
    how = f"--allow-code {place} (in Python: fedframe.allow_code({place!r}))"
    if place in known_places():
        raise SettingError(f"{what} has changed since {place} was allowed here; allow it as it is now: {how}.")
    raise SettingError(
        f"{what} is code that nobody here has allowed, and nothing of it was loaded; look at {place}, and if you trust "
        f"it, add {how}."
    )


def check_named(*texts: object) -> None:
    """Refuse a method or a net from elsewhere that names code which nobody here has allowed."""
    for text in texts:
        for place in places_in(text):
            check_allowed(place, repr(text))
