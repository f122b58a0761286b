"""The search for bytes that the parsers do not bear, for a moment."""

import pytest

from tests.malformed.fuzz import DONE, run


@pytest.mark.slow
def test_it_drives_the_properties():
    pytest.importorskip("atheris")
    ended = run("test_an_attempt_is_a_number_of_ours_or_none", 2)
    assert ended.returncode == 0, ended.stderr
    assert int(DONE.search(ended.stderr)[1]) > 10
    assert "Instrumenting idempotent.adapters.copies" in ended.stderr
