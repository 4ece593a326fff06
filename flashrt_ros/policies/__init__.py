"""Policies that run on the runtime, and where they are found."""
