"""The page docs/reference/agent-settings.md."""

from dataclasses import fields

from agent.qrm.settings import QrmSettings
from agent.service.settings import AgentSettings
from tests.real.parts import REPOSITORY
from tests.settings_pages import agent_documentation


def test_the_documentation_is_up_to_date():
    """`python -m tests.settings_pages agent` writes docs/reference/agent-settings.md, which has each key."""
    text = agent_documentation()
    assert (REPOSITORY / "docs" / "reference" / "agent-settings.md").read_text() == text
    agent, _, qrm = text.partition("## `[qrm]`")
    assert all(f"| `{each.name}`" in agent for each in fields(AgentSettings) if each.name != "queries")
    assert all(f"| `{each.name}`" in qrm for each in fields(QrmSettings))
