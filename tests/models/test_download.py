"""Files are fetched from servers that are right, slow, cut off, wrong or down; the cache holds right files only."""

import errno
import hashlib
import http.server
import itertools
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adaptive_smoothing.models import download
from adaptive_smoothing.models.download import DownloadError
from adaptive_smoothing.models.zoo_index import ZooEntry, ZooFile
from adaptive_smoothing.version import CACHE_VARIABLE, cache_folder

CONTENT = random.Random(0).randbytes(300_000)
FILE = ZooFile("mixed/weights.safetensors", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class Server(http.server.ThreadingHTTPServer):
    """Answers each request with the next of `answers`, and then rightly. `asked` has the Range of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[str | int] = []
        self.asked: list[str | None] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/zoo"

    def handle_error(self, request, client_address) -> None:
        """Print nothing about clients that have gone."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        self.server.paths.append(self.path)
        answer = self.server.answers.pop(0) if self.server.answers else "right"
        if isinstance(answer, int):
            self.send_error(answer)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and answer != "no ranges" else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        body = {"wrong": CONTENT[::-1], "short": CONTENT[:-1], "page": b"<!doctype html>"}.get(answer, CONTENT)[start:]
        if answer != "endless":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.send_body(answer, body)

    def send_body(self, answer: str, body: bytes) -> None:
        if answer == "silent":
            time.sleep(0.4)
        elif answer == "slow":
            for at in range(0, len(body), 50_000):
                time.sleep(0.03)
                self.wfile.write(body[at : at + 50_000])
        elif answer == "endless":
            for _ in itertools.repeat(None):
                self.wfile.write(body)
        else:
            self.wfile.write(body[: len(body) // 2] if answer == "cut" else body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv(download.URL_VARIABLE, found.url)
        yield found
        found.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(download, "PAUSES", (0.01, 0.02, 0.03))
    return tmp_path / "cache" / "zoo"


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# --- servers


def test_a_file_is_fetched_once(server, cache):
    assert download.fetch([FILE]) == cache and download.fetch([FILE]) == cache
    assert (cache / FILE.path).read_bytes() == CONTENT
    assert server.paths == ["/zoo/mixed/weights.safetensors"] and server.asked == [None]
    assert files(cache) == [FILE.path]
    assert download.cached({"here": ZooEntry((FILE,), {}), "not": ZooEntry((ZooFile("x.json", 1, ""),), {})}) == [
        "here"
    ]


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        (["slow"], [None]),
        (["cut"], [None, "bytes=150000-"]),
        (["cut", "cut", "cut"], [None, "bytes=150000-", "bytes=225000-", "bytes=262500-"]),
        (["cut", "no ranges"], [None, "bytes=150000-"]),
        (["cut", "wrong"], [None, "bytes=150000-", None]),  # the parts do not fit, so that all is fetched again
        ([500], [None, None]),
        ([503, 429, "cut"], [None, None, None, "bytes=150000-"]),
    ],
)
def test_servers_that_fail_and_recover(server, cache, answers, asked):
    server.answers = answers
    download.fetch([FILE])
    assert (cache / FILE.path).read_bytes() == CONTENT and files(cache) == [FILE.path]
    assert server.asked == asked


def test_a_server_that_does_not_answer_in_time(server, cache, monkeypatch, capsys):
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    server.answers = ["silent"]
    download.fetch([FILE])
    assert len(server.asked) == 2 and files(cache) == [FILE.path]
    assert f"no answer for 0.1 s; trying {FILE.path} again in 0.01 s" in capsys.readouterr().err
    server.answers = ["silent"] * 4
    with pytest.raises(DownloadError, match=r"cannot be read: no answer for 0.1 s; check ADAPTIVE_SMOOTHING_ZOO_URL"):
        download.fetch([ZooFile("other", FILE.bytes, FILE.sha256)])


@pytest.mark.parametrize(
    ("answers", "words", "requests"),
    [
        ([404], "the server answers 404 Not Found", 1),
        ([403], "the server answers 403 Forbidden", 1),
        ([500] * 4, "the server answers 500 Internal Server Error", 4),
        (["cut"] * 4, "the answer ended after 281,250 of 300,000 bytes", 4),
        (["wrong"], f"expected 300,000 bytes with sha256 {FILE.sha256}, got 300,000 bytes with sha256 ", 1),
        (["short"], "got 299,999 bytes with", 1),
        (["page"], "got 15 bytes with", 1),
        (["endless"], "other content: expected 300,000 bytes .*, got more", 1),
    ],
)
def test_servers_without_the_file(server, cache, answers, words, requests):
    server.answers = answers
    with pytest.raises(DownloadError, match=words) as error:
        download.fetch([FILE])
    assert len(server.asked) == requests and files(cache) == []
    assert f"{FILE.path}, 300,000 bytes, sha256\n    {FILE.sha256}" in str(error.value)
    assert str(cache) in str(error.value) and download.URL_VARIABLE in str(error.value)


def test_an_error_also_lists_files_that_are_needed_later(server, cache):
    server.answers = ["right", 404]
    here, other, base = (ZooFile(name, FILE.bytes, FILE.sha256) for name in ("here", "mixture.json", "g.safetensors"))
    download.fetch([here])
    with pytest.raises(DownloadError) as error:
        download.fetch([other], [base, here])
    assert [line.split(",")[0] for line in str(error.value).splitlines() if "sha256" in line] == [
        "  mixture.json",
        "  g.safetensors",
    ]


def test_several_processes_fetch_the_same_file(server, cache):
    server.answers = ["slow", "cut", "slow", "slow"]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(download.fetch, [[FILE]] * 4)) == [cache] * 4
    assert (cache / FILE.path).read_bytes() == CONTENT and files(cache) == [FILE.path]


def test_an_interrupted_download_leaves_nothing(server, cache, monkeypatch):
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    server.answers = ["cut"]
    monkeypatch.setattr(download.time, "sleep", stop)
    with pytest.raises(KeyboardInterrupt):
        download.fetch([FILE])
    assert files(cache) == []


def test_progress_is_a_line_at_the_start_or_a_bar_on_a_terminal(server, capsys, monkeypatch):
    download.fetch([FILE])
    assert capsys.readouterr() == ("", "fetching mixed/weights.safetensors, 0.3 MB\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    download.fetch([ZooFile("other", FILE.bytes, FILE.sha256)])
    shown = capsys.readouterr()
    assert "fetching other" in shown.err and not shown.out


# --- other addresses


def test_a_folder_as_the_address(tmp_path, cache, monkeypatch):
    source = tmp_path / "a zoo"
    (source / "mixed").mkdir(parents=True)
    monkeypatch.setenv(download.URL_VARIABLE, source.as_uri() + "/")
    with pytest.raises(DownloadError, match="No such file or directory"):
        download.fetch([FILE])
    (source / FILE.path).write_bytes(CONTENT[:-1])
    with pytest.raises(DownloadError, match="got 299,999 bytes"):
        download.fetch([FILE])
    (source / FILE.path).write_bytes(CONTENT)
    assert (download.fetch([FILE]) / FILE.path).read_bytes() == CONTENT


def test_without_a_network(monkeypatch):
    with Server() as gone:
        url = gone.url
    monkeypatch.setenv(download.URL_VARIABLE, url)
    with pytest.raises(DownloadError, match="Connection refused; check ADAPTIVE_SMOOTHING_ZOO_URL and the connection"):
        download.fetch([FILE])


@pytest.mark.parametrize(
    "address", ["/home/me/zoo", "http://", "https:///zoo", "http://localhost:1/my zoo", "http://[x", "http://x/zoo?a=b"]
)
def test_an_address_of_another_kind_is_refused_at_once(monkeypatch, address):
    monkeypatch.setenv(download.URL_VARIABLE, address)
    expected = rf"https://, http://, file://, hf://, got '{re.escape(address)}': correct it .*ADAPTIVE_SMOOTHING_ZOO"
    with pytest.raises(ValueError, match=expected):
        download.fetch([FILE])


def test_the_address_in_the_code_is_used_without_the_variable(server, monkeypatch):
    assert download.ZOO_URL is None  # the zoo is not published
    monkeypatch.delenv(download.URL_VARIABLE)
    monkeypatch.setattr(download, "ZOO_URL", server.url)
    assert (download.fetch([FILE]) / FILE.path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("hf://org/name", ("org/name", FILE.path, None)),
        ("hf://org/name@v1.0/some/zoo/", ("org/name", f"some/zoo/{FILE.path}", "v1.0")),
    ],
)
def test_a_repository_of_the_hub(cache, monkeypatch, address, expected):
    import huggingface_hub

    asked = []

    def hf_hub_download(repository: str, name: str, *, revision: str | None, local_dir: str) -> str:
        asked.append((repository, name, revision))
        path = Path(local_dir) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(CONTENT if len(asked) > 1 else CONTENT[1:])
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    monkeypatch.setenv(download.URL_VARIABLE, address)
    with pytest.raises(DownloadError, match=f"{address.rstrip('/')}/{FILE.path} has other content"):
        download.fetch([FILE])
    assert (download.fetch([FILE]) / FILE.path).read_bytes() == CONTENT
    assert asked == [expected] * 2 and files(cache) == [FILE.path]


def test_a_hub_that_cannot_be_reached(monkeypatch):
    import huggingface_hub

    def hf_hub_download(*arguments: object, **options: object) -> str:
        raise huggingface_hub.errors.OfflineModeIsEnabled("\nThe hub is offline.\nmore")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    monkeypatch.setenv(download.URL_VARIABLE, "hf://org/name")
    with pytest.raises(DownloadError, match="hf://org/name cannot be read: The hub is offline; check"):
        download.fetch([FILE])


# --- the cache


def test_the_folder_of_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, "~/my-cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert cache_folder() == tmp_path / "my-cache"
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "xdg" / "adaptive_smoothing"
    for unusable in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert cache_folder() == tmp_path / ".cache" / "adaptive_smoothing"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "adaptive_smoothing"


def test_no_home_folder(monkeypatch):
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(OSError, match="got none: set ADAPTIVE_SMOOTHING_CACHE"):
        cache_folder()


def test_a_cache_that_cannot_be_written(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(
        DownloadError, match=r"the cache cannot be written \(.*Not a directory.*set ADAPTIVE_SMOOTHING_CACHE"
    ):
        download.fetch([FILE])


def test_a_read_only_cache_is_read(server, cache, monkeypatch):
    download.fetch([FILE])

    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(download, "atomic", refused)
    assert download.fetch([FILE]) == cache
    with pytest.raises(DownloadError, match=r"the cache cannot be written \(.*Read-only file system"):
        download.fetch([ZooFile("other", FILE.bytes, FILE.sha256)])
