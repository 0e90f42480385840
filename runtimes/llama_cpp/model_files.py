"""The files a model consists of: one, or parts that `gguf-split` has made, read and checked as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dlfp_edge.errors import UsageError

from .gguf_file import GgufHeader, read_header
from .split_name import split_name

_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
_IDENTITY = ("general.architecture", "general.name", "general.file_type")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files in order, and what their headers say together. llama.cpp is given the first."""

    paths: tuple[Path, ...]
    header: GgufHeader

    @property
    def first(self) -> Path:
        """The file to load."""
        return self.paths[0]


def read_model_files(path: Path) -> ModelFiles:
    """The model that `path` is, or is a part of, with every part checked.

    Raises UsageError that names the file at fault: missing, damaged, cut short, or of another model.
    """
    split = split_name(path.name)
    own = read_header(path)
    count = own.whole(_COUNT) or 1
    if split is None and count > 1:
        number = (own.whole(_NUMBER) or 0) + 1
        raise UsageError(
            f"{path}: is part {number} of {count} of a model; name it like NAME-{number:05d}-of-{count:05d}.gguf, "
            "with the other parts beside it"
        )
    if split is None or _COUNT not in own.metadata:
        own.check_layers(path)
        return ModelFiles((path,), own)
    if split.count != count:
        raise UsageError(f"{path}: its name says {split.count} parts, its header {count}; fetch the model again")
    paths = tuple(path.with_name(name) for name in split.parts())
    for part in paths:
        if not part.exists():
            raise UsageError(f"{part}: is missing, one of the {count} parts of this model; put it beside {path.name}")
    headers = [own if part == path else read_header(part) for part in paths]
    _check_belonging(paths, headers)
    whole = GgufHeader(
        headers[0].metadata,
        sum(header.size for header in headers),
        tuple(tensor for header in headers for tensor in header.tensors),
    )
    whole.check_layers(path)
    return ModelFiles(paths, whole)


def _check_belonging(paths: tuple[Path, ...], headers: list[GgufHeader]) -> None:
    """Parts are taken for those of one model where their numbers, their counts and what they hold agree."""
    first = headers[0].metadata
    names: set[str] = set()
    for number, (path, header) in enumerate(zip(paths, headers, strict=True)):
        stranger = any(header.metadata.get(key) != first.get(key) for key in (_COUNT, _TENSORS))
        stranger |= any(header.metadata.get(key, first.get(key)) != first.get(key) for key in _IDENTITY)
        if stranger or header.metadata.get(_NUMBER) != number:
            raise UsageError(
                f"{path}: is not part {number + 1} of the model {paths[0].name} belongs to; fetch it again"
            )
        names |= {tensor.name for tensor in header.tensors}
    if first.get(_TENSORS) not in (None, len(names)):
        raise UsageError(
            f"{paths[0]}: its parts hold {len(names)} tensors of {first[_TENSORS]}: "
            "they are of different models; fetch all of them again"
        )
