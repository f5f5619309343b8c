"""Connectors: who may rely on which bytes, and in which words they are told about them."""
