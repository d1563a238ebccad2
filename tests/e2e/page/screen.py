"""What a user does with the page, in the words of the page."""

from __future__ import annotations

import re
from typing import Any

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
