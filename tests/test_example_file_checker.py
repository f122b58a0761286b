import importlib.util
import sys
from pathlib import Path

import pytest

from idempotent.testing import CheckerContract

EXAMPLE = Path(__file__).parents[1] / "examples" / "file_checker.py"


def load_example():
    spec = importlib.util.spec_from_file_location("file_checker", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FileChecker = load_example().FileChecker


class TestFileChecker(CheckerContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    def make_checker(self, *, lease_s, retention_s):
        return FileChecker(self.folder, lease_s=lease_s, retention_s=retention_s)
