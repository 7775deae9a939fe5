"""Engines: who runs the clients. They know orders and replies, never a method."""
