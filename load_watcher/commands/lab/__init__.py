"""The commands of the laboratory (lab/). An installation without lab/, such as the image of the agent, lacks them."""
