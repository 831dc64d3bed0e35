"""Mixing a standard classifier g and a robust classifier h into one."""
