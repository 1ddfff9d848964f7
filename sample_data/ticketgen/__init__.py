"""Composes invented support tickets from phrases; see generate.py for the command."""
