"""Effects that survive their process: lines in a file."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Effects:
    """Picklable. Lines are short, so that appending one is atomic."""

    path: str

    def add(self, word):
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, f"{word}\n".encode())
        finally:
            os.close(file)

    @property
    def words(self):
        path = Path(self.path)
        return path.read_text().split() if path.exists() else []

    @property
    def times(self):
        """The number of times that each word was added."""
        return Counter(self.words)
