"""Names and links in a checkpoint folder: nothing outside the folder is read.

A checkpoint may come from anywhere. Its files name other files, and an archive may hold links.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from inference.errors import CheckpointError


def inner_path(folder: Path, name: str, origin: str) -> Path:
    """A file or folder that a file of the checkpoint names.

    Args:
        origin: The file that names it, for messages.

    Raises:
        CheckpointError: the name is absolute or leads out of the folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise CheckpointError(
            f"{folder / origin} names {name!r}, which is outside the checkpoint; only names inside "
            "its folder are read"
        )
    return folder / path


def refuse_outer_links(folder: Path) -> None:
    """Refuses links that lead out of a checkpoint folder.

    The folder itself may be a link. The files of a folder in the cache of the Hugging Face hub
    (`models--NAME/snapshots/COMMIT`) are links to `models--NAME/blobs`.

    Raises:
        CheckpointError: names the link, its target, and what to do.
    """
    root = folder.resolve()
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append(root.parent.parent / "blobs")
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in (*folders, *files)):
            if not path.is_symlink():
                continue
            target = path.resolve()
            if not any(target.is_relative_to(each) for each in allowed):
                raise CheckpointError(
                    f"{path} is a link to {target}, outside the checkpoint: copy the file into the "
                    "folder if it belongs to it, or remove the link"
                )
