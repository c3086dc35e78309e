"""What an operator may choose of the programs and commands: an option is a field here, with its
default and its help, and nowhere else.

`controller.cli.declared` makes flags of them. Nothing here imports what decides or serves, so that
help and completion are quick.
"""
