"""Lines between two ports of this machine that can be cut, or are slow, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time

PIECE = 1 << 11  # bytes that a slow line passes on at once: 16 ms at a megabit per second


class Pace:
    """One direction of a line: all its connections together pass so many bytes per second."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second, self.free_at, self.passed = bytes_per_second, 0.0, 0
        self.lock = threading.Lock()

    def take(self, count: int) -> None:
        """Return when so many bytes more have passed."""
        with self.lock:
            self.passed += count
            self.free_at = max(self.free_at, time.monotonic()) + count / self.bytes_per_second
            wait = self.free_at - time.monotonic()
        time.sleep(max(0.0, wait))


class SlowLine:
    """Passes bytes on between two ports, each way no faster than so many bits per second."""

    def __init__(self, port: int, target: int, bits_per_second: float) -> None:
        self.target, self.over = target, threading.Event()
        self.up, self.down = Pace(bits_per_second / 8), Pace(bits_per_second / 8)
        self.server = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Pass nothing any more, and let go of the port."""
        self.over.set()
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.over.is_set():
                near, _ = self.server.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                for each in (near, far):  # small buffers: what the kernel holds has not passed the line
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
                for source, sink, pace in ((near, far, self.up), (far, near, self.down)):
                    threading.Thread(target=self._pass, args=(source, sink, pace), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, pace: Pace) -> None:
        with contextlib.suppress(OSError):
            while not self.over.is_set() and (content := source.recv(PIECE)):
                pace.take(len(content))
                sink.sendall(content)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


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
