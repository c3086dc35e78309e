"""Typer commands. They are thin: they read input, call the library and print."""
