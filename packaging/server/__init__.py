"""Servers on this machine: where they are, their files, processes and logs. Changes nothing."""
