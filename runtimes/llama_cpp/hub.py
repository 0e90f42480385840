"""Models from a hub, through `huggingface_hub` and its cache.

The hub's own download keeps nothing of a file when the process ends in the middle of it and does not compare the
checksum. Files of gigabytes over a home connection need both, so here the bytes go to a partial file in the hub's
cache, which any later call continues, and the whole is held against the SHA-256 the hub names before it gets its place
there. Everything else (lists, addresses, credentials, where a file lies) is the hub's package's.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import logging
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlfp_edge.errors import DlfpError, FetchError, MissingExtra, UsageError
from dlfp_edge.model_reference import HubModel
from dlfp_edge.runtime import Tell

from .choice import choose

_LIST_TIMEOUT_S = 10.0
_HASHED_AT_ONCE = 1 << 20
_NOT_IN_RANGE = 416
_AGAIN = "try again, a download goes on where it stopped"


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    """A file as the hub lists it. `key` is its name in the cache; `sha256` is None for files too small for LFS."""

    name: str
    size: int
    key: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A GGUF file in the hub's cache."""

    reference: str
    path: Path
    size: int


def fetch(model: HubModel, tell: Tell | None = None) -> Path:
    """The file of a model, the first where there are several. All are fetched unless they are here already.

    Where the hub cannot be asked the copy in the cache is used. Raises UsageError, FetchError, MissingExtra.
    """
    hub = _package()
    with _quiet(), _in_one_line(hub, model):
        try:
            info = hub.HfApi().model_info(
                model.repo, revision=model.revision, files_metadata=True, timeout=_LIST_TIMEOUT_S
            )
        except Exception as error:
            if (copy := _cached_copy(hub, model, error)) is None:
                raise
            return copy
        remote = {file.name: file for file in map(_remote_file, info.siblings or ())}
        wanted = choose(remote, model.file, f"hf:{model.repo}")
        paths = [_fetch_file(hub, model, info.sha, remote[name], tell) for name in wanted]
        _point(hub, model, info.sha)
        return paths[0]


def find_cached(model: HubModel) -> Path:
    """The file of a model that has been fetched before. Raises UsageError where there is none."""
    return _find_cached(_package(), model)


def cached_files() -> list[CachedFile]:
    """The GGUF files in the hub's cache. Raises MissingExtra."""
    return [
        CachedFile(f"hf:{repo}:{name}", path, path.stat().st_size)
        for repo, _, files in _snapshots(_package())
        for name, path in sorted(files.items())
    ]


def _package() -> Any:
    try:
        importlib.import_module("huggingface_hub.file_download")
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise MissingExtra("models on a hub need huggingface_hub: run  pip install 'dlfp-edge[hub]'") from error


def _remote_file(sibling: Any) -> _RemoteFile:
    sha256 = sibling.lfs.sha256 if sibling.lfs else None
    return _RemoteFile(sibling.rfilename, int(sibling.size or 0), str(sha256 or sibling.blob_id), sha256)


def _fetch_file(hub: Any, model: HubModel, commit: str, file: _RemoteFile, tell: Tell | None) -> Path:
    """One file's place in the cache, once it is there in full."""
    known = hub.try_to_load_from_cache(model.repo, file.name, revision=commit)
    if isinstance(known, str):
        return Path(known)
    cache = Path(hub.constants.HF_HUB_CACHE)
    folder = cache / hub.file_download.repo_folder_name(repo_id=model.repo, repo_type="model")
    blob = folder / "blobs" / file.key
    if not blob.exists():
        blob.parent.mkdir(parents=True, exist_ok=True)
        with _locked(cache / ".locks" / folder.name / f"{file.key}.lock"):
            if not blob.exists():
                _download(hub, model, commit, file, blob, tell)
    return Path(hub.hf_hub_download(model.repo, file.name, revision=commit))


def _download(hub: Any, model: HubModel, commit: str, file: _RemoteFile, blob: Path, tell: Tell | None) -> None:
    partial = blob.with_name(f"{blob.name}.incomplete")
    have = partial.stat().st_size if partial.exists() else 0
    if have > file.size:
        partial.unlink()
        have = 0
    free = shutil.disk_usage(blob.parent).free
    if file.size - have > free:
        raise FetchError(
            f"{file.name} needs {_mb(file.size - have)} more and {blob.parent} has {_mb(free)} free: "
            "free space, or set HF_HOME to another disk"
        )
    address = hub.hf_hub_url(model.repo, file.name, revision=commit)
    with partial.open("ab") as target:
        _receive(hub, address, target, have, file, tell)
    if file.sha256 is not None and _sha256(partial) != file.sha256:
        partial.unlink()
        raise FetchError(f"{file.name} of hf:{model.repo} came damaged (its SHA-256 differs): fetch it again")
    partial.replace(blob)


def _receive(hub: Any, address: str, target: Any, have: int, file: _RemoteFile, tell: Tell | None) -> None:
    """Append what is missing. A connection that breaks is taken up again as long as it brings something."""
    headers = hub.utils.build_hf_headers()
    while True:
        try:
            hub.file_download.http_get(
                address,
                target,
                resume_size=have,
                headers=headers,
                expected_size=file.size,
                tqdm_class=_bar(file.name, tell),
            )
            return
        except Exception as error:
            target.flush()
            if isinstance(error, OSError) and error.errno is None and _status(error) in (None, _NOT_IN_RANGE):
                target.truncate(0)  # what came is not of the size the hub has named: nothing to go on from
            if isinstance(error, OSError) or target.tell() <= have:
                raise
            have = target.tell()


def _bar(name: str, tell: Tell | None) -> Any:
    """What `http_get` takes for a progress bar: it passes the bytes on."""

    class Bar:
        def __init__(self, *, total: int | None = None, initial: int = 0, **_: object) -> None:
            self._here, self._total = initial, total or 0
            self.update(0)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            """The next file has a bar of its own."""

        def update(self, count: float) -> None:
            self._here += int(count)
            if tell is not None:
                tell(name, self._here, self._total)

    return Bar


def _point(hub: Any, model: HubModel, commit: str) -> None:
    """Note which commit a branch stands for, so that the branch is found without the hub."""
    with contextlib.suppress(OSError):
        folder = hub.file_download.repo_folder_name(repo_id=model.repo, repo_type="model")
        reference = Path(hub.constants.HF_HUB_CACHE) / folder / "refs" / (model.revision or "main")
        if reference.name != commit and (not reference.exists() or reference.read_text() != commit):
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_text(commit)


def _cached_copy(hub: Any, model: HubModel, error: Exception) -> Path | None:
    """The copy in the cache, for when the hub has not said what it has; None where there is none."""
    try:
        path = _find_cached(hub, model)
    except UsageError:
        return None
    if not isinstance(error, hub.errors.OfflineModeIsEnabled):
        print(f"{_explained(hub, model, error)}; using the copy in the cache", file=sys.stderr, flush=True)
    return path


def _find_cached(hub: Any, model: HubModel) -> Path:
    wanted = model.revision or "main"
    for repo, names, files in _snapshots(hub):
        if repo == model.repo and wanted in names and files:
            return files[choose(files, model.file, f"the cached copy of hf:{model.repo}")[0]]
    raise UsageError(f"{model} is not in the cache ({hub.constants.HF_HUB_CACHE})")


def _snapshots(hub: Any) -> Iterator[tuple[str, frozenset[str], dict[str, Path]]]:
    """What the cache holds of each commit: the repository, the commit's names, and its GGUF files by name."""
    try:
        repos = hub.scan_cache_dir(hub.constants.HF_HUB_CACHE).repos
    except hub.errors.CacheNotFound:
        return
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        for snapshot in repo.revisions if repo.repo_type == "model" else ():
            files = {
                file.file_path.relative_to(snapshot.snapshot_path).as_posix(): Path(file.file_path)
                for file in snapshot.files
                if file.file_name.lower().endswith(".gguf")
            }
            yield repo.repo_id, frozenset({snapshot.commit_hash, *snapshot.refs}), files


@contextlib.contextmanager
def _in_one_line(hub: Any, model: HubModel) -> Iterator[None]:
    """Whatever goes wrong with the hub is said in one line."""
    try:
        yield
    except DlfpError:
        raise
    except Exception as error:
        raise _explained(hub, model, error) from error


def _explained(hub: Any, model: HubModel, error: Exception) -> DlfpError:
    """The line that says what went wrong and what helps."""
    errors, endpoint, cache = hub.errors, hub.constants.ENDPOINT, hub.constants.HF_HUB_CACHE
    repo, status = f"hf:{model.repo}", _status(error)
    log_in = "log in (hf auth login, or HF_TOKEN)"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return FetchError(f"{model} is not in the cache ({cache}) and HF_HUB_OFFLINE is set: unset it to fetch")
    if isinstance(error, errors.GatedRepoError):
        return UsageError(f"{repo} is gated: accept its terms at {endpoint}/{model.repo}, then {log_in}")
    if isinstance(error, errors.RevisionNotFoundError):
        return UsageError(f"{repo} has no revision '{model.revision}': give a branch, tag or commit it has")
    if isinstance(error, errors.RepositoryNotFoundError):
        return UsageError(f"{repo} is not at {endpoint}, or is private: check the name, or {log_in}")
    if isinstance(error, errors.HFValidationError):
        return UsageError(f"{model}: {_first_line(error)}")
    if status in (401, 403):
        return UsageError(f"{endpoint} refuses {model} (status {status}): {log_in} with a token that may read it")
    if status is not None:
        return FetchError(f"{endpoint} answers for {model} with status {status}: {_AGAIN}")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return FetchError(f"the disk of {cache} is full: free space or set HF_HOME to another; {_AGAIN}")
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return FetchError(f"{error.filename or cache}: {error.strerror}; set HF_HOME to a folder of yours")
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return FetchError(f"{model}: {_first_line(error)}: {_AGAIN}")
    return FetchError(
        f"{endpoint} cannot be reached for {model} ({type(error).__name__}: {_first_line(error)}): {_AGAIN}"
    )


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process fetches a file at a time; the others wait and find it there."""
    lock = importlib.import_module("filelock").FileLock(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock:
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the package's own warnings, such as those about a retry, out of the way."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASHED_AT_ONCE):
            digest.update(block)
    return digest.hexdigest()


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
