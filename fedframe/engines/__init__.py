"""Engines run the clients on this machine. They know requests and replies, never a method."""
