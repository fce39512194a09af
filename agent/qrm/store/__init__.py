"""Files of the QoS Resource Manager: the checkpoint in Katalyst's format, and atomic writes."""
