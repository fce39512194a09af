"""Options of removed features."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from load_watcher.cli.options import removed_option


@click.command()
@removed_option("--colour", "-c", instead="use --light")
@click.argument("names", nargs=-1)
def lamp(names: tuple[str, ...]) -> None:
    """Print the names."""
    click.echo(f"names: {names}")


@pytest.mark.parametrize("given", [["--colour"], ["--colour", "red"], ["--colour=red", "a"], ["-c", "red"]])
def test_a_removed_option_states_what_replaces_it(given: list[str]) -> None:
    result = CliRunner().invoke(lamp, given)
    assert result.exit_code == 2
    assert "--colour was removed in this version: use --light" in result.stderr


def test_a_removed_option_is_neither_required_nor_in_the_help() -> None:
    assert CliRunner().invoke(lamp, ["a"]).stdout == "names: ('a',)\n"
    assert "--colour" not in CliRunner().invoke(lamp, ["--help"]).stdout
