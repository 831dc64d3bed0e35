"""Serves the application on this machine. Nothing is sent to another host."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec
from typing import Any

from adaptive_smoothing.app.subject import Subject

LOCALHOST = "127.0.0.1"
# Ports that are tried if none is named.
PORTS = range(7860, 7960)
LARGEST_FILE = "50mb"


def require_gradio() -> None:
    """Raise an error that says how to install Gradio if it is missing. It is not imported yet: that takes seconds."""
    # Gradio and its client would otherwise report their use, and look for newer versions.
    os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1")
    if find_spec("gradio") is None:
        hint = "run pip install 'adaptive-smoothing[app]'"
        raise ImportError(f"expected the package gradio for the application, got none: {hint}")


def free_port(port: int | None = None) -> int:
    """Return this port, or the first free one of `PORTS`; raise an error if it is in use."""
    for candidate in PORTS if port is None else (port,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOCALHOST, candidate))
            except OSError:
                continue
            return candidate
    used = (
        f"{PORTS[0]} to {PORTS[-1]}, which are all in use" if port is None else f"{port}, which is in use or reserved"
    )
    raise OSError(f"expected a free port, got {used}: name another one with --port")


class Server:
    """The running application: `with Server(subject) as server: ...`. It ends with the block.

    Args:
        port: by default the first free one from 7860.
        host: by default only this machine can open the page. In a Space, it is None: the environment decides.
    """

    def __init__(self, subject: Subject, port: int | None = None, host: str | None = LOCALHOST) -> None:
        require_gradio()
        from adaptive_smoothing.app.layout import build

        self.page, self.host = build(subject), host
        self.port = free_port(port) if host is not None else port
        self.url = ""

    def __enter__(self) -> Server:
        _, self.url, _ = self.page.launch(**self._options(), prevent_thread_lock=True)
        return self

    def __exit__(self, *error: object) -> None:
        self.page.close(verbose=False)

    def wait(self) -> None:
        """Serve until Ctrl-C or SIGTERM, which end in KeyboardInterrupt."""
        thread = self.page.server.thread
        while thread.is_alive():
            thread.join(0.5)

    def _options(self) -> dict[str, Any]:
        from adaptive_smoothing.app.layout import STYLE, theme

        return {
            "server_name": self.host,
            "server_port": self.port,
            "share": False,
            "quiet": True,
            "show_error": True,
            "theme": theme(),
            "css": STYLE.read_text(encoding="utf-8"),
            "footer_links": [],
            "run_history": False,
            "ssr_mode": False,
            "pwa": False,
            "mcp_server": False,
            "enable_monitoring": False,
            "max_file_size": LARGEST_FILE,
        }
