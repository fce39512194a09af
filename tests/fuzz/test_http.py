"""A short run of the fuzzer; `make fuzz` is the long one."""

from pathlib import Path

import pytest

from tests.fuzz.http import fuzz


@pytest.mark.slow
def test_random_requests_find_no_fault(tmp_path: Path) -> None:
    """No 5xx that is not documented, no traceback, no end."""
    assert [] == list(fuzz(tmp_path, requests=1500, seed=1, seconds=8))
