"""What a user does with the page, in the words of the page."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

REFUSED = "Failed to load resource"
"""What Chromium writes to the console about a response with an error status."""
VISIBLE = "[role=tabpanel]:not([hidden])"
_GIVE = """async (target, [kind, name, scene]) => {
    const blob = await (await fetch(`ui/pictures/${scene}`)).blob();
    const data = new DataTransfer();
    data.items.add(new File([blob], name, { type: "image/png" }));
    const init = { bubbles: true, cancelable: true };
    const event = kind === "drop"
      ? new DragEvent("drop", { ...init, dataTransfer: data })
      : new ClipboardEvent("paste", { ...init, clipboardData: data });
    target.dispatchEvent(event);
}"""


class Screen:
    """One browser page.

    Args:
        page: Playwright's page.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.expected: list[str] = []
        """Regular expressions of complaints that a test provokes."""
        self.hosts: set[str] = set()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def open(self, url: str, task: str) -> None:
        """Load the page with a task's tab."""
        self.page.goto(f"{url}/#{task}")

    @property
    def panel(self) -> Any:
        """The visible panel."""
        return self.page.locator(VISIBLE)

    def field(self, label: str) -> Any:
        """A field of the visible panel by its label."""
        return self.panel.get_by_label(label, exact=True)

    def press(self, name: str) -> None:
        """Press a button of the visible panel."""
        self.panel.get_by_role("button", name=name, exact=True).click()

    def give(self, kind: str, name: str, *, scene: str, to: str = "body") -> None:
        """Drop or paste an example picture as a file of this name.

        Args:
            kind: `drop` or `paste`.
            name: Name of the file.
            scene: File of the example picture.
            to: Selector of the element that receives the event.
        """
        self.page.locator(to).evaluate(_GIVE, [kind, name, scene])

    def run(self) -> None:
        """Send the request and wait for the whole answer."""
        self.panel.locator(".primary").click()
        self.wait_until_done()

    def example(self, name: str) -> None:
        """Choose an example and wait for the whole answer."""
        self.press(name)
        self.wait_until_done()

    def wait_until_done(self) -> None:
        """Wait until the status says that an answer is complete."""
        self.panel.locator(".status", has_text=re.compile(r"^Done in")).wait_for()

    @property
    def answer(self) -> Any:
        """The result in the visible panel."""
        return self.panel.locator(".result")

    @property
    def text(self) -> str:
        """The first text of the answer."""
        return str(self.answer.locator(".text").first.inner_text())

    def problem(self) -> str:
        """The words of the error that is shown."""
        return str(self.panel.get_by_role("alert").inner_text())

    def code(self, language: str) -> str:
        """The request as code."""
        block = self.panel.locator(f'.code-block[data-language="{language}"] code')
        return str(block.text_content())

    def active_name(self) -> str:
        """Label or text of the focused element."""
        script = "(e => e.getAttribute('aria-label') ?? e.labels?.[0]?.innerText ?? e.innerText)"
        return str(self.page.evaluate(f"{script}(document.activeElement)"))

    def width(self) -> int:
        """Width of the whole document; more than the window's means horizontal scrolling."""
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def unexpected_complaints(self) -> list[str]:
        """What the page wrote to the console and no test provoked."""
        return [
            text
            for text in self.complaints
            if not any(re.search(pattern, text) for pattern in self.expected)
        ]

    def _on_console(self, message: Any) -> None:
        if message.type in ("warning", "error"):
            self.complaints.append(message.text)


HOP_BY_HOP = {"connection", "content-length", "transfer-encoding", "host", "keep-alive"}
_POLL_S = 0.05


class PrefixProxy:
    """The proxy; it runs in threads of its own.

    Args:
        target: URL of the gateway.
        prefix: Path below which it is served, without a slash at its end.
    """

    def __init__(self, target: str, prefix: str) -> None:
        self.gateway = httpx.Client(base_url=target, timeout=60)
        self.prefix = prefix
        self.held = threading.Event()
        """While set, streams pause after their first event."""
        self.broken = threading.Event()
        """While set, streams end after their first event."""
        self.hung_up = threading.Event()
        """Set when a client has left a stream that was held."""
        self.paths: list[str] = []
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.prefix}"

    def start(self) -> None:
        """Accept connections."""
        self._thread.start()

    def stop(self) -> None:
        """End all streams and close the socket."""
        self.held.clear()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.gateway.close()


class _Handler(BaseHTTPRequestHandler):
    """One request, sent on without the prefix."""

    owner: PrefixProxy

    def do_GET(self) -> None:
        self._forward(b"")

    def do_POST(self) -> None:
        self._forward(self.rfile.read(int(self.headers.get("content-length", 0))))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests read `paths`."""

    def _forward(self, body: bytes) -> None:
        self.owner.paths.append(self.path)
        path = self.path.removeprefix(self.owner.prefix)
        if path == self.path:
            self.send_error(404)
            return
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
        with self.owner.gateway.stream(
            self.command, path, headers=headers, content=body
        ) as response:
            self.send_response(response.status_code)
            for name, value in response.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.end_headers()
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._send_events(response) if is_stream else self._send_all(response)

    def _send_all(self, response: httpx.Response) -> None:
        for chunk in response.iter_raw():
            self.wfile.write(chunk)

    def _send_events(self, response: httpx.Response) -> None:
        waiting = b""
        for chunk in response.iter_raw():
            waiting += chunk
            *events, waiting = waiting.split(b"\n\n")
            for event in events:
                self.wfile.write(event + b"\n\n")
                self.wfile.flush()
                if self.owner.broken.is_set() or not self._may_go_on():
                    return

    def _may_go_on(self) -> bool:
        """Waits while streams are held; False once the client has left."""
        while self.owner.held.is_set():
            readable, _, _ = select.select([self.connection], [], [], _POLL_S)
            if readable and self.connection.recv(1, socket.MSG_PEEK) == b"":
                self.owner.hung_up.set()
                return False
        return True
