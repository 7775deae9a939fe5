"""A line between two ports of this machine that can be cut, for tests."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time


class Proxy:
    """Passes bytes on between two ports, until it is cut: then it passes nothing, and says nothing."""

    def __init__(self, port: int, target: int) -> None:
        self.target, self.cut, self.over = target, threading.Event(), threading.Event()
        self.server = socket.create_server(("127.0.0.1", port))
        self.server.settimeout(0.2)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Pass nothing any more, and let go of the port."""
        self.over.set()
        self.server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.over.is_set():
                with contextlib.suppress(TimeoutError):
                    near, _ = self.server.accept()
                    threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as far:
            watch = selectors.DefaultSelector()
            watch.register(near, selectors.EVENT_READ, far)
            watch.register(far, selectors.EVENT_READ, near)
            while not self.over.is_set():
                if self.cut.is_set():
                    time.sleep(0.1)
                    continue
                for key, _ in watch.select(0.2):
                    assert isinstance(key.fileobj, socket.socket)
                    content = key.fileobj.recv(1 << 16)
                    if not content:
                        return
                    key.data.sendall(content)
