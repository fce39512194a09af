"""CPUs that containers share."""

from collections.abc import Mapping
from typing import TypeVar

from agent import cpuset

NameT = TypeVar("NameT", str, tuple[str, str])


def overlaps(cpusets: Mapping[NameT, str]) -> list[tuple[NameT, NameT, str]]:
    """Pairs of containers that share CPUs, with the CPUs."""
    names = sorted(cpusets)
    return [
        (one, other, cpuset.text(shared))
        for at, one in enumerate(names)
        for other in names[at + 1 :]
        if (shared := cpuset.parse(cpusets[one]) & cpuset.parse(cpusets[other]))
    ]


def shared_with(some: Mapping[NameT, str], others: Mapping[NameT, str]) -> bool:
    """Whether a container of `some` has a CPU of one of `others`."""
    taken = frozenset[int]().union(*map(cpuset.parse, others.values()))
    return any(cpuset.parse(each) & taken for each in some.values())
