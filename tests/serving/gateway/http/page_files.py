"""The page's files as its tests read them: references, panels, parsed HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import PurePosixPath

from serving.gateway.http.routes import FOLDER, INDEX, read_assets

ASSETS = read_assets()
TEXTS = {
    name: asset.content.decode()
    for name, asset in ASSETS.items()
    if not asset.media_type.startswith(("image/png", "image/jpeg"))
}
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}
COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"'`])//[^\n]*", re.DOTALL)
IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""")
PANEL = re.compile(r'^  task: "([^"]+)"', re.MULTILINE)


class Elements(HTMLParser):
    """The elements of a document: tag, attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style"):
            self.inline += data


DOCUMENT = Elements(TEXTS[INDEX])


def linked() -> set[str]:
    """Paths that the document names in `src` and `href`."""
    found = (element.get(name) for _, element in DOCUMENT.elements for name in ("src", "href"))
    return {path for path in found if path and not path.startswith("#")}


def imported(name: str) -> set[str]:
    """Modules that a module imports, by their path in the folder."""
    folder = PurePosixPath(name).parent
    paths = (folder / path for path in IMPORT.findall(SCRIPTS[name]))
    return {(FOLDER / path).resolve().relative_to(FOLDER).as_posix() for path in paths}


def reachable(name: str) -> set[str]:
    """A module and all that it imports, directly or not."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(imported(module))
    return found


def panel_tasks() -> list[str]:
    """Tasks of the panels that the registry imports."""
    modules = sorted(imported("panels/index.js"))
    return [task for module in modules for task in PANEL.findall(SCRIPTS[module])]
