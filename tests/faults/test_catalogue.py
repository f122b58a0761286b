"""The catalogue of faults fits the code; `make faults` makes them."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_made_and_names_a_test(fault):
    text = (ROOT / fault.file).read_text()
    assert text.count(fault.right) == 1
    assert fault.right != fault.wrong
    if fault.file.endswith(".py"):
        ast.parse(text.replace(fault.right, fault.wrong))  # else each test would notice it
    assert (ROOT / fault.tests.split()[0]).is_file()


def test_there_are_many_and_no_two_are_one():
    assert len(FAULTS) >= 40
    assert max(Counter((fault.file, fault.right, fault.wrong) for fault in FAULTS).values()) == 1
