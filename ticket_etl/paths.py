"""What can be seen at a path: one that nobody may look at, or that no name can be, is a no and not an error."""

from pathlib import Path


def is_folder(path: Path) -> bool:
    """Whether a folder can be seen there."""
    try:
        return path.is_dir()
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Whether a regular file can be seen there."""
    try:
        return path.is_file()
    except OSError:
        return False
