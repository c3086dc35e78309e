"""Typer commands, thin: they read input, call the library and print."""
