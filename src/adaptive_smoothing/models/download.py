"""Files of the zoo that this machine lacks: fetched once into a cache, and checked against the index of the package.

The zoo is published nowhere yet. A copy of it is named by `$ADAPTIVE_SMOOTHING_ZOO_URL`: the address of a folder with
the files of `zoo/` (https, http or file), or a repository of the Hugging Face hub (`hf://org/name`).
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlsplit

from adaptive_smoothing.models.weight_files import file_sha256
from adaptive_smoothing.models.zoo_index import ZooEntry, ZooFile
from adaptive_smoothing.results import atomic
from adaptive_smoothing.version import CACHE_VARIABLE, cache_folder

# Where the zoo is published. The variable replaces it.
ZOO_URL: str | None = None
URL_VARIABLE = "ADAPTIVE_SMOOTHING_ZOO_URL"
SCHEMES = ("https", "http", "file", "hf")
# Seconds without an answer, and seconds to wait before each further attempt.
TIMEOUT, PAUSES = 30.0, (1.0, 2.0, 4.0)
CHUNK = 1 << 16
# Errors that may disappear with the next attempt.
PASSING = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)

Advance = Callable[[int], None]


class DownloadError(OSError):
    """A file of the zoo cannot be fetched."""


class WrongContentError(DownloadError):
    """A file was fetched completely, and is not the one in the index."""


def zoo_cache() -> Path:
    """Return the folder of the cache that holds files of the zoo."""
    return cache_folder() / "zoo"


def zoo_url() -> str | None:
    """Return the address of a copy of the zoo, or None if none is configured."""
    url = os.environ.get(URL_VARIABLE) or ZOO_URL
    if url and not _is_address(url):
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        hint = "correct it (a space is %20; no ? or #), or name a folder of this machine with ADAPTIVE_SMOOTHING_ZOO"
        raise ValueError(f"expected {URL_VARIABLE} as the address of a folder, with {schemes}, got {url!r}: {hint}")
    return url


def _is_address(url: str) -> bool:
    """Return whether an address has a known scheme, no spaces, no query, and a host where it needs one."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is not closed
        return False
    is_folder = not re.search(r"[\s?#]", url)  # names of files are added at its end
    return parts.scheme in SCHEMES and is_folder and bool(parts.netloc or parts.scheme == "file")


def cached(entries: Mapping[str, ZooEntry]) -> list[str]:
    """Return the names of the models or mixtures of which the cache has all files."""
    folder = zoo_cache()
    return [name for name, entry in entries.items() if all(file.is_at(folder) for file in entry.needed)]


def fetch(files: Sequence[ZooFile], later: Sequence[ZooFile] = ()) -> Path:
    """Return the folder of the cache, with these files. Those that are missing or damaged are fetched first.

    Args:
        later: files that will be needed as well. An error lists them, too.
    """
    folder = zoo_cache()
    missing = [file for file in files if not file.is_at(folder)]
    for position, file in enumerate(missing):
        try:
            _fetch_file(file, folder)
        except DownloadError as error:
            wanted = [*missing[position:], *(each for each in later if not each.is_at(folder))]
            raise DownloadError(_by_hand(wanted, folder, error)) from error
    return folder


def _by_hand(files: Sequence[ZooFile], folder: Path, error: DownloadError) -> str:
    """Return the message for files that cannot be fetched, with all that is needed to put them into the cache."""
    lines = [f"  {file.path}, {file.bytes:,} bytes, sha256\n    {file.sha256}" for file in files]
    first = f"expected these files of the zoo in {folder}, got none or others, and they cannot be fetched: {error}"
    return "\n".join([first, "Or put the files into that folder by hand:", *lines])


def _fetch_file(file: ZooFile, folder: Path) -> None:
    """Write a file with the right content into the folder, or raise an error and leave the folder as it was."""
    url = zoo_url()
    if url is None:
        hint = "set it to a copy of the zoo: https://..., file:///..., or hf://org/name for the Hugging Face hub"
        raise DownloadError(f"{URL_VARIABLE} is not set, and there is no default yet; {hint}.")
    read = _read_from_hub if urlsplit(url).scheme == "hf" else _read_from_url
    try:
        with atomic(folder / file.path) as partial:
            read(url.rstrip("/"), file, partial)
    except DownloadError:
        raise
    except OSError as error:
        hint = f"set {CACHE_VARIABLE} to a folder with space that you may write to"
        raise DownloadError(f"the cache cannot be written ({error}); {hint}.") from error


def _read_from_url(base: str, file: ZooFile, partial: Path) -> None:
    """Write a file of the folder at this address to `partial`. After a cut, only the rest is asked for."""
    url = f"{base}/{quote(file.path)}"
    pauses = iter(() if url.startswith("file:") else PAUSES)
    with partial.open("wb") as out, _progress(file) as advance:
        while True:
            resumed = out.tell() > 0
            try:
                _read_answer(url, file, out, advance)
                return _check_content(file, partial, url)
            except WrongContentError:
                if not resumed:
                    raise
                out.seek(0)  # the parts may be of different versions of the file
            except PASSING as error:
                pause = next(pauses, None)
                if pause is None or not _may_pass(error):
                    reason = f"{url} cannot be read: {_reason(error)}; check {URL_VARIABLE} and the connection."
                    raise DownloadError(reason) from error
                _say(f"{_reason(error)}; trying {file.path} again in {pause:g} s")
                time.sleep(pause)


def _read_answer(url: str, file: ZooFile, out: BinaryIO, advance: Advance) -> None:
    """Append the rest of a file to `out`, from one answer of the server."""
    start = out.tell()
    headers = {"User-Agent": "adaptive-smoothing", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers=headers | ({"Range": f"bytes={start}-"} if start else {}))
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if not (answer.headers.get("Content-Range") or "").startswith(f"bytes {start}-"):
            out.seek(0)  # the server sends the whole file
        out.truncate()
        # One byte more than expected shows that a file is too long. An answer may be endless.
        while (left := file.bytes + 1 - out.tell()) and (part := answer.read(min(CHUNK, left))):
            out.write(part)
            advance(out.tell())
        complete = getattr(answer, "length", 0) == 0  # an answer over HTTP counts the bytes that are still to come
    out.flush()
    if out.tell() < file.bytes and not complete:
        raise ConnectionError(f"the answer ended after {out.tell():,} of {file.bytes:,} bytes")


def _check_content(file: ZooFile, path: Path, url: str) -> None:
    size, sha256 = path.stat().st_size, file_sha256(path)
    if (size, sha256) != (file.bytes, file.sha256):
        found = "more" if size > file.bytes else f"{size:,} bytes with sha256 {sha256}"
        wanted = f"{file.bytes:,} bytes with sha256 {file.sha256}"
        raise WrongContentError(f"{url} has other content: expected {wanted}, got {found}; check {URL_VARIABLE}.")


def _may_pass(error: Exception) -> bool:
    """Return whether another attempt makes sense: not if the server understood the request and refused it."""
    return not isinstance(error, urllib.error.HTTPError) or error.code >= 500 or error.code in (408, 429)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return f"no answer for {TIMEOUT:g} s" if isinstance(cause, TimeoutError) else str(cause) or type(cause).__name__


def _read_from_hub(url: str, file: ZooFile, partial: Path) -> None:
    """Write a file of `hf://org/name`, `hf://org/name@revision` or a folder of it to `partial`."""
    import huggingface_hub

    organisation, _, rest = url.removeprefix("hf://").partition("/")
    repository, _, folder = rest.partition("/")
    name, _, revision = repository.partition("@")
    try:
        with tempfile.TemporaryDirectory(dir=partial.parent) as place:
            found = huggingface_hub.hf_hub_download(
                f"{organisation}/{name}",
                f"{folder}/{file.path}".lstrip("/"),
                revision=revision or None,
                local_dir=place,
            )
            Path(found).replace(partial)
    except Exception as error:  # the errors of its HTTP client have no common class that is public
        raise DownloadError(
            f"{url} cannot be read: {first_line(error)}; check {URL_VARIABLE} and the connection."
        ) from error
    _check_content(file, partial, f"{url}/{file.path}")


def first_line(error: Exception) -> str:
    """Return the first line of an error's text that says something, without the full stop."""
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _say(text: str) -> None:
    """Print a line about a download. Above a progress bar, rich places it."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _progress(file: ZooFile) -> Iterator[Advance]:
    """Yield a function that shows how many bytes of a file are here, on a terminal. Elsewhere, print one line."""
    if not sys.stderr.isatty():
        _say(f"fetching {file.path}, {file.bytes / 1e6:.1f} MB")
        yield lambda position: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("fetching {task.description}"), BarColumn(12), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, emoji=False), transient=True) as bar:
        task = bar.add_task(file.path, total=file.bytes)
        yield lambda position: bar.update(task, completed=position)
