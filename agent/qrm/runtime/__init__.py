"""Ways to apply properties to running containers: not at all (`dry_run`), or through the container runtime (`cri`).
Each is an `Apply` of agent/qrm/manager."""

from __future__ import annotations

import logging

from agent.qrm.manager.allocation import Properties
from agent.qrm.pods import PodContainer, QrmPod

log = logging.getLogger(__name__)


async def dry_run(pod: QrmPod, container: PodContainer, properties: Properties) -> None:
    """Log the properties that would be set; set nothing."""
    wanted = ", ".join(f"{name}={value}" for name, value in properties.items())
    log.info("would set %s on %s, container %s (dry-run)", wanted, pod.key, container.name)
