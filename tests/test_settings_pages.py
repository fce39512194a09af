"""The page docs/reference/agent-settings.md."""

from agent.qrm.settings import QrmSettings
from agent.service.settings import AgentSettings
from tests.real.parts import REPOSITORY
from tests.settings_pages import agent_documentation
from watcher.core.config.fields import settings_of


def test_the_documentation_is_up_to_date():
    """`python -m tests.settings_pages agent` writes docs/reference/agent-settings.md, which has each key."""
    text = agent_documentation()
    assert (REPOSITORY / "docs" / "reference" / "agent-settings.md").read_text() == text
    agent, _, qrm = text.partition("## `[qrm]`")
    assert all(f"| `{each.name}`" in agent for each in settings_of(AgentSettings).values())
    assert all(f"| `{each.name}`" in qrm for each in settings_of(QrmSettings).values())
