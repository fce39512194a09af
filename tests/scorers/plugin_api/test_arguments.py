"""Arguments of removed features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from scorers.plugin_api.arguments import Arguments, ArgumentsError, read_arguments


class ShrunkArguments(Arguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    removed: ClassVar[Mapping[str, str]] = {"oldName": "use newName"}
    new_name: int = 1


def test_a_removed_argument_states_what_replaces_it() -> None:
    with pytest.raises(ArgumentsError) as refused:
        read_arguments("Shrunk", ShrunkArguments, {"oldName": 3, "newName": 2})
    assert refused.value.problems == ("oldName: was removed in this version; use newName",)


def test_other_unknown_arguments_keep_their_message() -> None:
    with pytest.raises(ArgumentsError, match="newNam: unknown argument; did you mean newName"):
        read_arguments("Shrunk", ShrunkArguments, {"newNam": 3})
