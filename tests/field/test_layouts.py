"""Each layout through its real source and `serve`, `doctor`, `report` and the extender."""

from pathlib import Path

import pytest

from tests.field import lab
from tests.field.checks import wrongs
from tests.field.layout import read_layouts
from tests.field.series import distinct, series_of
from tests.modules.programs import prometheus

LAYOUTS = read_layouts()
STORED = ("prometheus", "victoriametrics")
"""Sources of series with labels."""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    layout = LAYOUTS[name]
    if layout.prometheus_3:
        if (built := prometheus()).missing:
            pytest.skip("it needs Prometheus 3: run scripts/go-programs prometheus")
        monkeypatch.setenv("PROMETHEUS_BIN", str(built.directory / "prometheus"))
    found = wrongs(layout, lab.run(layout, tmp_path))
    if layout.wrong:
        assert found, f"{name} is right: remove `wrong` from its file"
        pytest.xfail(layout.wrong)
    assert not found, "\n".join([f"{name}:", *found])


@pytest.mark.parametrize("name", [name for name, each in LAYOUTS.items() if each.source in STORED])
def test_each_series_is_there_once(name: str):
    """A server stores one series for each set of labels: a layout with two would not be what it says."""
    assert not distinct(series_of(LAYOUTS[name]))
