"""Reads a data set with Hugging Face's `datasets`; what cannot be read names its field."""

from __future__ import annotations

import functools
import glob
import os
from pathlib import Path
from typing import Any

from colocate.config import DataConfig
from colocate.problems import ConfigurationError, Problem

_BUILDERS = {
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".ndjson": ("json", {}),
    ".csv": ("csv", {}),
    ".tsv": ("csv", {"sep": "\t"}),
    ".parquet": ("parquet", {}),
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_ON_DISK = ("state.json", "dataset_dict.json")
_LOOKS_LIKE_A_PATH = ("/", "./", "../", "~")


def load_split(config: DataConfig, split: str) -> Any:
    """One split: a ``datasets.Dataset``, or an ``IterableDataset`` with ``data.streaming``.

    The last few are kept, so that what has been checked before a run is not read again for it.

    Raises:
        ConfigurationError: it is not there, or cannot be read.
    """
    assert config.path is not None
    return _load(
        config.path, config.subset, config.revision, split, config.streaming, _stamp(config.path)
    )


def _stamp(path: str) -> tuple[tuple[str, int, int], ...]:
    """Changes with the files that a path names."""
    files = [path, *_matches(path)]
    if Path(path).expanduser().is_dir():
        files += [str(each) for each in sorted(Path(path).expanduser().rglob("*"))]
    states = [(name, Path(name).expanduser()) for name in files]
    return tuple((n, p.stat().st_size, p.stat().st_mtime_ns) for n, p in states if p.exists())


@functools.lru_cache(maxsize=4)
def _load(
    path: str, subset: str | None, revision: str | None, split: str, streaming: bool, stamp: Any
) -> Any:
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    local = Path(path).expanduser()
    options: dict[str, Any] = {"split": split, "streaming": streaming}
    try:
        if local.is_dir() and any((local / name).is_file() for name in _ON_DISK):
            return _from_disk(local, split, streaming)
        if local.is_dir():
            return datasets.load_dataset(str(local), subset, **options)
        if files := _files(path):
            builder, settings = _BUILDERS[_suffix(files[0])]
            return datasets.load_dataset(builder, data_files=files, **settings, **options)
        return datasets.load_dataset(path, subset, revision=revision, **options)
    except ConfigurationError:
        raise
    except Exception as error:
        raise _refused(path, split, error) from error


def _from_disk(folder: Path, split: str, streaming: bool) -> Any:
    import datasets

    stored = datasets.load_from_disk(str(folder))
    if isinstance(stored, datasets.DatasetDict):
        if split not in stored:
            raise _unknown_split(split, ", ".join(stored))
        stored = stored[split]
    elif split != "train":
        raise _unknown_split(split, "train")
    return stored.to_iterable_dataset() if streaming else stored


def _files(path: str) -> list[str]:
    """The files that a path names, all of one kind; none where it is a name on the hub.

    Raises:
        ConfigurationError: it names files that are not there, not readable, empty, or of a kind
            that is not known.
    """
    files = _matches(path)
    if not files:
        if not path.strip() or path.startswith(_LOOKS_LIKE_A_PATH) or _suffix(path) in _BUILDERS:
            raise _wrong_path(
                path,
                "must be a file, a glob of files or a folder that exists, or the name of a data "
                "set on the hub",
                "check the path; relative ones start from the folder of the command",
            )
        return []
    kinds = {_suffix(each) for each in files}
    if unknown := sorted(kinds - _BUILDERS.keys()):
        raise _wrong_path(
            path,
            f"must be {', '.join(_BUILDERS)} files, compressed or not; here is `{unknown[0]}`",
            "convert the file, or name another",
        )
    if len({_BUILDERS[kind][0] for kind in kinds}) > 1:
        raise _wrong_path(
            path,
            f"must be files of one kind; here are {', '.join(sorted(kinds))}",
            "name one kind, as data.path='data/*.jsonl'",
        )
    for each in files:
        if not os.access(each, os.R_OK):
            raise _wrong_path(path, f"must be readable; {each} is not", "change its permissions")
        if Path(each).stat().st_size == 0:
            raise _wrong_path(path, f"must hold rows; {each} is empty", "write it again")
    return files


def _matches(path: str) -> list[str]:
    pattern = str(Path(path).expanduser())
    if os.path.isfile(pattern):
        return [pattern]
    return sorted(each for each in glob.glob(pattern) if os.path.isfile(each))


def _suffix(path: str) -> str:
    """``.jsonl`` of ``rows.jsonl.gz``."""
    name = Path(path)
    return name.with_suffix("").suffix if name.suffix in _COMPRESSED else name.suffix


def _wrong_path(path: str, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError([Problem(field="data.path", value=path, rule=rule, remedy=remedy)])


def _unknown_split(split: str, known: str) -> ConfigurationError:
    return ConfigurationError(
        [
            Problem(
                field="data.split",
                value=split,
                rule=f"must be a split that the data set has; its splits: {known}",
                remedy="set data.split (or data.eval_split) to one of them",
            )
        ]
    )


def _refused(path: str, split: str, error: Exception) -> ConfigurationError:
    """Says what `datasets` raised; the deepest cause tells most."""
    text = str(error)
    if "split" in text.lower() and ("unknown" in text.lower() or "bad split" in text.lower()):
        known = text[text.find("[") + 1 : text.rfind("]")].replace("'", "").replace('"', "")
        return _unknown_split(split, known or text)
    if "corresponds to no data" in text:
        return _wrong_path(path, "must hold rows; it has none", "use a data set with rows")
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    reason = " ".join(f"{type(cause).__name__}: {cause}".split())
    return _wrong_path(
        path,
        f"must be a data set that can be read; {reason[:300]}",
        "check the file or the name; a name on the hub needs the network, or its cache",
    )
