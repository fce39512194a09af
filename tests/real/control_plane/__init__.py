"""Tests against a real control plane: what the API server accepts, grants, refuses and stores."""
